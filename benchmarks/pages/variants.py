"""The method notes of docs/results.md: documented variants beside the default and the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.pages.markdown import SCORES, rates, table
from fedcraft.methods import method_title
from fedcraft.runs import Run
from fedcraft.studies.published import TABLES, Published
from fedcraft.studies.reproduce import Reproduction
from fedcraft.studies.results import rank_correlation

__all__ = ["variant_notes", "variant_verdict"]

_PAPER = TABLES["femnist-mlp"]
_HEADS = ("method", "variant", "rates", *SCORES.values())


def variant_notes(femnist: Reproduction, variants: Reproduction) -> str:
    """A row for the paper, one for our default, one for each variant; all with the first seed."""
    tried = _best(variants)
    methods = dict.fromkeys(run.config.method for run in variants.result.runs)
    order = [name for name in _PAPER if name in methods]
    return table(_HEADS, (row for name in order for row in _rows(name, _defaults(femnist), tried)))


def variant_verdict(femnist: Reproduction, variants: Reproduction) -> str:
    """Which variant comes nearest to the paper, and the order of methods with it."""
    means = {name: run.final("mean") for name, run in _defaults(femnist).items()}
    fitted, near = dict(means), []
    for name, runs in _by_method(_best(variants)).items():
        run = min(runs, key=lambda run: abs(run.final("mean") - _PAPER[name].mean))
        if abs(run.final("mean") - _PAPER[name].mean) < abs(means[name] - _PAPER[name].mean):
            fitted[name] = run.final("mean")
            near.append(f"`{run.method}` ({run.final('mean') - _PAPER[name].mean:+.3f})")
    return (
        f"* Nearer to the paper than our default, with the difference in the mean: "
        f"{', '.join(near)}.\n"
        f"* Rank correlation with the paper's means, first seed: {_rank(means):.2f} with the "
        f"defaults, {_rank(fitted):.2f} with the nearest variants. The second is a fit, not a "
        "test: the variants were picked by their distance to the numbers they are compared with."
    )


def _rows(name: str, defaults: Mapping[str, Run], tried: Mapping[str, Run]) -> Iterator[list[str]]:
    yield [method_title(name), "the paper", "", *_cells(_PAPER[name])]
    yield ["", "default", rates(defaults[name].config), *_cells(defaults[name])]
    for label, run in tried.items():
        if run.config.method == name:
            yield ["", f"`{label}`", rates(run.config), *_cells(run)]


def _cells(row: Published | Run) -> list[str]:
    values = row if isinstance(row, Published) else map(row.final, SCORES)
    return [f"{value:.3f}" for value in values]


def _defaults(femnist: Reproduction) -> dict[str, Run]:
    """Every method at the rates of the table, with the seed of the grid."""
    seed = min(run.config.seed for run in femnist.result.runs)
    chosen = femnist.result.best("test")
    return {
        name: next(run for run in setting.runs if run.config.seed == seed)
        for name, setting in chosen.items()
    }


def _best(made: Reproduction) -> dict[str, Run]:
    """The best run of each variant, in the order in which they are stored."""
    chosen = made.result.best("test")
    names = dict.fromkeys(run.method for run in made.result.runs)
    return {name: chosen[name].runs[0] for name in names}


def _by_method(runs: Mapping[str, Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs.values():
        found.setdefault(run.config.method, []).append(run)
    return found


def _rank(means: Mapping[str, float]) -> float:
    rows = ({"mean": mean, "mean_paper": _PAPER[name].mean} for name, mean in means.items())
    return rank_correlation(rows)
