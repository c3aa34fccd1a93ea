"""Studies of many runs: comparisons, sweeps, and the paper's experiments."""
