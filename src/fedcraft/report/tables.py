"""The paper's Table 1 from run directories, as a frame and as Markdown, LaTeX or CSV."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fedcraft.errors import InputError
from fedcraft.report.extras import needs
from fedcraft.report.groups import Entry, Judge, Problem, group
from fedcraft.report.ranks import METRICS
from fedcraft.report.render import latex, markdown
from fedcraft.report.runs import RunData
from fedcraft.report.series import conflicts_per_round

with needs("pandas"):
    import pandas as pd

__all__ = ["render", "summary"]


def summary(runs: Iterable[RunData], judge: Judge | None = None) -> pd.DataFrame:
    """One row per problem and method, at the setting with the best final mean accuracy.

    Columns: ``problem, dataset, model, method, label``; the final ``mean, best10, worst10, std``
    averaged over seeds; ``mean_sd`` over seeds (NaN for one); ``conflicts_before`` (under the plain
    average) and ``conflicts`` (under the method's own step) per round; ``rounds`` (the last one at
    which all these seeds were evaluated), ``seeds`` (evaluated so far), ``settings`` (how many were
    tried), ``client_lr, server_lr``, ``state``; ``diverged`` (how many seeds ended in NaN or Inf:
    where there are any, the numbers are no result). ``chosen_on`` says whether validation or test
    data chose the setting; ``mean_on_test`` is the mean that test data choose. Validation data
    choose where there are some, unless ``judge`` is ``"test"``, as in the paper.
    """
    rows = [_row(problem, entry) for problem in group(runs, judge) for entry in problem.entries]
    return pd.DataFrame(rows)


def render(table: pd.DataFrame, format: str = "md", reference: pd.DataFrame | None = None) -> str:
    """Write a summary as ``md``, ``latex`` (booktabs) or ``csv``.

    The best value of each column is bold and the second best underlined (``**`` and ``_`` in
    Markdown); what diverged is named so and is neither. ``reference`` puts published numbers
    beside: a frame with ``method`` and any of ``mean, best10, worst10, std``; with ``dataset`` and
    ``model`` where several problems are shown.
    """
    if reference is not None:
        table = _beside(table, reference)
    if format == "md":
        return markdown(table)
    if format == "latex":
        return latex(table)
    if format == "csv":
        return str(table.to_csv(index=False))
    raise InputError(f"format should be 'md', 'latex' or 'csv', but is {format!r}.")


def _row(problem: Problem, entry: Entry) -> dict[str, Any]:
    setting = entry.chosen
    return {
        "problem": problem.title,
        "dataset": problem.config.get("dataset"),
        "model": problem.config.get("model"),
        "method": entry.name,
        "label": entry.label,
        **{metric: setting.final(metric) for metric in ("mean", "best10", "worst10", "std")},
        "mean_sd": setting.spread("mean"),
        "conflicts_before": conflicts_per_round(entry.runs, "average"),
        "conflicts": conflicts_per_round(entry.runs, "after"),
        "rounds": setting.rounds,
        "seeds": len(setting.seeds),
        "settings": len(entry.settings),
        "client_lr": setting.config.get("client_lr", math.nan),
        "server_lr": setting.config.get("server_lr", math.nan),
        "state": _state(setting.runs),
        "diverged": sum(run.diverged for run in setting.runs),
        "chosen_on": entry.judge,
        "mean_on_test": entry.best("test").final("mean"),
    }


def _state(runs: Iterable[RunData]) -> str:
    """The least finished state among the seeds."""
    states = {run.state for run in runs}
    order = ("failed", "running", "interrupted", "stopped", "unknown", "finished")
    return next((state for state in order if state in states), "unknown")


def _beside(table: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
    metrics = [m.key for m in METRICS if m.key in reference]
    if "method" not in reference or not metrics:
        raise InputError(
            "reference should have a column 'method' and some of mean, best10, worst10, std, "
            f"but has {list(reference.columns)}."
        )
    keys = [key for key in ("dataset", "model", "method") if key in reference]
    published = reference[keys + metrics].copy()
    published["method"] = published["method"].str.lower()
    published = published.rename(columns={metric: f"{metric}_reference" for metric in metrics})
    left = table.assign(method=table["method"].str.lower())
    merged = left.merge(published.drop_duplicates(keys), on=keys, how="left")
    return merged.assign(method=table["method"].to_numpy())
