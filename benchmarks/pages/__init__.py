"""Tables and figures of the pages, from the files of results/: ``python -m benchmarks.pages``.

Each module returns generated blocks by the name of their marks, from stored numbers only.
"""
