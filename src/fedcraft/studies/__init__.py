"""Experiments: one config schema, runs, comparisons, sweeps, and the paper's own experiments."""
