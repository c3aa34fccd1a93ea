"""Aggregation of updates that lie in safetensors files, within a memory budget."""

from __future__ import annotations

from fedcraft.outofcore.files import aggregate_files
from fedcraft.outofcore.vector import DiskVector

__all__ = ["DiskVector", "aggregate_files"]
