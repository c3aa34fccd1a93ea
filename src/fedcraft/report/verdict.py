"""The result in one or two sentences, computed from the numbers and no more certain than they."""

from __future__ import annotations

from fedcraft.report.extras import needs
from fedcraft.report.groups import Problem
from fedcraft.report.ranks import METRICS
from fedcraft.report.series import curve

with needs("pandas"):
    import pandas as pd

__all__ = ["verdict"]

_MOST_NAMES = 3


def verdict(problem: Problem, table: pd.DataFrame) -> str:
    """Who has the best mean and the best worst tenth, by how much, and how sure that is."""
    lost = table["diverged"] > 0
    evaluated = table[~lost].dropna(subset=["mean"])
    ranked = evaluated.sort_values("mean", ascending=False, kind="stable")
    said = [_result(problem, ranked), _diverged(table.loc[lost, "label"].tolist())]
    return " ".join(filter(None, said)) or "No evaluation has been written yet."


def _result(problem: Problem, ranked: pd.DataFrame) -> str:
    if ranked.empty:
        return ""
    if len(ranked) == 1:
        return _alone(ranked.iloc[0])
    return " ".join(filter(None, [_best(ranked), _tail(ranked), _caution(problem, ranked)]))


def _diverged(names: list[str]) -> str:
    return f"{_listed(names)} diverged." if names else ""


def _alone(row: pd.Series) -> str:
    return (
        f"{row['label']} reaches a mean accuracy of {row['mean']:.3f} "
        f"after {row['rounds']} rounds; its worst tenth of the clients has {row['worst10']:.3f}."
    )


def _best(ranked: pd.DataFrame) -> str:
    value, leaders = _leaders(ranked, "mean")
    if len(leaders) > 1:
        return f"{_listed(leaders)} share the best mean, {value:.3f}."
    second, rivals = _leaders(ranked.iloc[1:], "mean")
    return (
        f"{leaders[0]} has the best mean accuracy, {value:.3f}, "
        f"{value - second:.3f} above {_listed(rivals)}."
    )


def _tail(ranked: pd.DataFrame) -> str:
    tails = ranked.dropna(subset=["worst10"])
    if tails.empty:
        return ""
    value, leaders = _leaders(tails, "worst10")
    if len(leaders) == len(tails):
        return f"All methods leave the worst tenth of the clients at {value:.3f}."
    one = len(leaders) == 1
    known = leaders == _leaders(ranked, "mean")[1]
    who = _listed(leaders) if not known else "It also" if one else "They also"
    return f"{who} {'has' if one else 'have'} the best worst tenth of the clients, {value:.3f}."


def _leaders(table: pd.DataFrame, key: str) -> tuple[float, list[str]]:
    """The largest value as it is written, and the names of all who have it."""
    metric = next(metric for metric in METRICS if metric.key == key)
    written = table[key].map(metric.written)
    return float(written.max()), table.loc[written == written.max(), "label"].tolist()


def _listed(names: list[str]) -> str:
    if len(names) > _MOST_NAMES:
        return f"{names[0]} and {len(names) - 1} others"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _caution(problem: Problem, ranked: pd.DataFrame) -> str:
    """What a careful reader would object: unfinished runs, one seed, a gap within the noise."""
    if ranked["rounds"].nunique() > 1:
        few, many = ranked["rounds"].min(), ranked["rounds"].max()
        return f"The methods stand at different rounds ({few} to {many}): no fair comparison yet."
    if (ranked["state"] == "running").any():
        return "Some runs are still going on: this is the state so far."
    top = ranked.head(2)
    once = top.loc[top["mean_sd"].isna(), "label"].tolist()
    if once:
        who = "One seed each" if len(once) == len(top) else f"{once[0]} has one seed"
        return f"{who}: small gaps may be chance."
    return _lead(problem, ranked)


def _lead(problem: Problem, ranked: pd.DataFrame) -> str:
    """Whether the lead is larger than the noise, and how early it was there; nothing if none."""
    if len(_leaders(ranked, "mean")[1]) > 1:
        return ""
    first, second = ranked.iloc[0], ranked.iloc[1]
    noise = float(ranked["mean_sd"].head(2).max())
    if first["mean"] - second["mean"] < noise:
        return f"The seeds differ by {noise:.3f}, so the lead in the mean may be chance."
    return _sooner(problem, str(first["method"]), float(second["mean"]))


def _sooner(problem: Problem, method: str, level: float) -> str:
    """After how many rounds the winner passed the runner-up's final mean."""
    entry = problem.entry(method)
    if entry is None:
        return ""
    rounds = curve(entry.chosen, "mean")["mean"]
    passed = rounds[rounds >= level]
    if passed.empty or passed.index[0] == rounds.index[-1]:
        return ""
    return f"{entry.label} passed the runner-up's final mean after round {int(passed.index[0])}."
