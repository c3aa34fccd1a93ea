"""The result in one or two sentences, computed from the numbers and no more certain than they."""

from __future__ import annotations

from fedcraft.report.extras import needs
from fedcraft.report.groups import Problem
from fedcraft.report.series import curve

with needs("pandas"):
    import pandas as pd

__all__ = ["verdict"]


def verdict(problem: Problem, table: pd.DataFrame) -> str:
    """Who has the best mean and the best worst tenth, by how much, and how sure that is."""
    ranked = table.dropna(subset=["mean"]).sort_values("mean", ascending=False)
    if ranked.empty:
        return "No evaluation has been written yet."
    if len(ranked) == 1:
        return _alone(ranked.iloc[0])
    return " ".join([_best(ranked), _tail(ranked), _caution(problem, ranked)]).strip()


def _alone(row: pd.Series) -> str:
    return (
        f"{row['label']} reaches a mean accuracy of {row['mean']:.3f} "
        f"after {row['rounds']} rounds; its worst tenth of the clients has {row['worst10']:.3f}."
    )


def _best(ranked: pd.DataFrame) -> str:
    first, second = ranked.iloc[0], ranked.iloc[1]
    gap = first["mean"] - second["mean"]
    if round(gap, 3) == 0:
        return f"{first['label']} and {second['label']} share the best mean, {first['mean']:.3f}."
    return (
        f"{first['label']} has the best mean accuracy, {first['mean']:.3f}, "
        f"{gap:.3f} above {second['label']}."
    )


def _tail(ranked: pd.DataFrame) -> str:
    tails = ranked.dropna(subset=["worst10"]).sort_values("worst10", ascending=False)
    if tails.empty:
        return ""
    first = tails.iloc[0]
    who = "It also has" if first["label"] == ranked.iloc[0]["label"] else f"{first['label']} has"
    tied = tails[tails["worst10"].round(3) == round(first["worst10"], 3)]
    if len(tied) == len(tails):
        return f"All methods leave the worst tenth of the clients at {first['worst10']:.3f}."
    return f"{who} the best worst tenth of the clients, {first['worst10']:.3f}."


def _caution(problem: Problem, ranked: pd.DataFrame) -> str:
    """What a careful reader would object: unfinished runs, one seed, a gap within the noise."""
    if ranked["rounds"].nunique() > 1:
        few, many = ranked["rounds"].min(), ranked["rounds"].max()
        return f"The methods stand at different rounds ({few} to {many}): no fair comparison yet."
    if (ranked["state"] == "running").any():
        return "Some runs are still going on: this is the state so far."
    first, second = ranked.iloc[0], ranked.iloc[1]
    if ranked["seeds"].max() == 1:
        return "One seed each: small gaps may be chance."
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
