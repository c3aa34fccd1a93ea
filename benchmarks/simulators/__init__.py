"""The contestants of ``benchmarks.simulation``: one process each, told what to do line by line."""
