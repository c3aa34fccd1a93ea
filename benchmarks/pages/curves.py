"""The curves of docs/results.md: methods side by side at equal rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping

from benchmarks.pages.markdown import SCORES, rates, table
from fedcraft.methods import method_title
from fedcraft.runs import Run
from fedcraft.studies.published import AUTHORS_RUNS, TABLES, Published
from fedcraft.studies.reproduce import Reproduction

__all__ = ["curve_summary", "curve_tables"]

_ROUNDS = (25, 50, 75, 100, 150, 200, 300, 400, 500)
Evaluations = Mapping[int, Mapping[str, float]]


def curve_tables(made: Reproduction) -> str:
    """The mean by round, then every score after the rounds that several methods ended with."""
    runs = {run.method: run for run in made.result.runs}
    ordered = {name: runs[name] for name in made.preset.names if name in runs}
    published = made.preset.published or ""
    return f"{_means(ordered, published)}\n\n{_scores(ordered, published)}"


def curve_summary(studies: Mapping[str, Reproduction]) -> str:
    """CRAFT beside the best of its rivals after every number of rounds that one of them ended with.

    ``studies`` go by what they are called in the table.
    """
    rows = ([title, *row] for title, made in studies.items() for row in _duels(made))
    return table(("data and model", "rounds", "CRAFT", "its best rival"), rows)


def _duels(made: Reproduction) -> Iterator[list[str]]:
    runs = {run.method: _evaluations(run) for run in made.result.runs}
    rivals = {run.method: run for run in made.result.runs if run.config.method != "craft"}
    for end in sorted({run.config.rounds for run in rivals.values()}):
        best = max((r for r in rivals if end in runs[r]), key=lambda r: runs[r][end]["mean"])
        ours, theirs = (_mean_and_worst(runs[name][end]) for name in ("craft", best))
        yield [str(end), ours, f"{method_title(best)} {theirs}"]


def _mean_and_worst(scores: Mapping[str, float]) -> str:
    return f"{scores['mean']:.3f} ({scores['worst10']:.3f})"


def _means(runs: Mapping[str, Run], published: str) -> str:
    found = {name: _means_by_round(run) for name, run in runs.items()}
    shown = [number for number in _ROUNDS if any(number in each for each in found.values())]
    rows = [
        [method_title(name), rates(run.config), *_cells(found[name], shown)]
        for name, run in runs.items()
    ]
    if published in AUTHORS_RUNS:
        theirs = AUTHORS_RUNS[published]
        rows.append(["CRAFT, the authors' run", "0.005, 0.1", *_cells(theirs, shown)])
    return table(("mean after round", "rates (client, server)", *map(str, shown)), rows)


def _scores(runs: Mapping[str, Run], published: str) -> str:
    paper = TABLES.get(published, {})
    ends = sorted({run.config.rounds for run in runs.values()})
    rows = (row for end in ends for row in _rows_after(end, runs))
    beside = ([*row, _paper_mean(paper, name)] for name, row in rows)
    heads = ("method", "rounds", *SCORES.values(), "mean over the last fifth")
    return table((*heads, "the paper's mean, 500 rounds"), beside)


def _rows_after(end: int, runs: Mapping[str, Run]) -> Iterator[tuple[str, list[str]]]:
    for name, run in runs.items():
        scores = _evaluations(run).get(end)
        if scores:
            cells = (f"{scores[score]:.3f}" for score in SCORES)
            yield name, [method_title(name), str(end), *cells, f"{_lately(run, end):.3f}"]


def _lately(run: Run, end: int) -> float:
    """The mean over the last rounds: one alone depends much on who took part in it."""
    means = _means_by_round(run)
    return statistics.fmean(means[number] for number in means if 0.8 * end < number <= end)


def _evaluations(run: Run) -> Evaluations:
    records = (record for record in run.records if record.get("evaluation"))
    return {record["round"]: record["evaluation"] for record in records}


def _means_by_round(run: Run) -> dict[int, float]:
    return {number: scores["mean"] for number, scores in _evaluations(run).items()}


def _cells(means: Mapping[int, float], rounds: Iterable[int]) -> list[str]:
    return [f"{means[number]:.3f}" if number in means else "" for number in rounds]


def _paper_mean(paper: Mapping[str, Published], name: str) -> str:
    return f"{paper[name].mean:.3f}" if name in paper else ""
