"""The configuration of a run: one schema, read from TOML and the command line, checked."""
