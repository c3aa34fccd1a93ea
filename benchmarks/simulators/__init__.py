"""The contestants of ``benchmarks.simulation``: one process each, controlled line by line."""
