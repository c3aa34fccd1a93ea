"""Aggregation of updates in safetensors files, within a memory budget."""
