"""Curves along the rounds, with a band over seeds."""

from __future__ import annotations

from typing import Any

from fedcraft.report.series import curve, plain, thin
from fedcraft.runs.select import Problem, Setting

CURVES = {
    "mean": "Mean accuracy",
    "worst10": "Worst 10 %",
    "best10": "Best 10 %",
    "std": "Std over clients",
    "train_loss": "Train loss",
}


def convergence(problem: Problem) -> dict[str, Any] | None:
    """For each metric that was evaluated, one series per method: rounds, mean and sd."""
    metrics = {key: _series(problem, key) for key in CURVES}
    drawn = {key: series for key, series in metrics.items() if series}
    if not drawn:
        return None
    return {"titles": {key: CURVES[key] for key in drawn}, "metrics": drawn}


def _series(problem: Problem, metric: str) -> list[dict[str, Any]]:
    series = [(entry.name, _points(entry.chosen, metric)) for entry in problem.entries]
    return [{"method": method, **points} for method, points in series if points["x"]]


def _points(setting: Setting, metric: str) -> dict[str, Any]:
    frame = thin(curve(setting, metric))
    points = {"x": [int(x) for x in frame.index], "y": plain(frame["mean"])}
    return points | ({"sd": plain(frame["sd"])} if frame["sd"].notna().any() else {})
