"""Suspects: clients that pull against the others, round after round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedcraft.report.extras import needs
from fedcraft.runs import Run
from fedcraft.runs.select import Problem

with needs("pandas"):
    import pandas as pd

_SEEN = 2  # rounds: one alone says nothing
_SHARE = 0.5  # of the rounds of a client in which a guard left it out
_AGAINST = -0.1  # mean cosine with the others
_MOST = 10
_COLUMNS = ["round", "client", "agreement", "influence", "left_out"]


def suspects(problem: Problem) -> list[dict[str, Any]]:
    """The most conspicuous clients of every method's first run, the worst first."""
    return [
        {"method": entry.label, **client}
        for entry in problem.entries
        for client in _of_run(entry.runs[0])[:_MOST]
    ]


def _of_run(run: Run) -> list[dict[str, Any]]:
    table = run.frame("cohorts")
    if table.empty or not set(_COLUMNS) <= set(table.columns):
        return []
    rounds: Counter[Any] = Counter(
        client for record in run.records for client in record.get("clients", ())
    )
    names: Mapping[Any, str] = run.names("owners")
    found = [
        {**_client(rows, rounds[client]), "client": names.get(client, str(client))}
        for client, rows in table.groupby("client")
    ]
    return sorted(filter(_conspicuous, found), key=lambda row: (-row["share"], row["agreement"]))


def _client(rows: pd.DataFrame, rounds: int) -> dict[str, Any]:
    measured = rows.dropna(subset=["agreement"])
    reasons = rows["left_out"].dropna()
    agreement = measured["agreement"].mean() if len(measured) else 0.0
    influence = measured["influence"].mean()
    return {
        "rounds": rounds,
        "measured": len(measured),
        "left_out": len(reasons),
        "share": len(reasons) / max(rounds, 1),
        "agreement": float(agreement),
        "influence": None if pd.isna(influence) else float(influence),
        "reason": str(reasons.iloc[-1]) if len(reasons) else "",
    }


def _conspicuous(row: dict[str, Any]) -> bool:
    often = row["left_out"] >= _SEEN and row["share"] >= _SHARE
    against = row["measured"] >= _SEEN and row["agreement"] < _AGAINST
    return bool(often or against)
