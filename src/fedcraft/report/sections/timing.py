"""The time of a round by phase."""

from __future__ import annotations

from typing import Any

from fedcraft.report.series import mean_seconds
from fedcraft.runs.select import Entry, Problem


def timing(problem: Problem) -> dict[str, Any] | None:
    """Mean seconds per round and phase, and the peak memory, of every method."""
    seconds = {entry.name: mean_seconds(entry.runs) for entry in problem.entries}
    drawn = {method: _rounded(phases) for method, phases in seconds.items() if phases}
    if not drawn:
        return None
    names = {phase: None for phases in drawn.values() for phase in phases}
    memory = {e.name: peak for e in problem.entries if (peak := _peak_memory(e))}
    return {"phases": list(names), "methods": drawn, "memory": memory}


def _peak_memory(entry: Entry) -> int:
    peaks = [record.get("peak_memory_mb") or 0 for run in entry.runs for record in run.records]
    return round(max(peaks, default=0))


def _rounded(phases: dict[str, float]) -> dict[str, float]:
    return {phase: float(f"{seconds:.4g}") for phase, seconds in phases.items()}
