"""The curves of docs/results.md: methods side by side at equal rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.pages import table
from fedcraft.experiments.published import TABLES
from fedcraft.experiments.reproduce import Reproduction
from fedcraft.experiments.result import Result
from fedcraft.report.names import display_name

__all__ = ["curve_tables"]

_ROUNDS = (25, 50, 75, 100, 150, 200, 300, 400, 500)
_SCORES = {"mean": "mean", "best10": "best 10 %", "worst10": "worst 10 %", "std": "std"}
Evaluations = Mapping[int, Mapping[str, float]]


def curve_tables(made: Reproduction) -> str:
    """The mean by round, then every score after the rounds that several methods ended with."""
    runs = {run.method: run for run in made.result.runs}
    ordered = {name: runs[name] for name in made.preset.names if name in runs}
    return f"{_means(ordered)}\n\n{_scores(ordered, made.preset.published)}"


def _means(runs: Mapping[str, Result]) -> str:
    found = {name: _evaluations(run) for name, run in runs.items()}
    shown = [number for number in _ROUNDS if any(number in each for each in found.values())]
    rows = (
        [display_name(name), _rates(run), *(_cell(found[name], number) for number in shown)]
        for name, run in runs.items()
    )
    return table(("mean after round", "rates (client, server)", *map(str, shown)), rows)


def _scores(runs: Mapping[str, Result], published: str | None) -> str:
    paper = TABLES[published] if published else {}
    ends = sorted({run.config.rounds for run in runs.values()})
    rows = (row for end in ends for row in _rows_after(end, runs))
    beside = ([*row, _paper_mean(paper, name)] for name, row in rows)
    return table(("method", "rounds", *_SCORES.values(), "the paper's mean, 500 rounds"), beside)


def _rows_after(end: int, runs: Mapping[str, Result]) -> Iterator[tuple[str, list[str]]]:
    for name, run in runs.items():
        scores = _evaluations(run).get(end)
        if scores:
            cells = (f"{scores[score]:.3f}" for score in _SCORES)
            yield name, [display_name(name), str(end), *cells]


def _evaluations(run: Result) -> Evaluations:
    records = (record for record in run.records if record.get("evaluation"))
    return {record["round"]: record["evaluation"] for record in records}


def _cell(found: Evaluations, number: int) -> str:
    return f"{found[number]['mean']:.3f}" if number in found else ""


def _paper_mean(paper: Mapping[str, tuple[float, ...]], name: str) -> str:
    return f"{paper[name][0]:.3f}" if name in paper else ""


def _rates(run: Result) -> str:
    return f"{run.config.client_lr:g}, {run.config.server_lr:g}"
