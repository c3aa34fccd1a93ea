"""The tables of docs/craft-auto.md."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks import drop_in, out_of_the_box, step_bound
from benchmarks.pages.markdown import SCORES, rates, table
from fedcraft.methods import method_title
from fedcraft.runs import Run
from fedcraft.studies.reproduce import from_results

__all__ = ["craft_auto_blocks"]

_STUDIES = {
    "auto femnist": "auto-femnist",
    "auto cifar10": "auto-cifar10-cnn",
    "auto cifar10 500": "auto-cifar10-cnn-500",
}
_HEADS = ("method", "rates", "seeds", "model", "mean ± seeds", *list(SCORES.values())[1:])


def craft_auto_blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks: the stored studies, and what three benchmarks measured."""
    studies = {block: study_table(study, results) for block, study in _STUDIES.items()}
    measured = results / "benchmarks"
    return {
        "out-of-the-box": out_of_the_box.tables(_read(measured / "out-of-the-box.json")),
        "drop-in": drop_in.results_table(_read(measured / "drop-in.json")),
        "step-bound": step_bound.results_table(_read(measured / "step-bound.json")),
        **studies,
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def study_table(name: str, results: Path) -> str:
    """Every method at its best rates, twice: the averaged model and the last iterate."""
    groups: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in from_results(name, results).result.runs:
        groups[run.method][rates(run.config)].append(run)
    ordered = sorted(groups.values(), key=_best_mean, reverse=True)
    return table(_HEADS, (row for settings in ordered for row in _rows(settings)))


def _best_mean(settings: dict[str, list[Run]]) -> float:
    return fmean(_values(_sound(settings[_best(settings, "evaluation")]), "evaluation", "mean"))


def _best(settings: dict[str, list[Run]], key: str) -> str:
    """The pair of rates with the highest mean, diverged seeds included."""
    return max(settings, key=lambda pair: fmean(_values(settings[pair], key, "mean")))


def _rows(settings: dict[str, list[Run]]) -> Iterator[list[str]]:
    for title, key in (("averaged", "evaluation"), ("last", "evaluation_last")):
        best = _best(settings, key)
        runs = _sound(settings[best])
        head = _title(settings[best]) if key == "evaluation" else ""
        means = _values(runs, key, "mean")
        spread = f" ± {stdev(means):.3f}" if len(means) > 1 else ""
        others = [f"{fmean(_values(runs, key, score)):.3f}" for score in list(SCORES)[1:]]
        yield [head, best, str(len(runs)), title, f"{fmean(means):.3f}{spread}", *others]


def _title(runs: Sequence[Run]) -> str:
    title, lost = method_title(runs[0].method), len(runs) - len(_sound(runs))
    return f"{title} ({lost} of {len(runs)} seeds diverged)" if lost else title


def _sound(runs: Sequence[Run]) -> list[Run]:
    """The runs that did not end in NaN; all if none is left."""
    return [run for run in runs if not run.diverged] or list(runs)


def _values(runs: Sequence[Run], key: str, metric: str) -> list[float]:
    return [float(run.records[-1][key][metric]) for run in runs]
