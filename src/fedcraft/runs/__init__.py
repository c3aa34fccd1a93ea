"""The run directory: written, sealed, read and compared in one place."""
