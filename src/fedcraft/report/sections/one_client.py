"""One client at a time: accuracy by round, conflicts by round and layer, data, under each method.

The split of the data numbers the clients, so runs are grouped by seed and split: client 7 of one
group is not client 7 of another. A long study would make the page heavy, so at most
:data:`MOST_VALUES` accuracies and as many cosines are written; ``notes`` says what was left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedcraft.report.extras import needs
from fedcraft.report.names import class_names, layer_title
from fedcraft.report.packing import packed, shares
from fedcraft.report.series import thin
from fedcraft.runs import Run
from fedcraft.runs.select import Problem

with needs("pandas"):
    import pandas as pd

MOST_VALUES = 600_000
_WHOLE = "all"
_COSINE_STEPS = 100


@dataclass(frozen=True)
class _Member:
    """The run of one method in one group."""

    method: str
    run: Run

    @cached_property
    def accuracies(self) -> pd.DataFrame:
        """Test accuracy: clients down, evaluated rounds across."""
        table = self.run.frame("clients")
        if "metric" not in table.columns:
            return pd.DataFrame()
        found = table[(table["split"] == "test") & (table["metric"] == "accuracy")]
        return found.pivot_table(index="client", columns="round", values="value", aggfunc="last")

    @cached_property
    def cosines(self) -> pd.DataFrame:
        """Cosine with the step: rows by round and client, layers across, the whole model last."""
        table = self.run.frame("cosines")
        if "cosine" not in table.columns or table.empty:
            return pd.DataFrame()
        grid = table.pivot_table(
            index=["round", "client"], columns="layer", values="cosine", sort=False, aggfunc="last"
        )
        layers = [layer for layer in grid.columns if layer != _WHOLE]
        return grid[[*layers, _WHOLE]].sort_index()


@dataclass(frozen=True)
class _Group:
    """The runs of one seed over one split, one of each method."""

    members: tuple[_Member, ...]

    @cached_property
    def clients(self) -> list[int]:
        """Every client that was evaluated, holds data or took part."""
        tables = [member.accuracies.index for member in self.members]
        held = label_counts(self.members[0].run).index
        return sorted({int(client) for table in (*tables, held) for client in table})


def client_groups(problem: Problem) -> list[dict[str, Run]]:
    """Return the runs of each group by method, in the order of the seeds."""
    found: dict[tuple[int, str], dict[str, Run]] = {}
    for entry in problem.entries:
        for run in entry.runs:
            found.setdefault((run.seed, str(run.split_hash)), {})[entry.name] = run
    return [found[key] for key in sorted(found)]


def client_view(problem: Problem) -> dict[str, Any] | None:
    """What the page shows of a client, for every group of comparable runs."""
    groups = [
        _Group(tuple(_Member(method, run) for method, run in runs.items()))
        for runs in client_groups(problem)
    ]
    if not any(group.clients for group in groups):
        return None
    most = _most_rounds(groups)
    layers, pairs = _most_layers(groups)
    return {
        "groups": [_group_view(group, most, layers, pairs) for group in groups],
        "notes": list(filter(None, [_note_rounds(groups, most), _note_layers(layers, pairs)])),
        "recorded": _recorded(groups),
    }


def _members(groups: Iterable[_Group]) -> list[_Member]:
    return [member for group in groups for member in group.members]


def _most_rounds(groups: Sequence[_Group]) -> int:
    """The evaluations of each run that fit on the page."""
    clients = sum(len(member.accuracies) for member in _members(groups))
    return max(2, MOST_VALUES // max(1, clients))


def _most_layers(groups: Sequence[_Group]) -> tuple[bool, bool]:
    """Whether cosines by layer fit on the page, and whether those of the whole model do."""
    tables = [member.cosines for member in _members(groups)]
    values = sum(table.size for table in tables)
    return values <= MOST_VALUES, sum(map(len, tables)) <= MOST_VALUES


def _note_rounds(groups: Sequence[_Group], most: int) -> str:
    evaluated = max(member.accuracies.shape[1] for member in _members(groups))
    if evaluated <= most:
        return ""
    return f"To keep the page small, it has {most} of {evaluated} evaluations of single clients."


def _note_layers(layers: bool, pairs: bool) -> str:
    if layers:
        return ""
    left = "has the cosines of single clients for the whole model only, not by layer"
    none = "has no cosines of single clients"
    return f"To keep the page small, it {left if pairs else none}; cosines.csv has all of them."


def _recorded(groups: Sequence[_Group]) -> str:
    """In which rounds the cosines of single clients were written."""
    shown = [member for member in _members(groups) if len(member.cosines)]
    if not shown:
        return (
            "The runs hold no cosines of single clients: they are stored results, come from an "
            "earlier version, or have diagnostics_every = 0."
        )
    counts = Counter(_written(member) for member in shown)
    (layered, rounds, of), _ = counts.most_common(1)[0]
    if layered == of:
        return "Cosines were written in every round."
    every = shown[0].run.values.get("diagnostics_every", "?")
    when = f"in {layered} of {of} rounds: every {every} rounds (diagnostics_every), at evaluations"
    if rounds == of:
        return f"The whole model was written in every round, layers {when}; the rest is blank."
    return f"Cosines were written {when}. What happened in between is not shown."


def _written(member: _Member) -> tuple[int, int, int]:
    """The rounds with cosines by layer, those with any, and all rounds of a run."""
    table = member.cosines
    layers = [layer for layer in table.columns if layer != _WHOLE] or [_WHOLE]
    rounds = table.index.get_level_values("round")
    layered = rounds[table[layers].notna().any(axis=1)]
    return layered.nunique(), rounds.nunique(), member.run.last_round


def _group_view(group: _Group, most: int, layers: bool, pairs: bool) -> dict[str, Any]:
    run = group.members[0].run
    owners = run.names("owners")
    return {
        "seed": run.seed,
        "clients": packed(group.clients),
        "names": [owners.get(client, "") for client in group.clients] if owners else [],
        **_data_view(run, group),
        "methods": {
            member.method: _member_view(member, group.clients, most, layers, pairs)
            for member in group.members
        },
    }


def _data_view(run: Run, group: _Group) -> dict[str, Any]:
    """Samples to train and to test on, and how often each label occurs."""
    test = _test_sizes(run).reindex(group.clients)
    counts, names = label_counts(run).reindex(group.clients, fill_value=0), class_names(run)
    if not counts.columns.size:
        return {"test": packed(test), "labels": [], "counts": None}
    return {
        "test": packed(test),
        "labels": [names.get(label, str(label)) for label in counts.columns],
        "counts": packed(counts.to_numpy()),
    }


def label_counts(run: Run) -> pd.DataFrame:
    """How often each label (columns) occurs at each client (rows); empty if nobody knows."""
    found = run.frame("labels")
    if not {"client", "label", "count"} <= set(found.columns):
        return pd.DataFrame()
    return found.pivot_table(
        index="client", columns="label", values="count", aggfunc="sum", fill_value=0
    ).sort_index()


def _test_sizes(run: Run) -> pd.Series:
    table = run.frame("clients")
    if "n" not in table.columns:
        return pd.Series(dtype=float)
    tested = table[(table["split"] == "test") & (table["metric"] == "accuracy")]
    return tested.drop_duplicates("client", keep="last").set_index("client")["n"].astype(float)


def _member_view(
    member: _Member, clients: list[int], most: int, layers: bool, pairs: bool
) -> dict[str, Any]:
    shown = thin(member.accuracies.T, most).T.reindex(clients)
    part = Counter(
        client for record in member.run.records for client in record.get("clients") or ()
    )
    view: dict[str, Any] = {
        "rounds": [int(number) for number in shown.columns],
        "accuracy": shares(shown.to_numpy()),
        "last_round": member.run.last_round,
    }
    if part:
        view["part"] = packed([part[client] for client in clients])
    if pairs and len(member.cosines):
        table = member.cosines if layers else member.cosines[[_WHOLE]]
        view["cosines"] = _cosine_view(table, member.run, clients)
    return view


def _cosine_view(table: pd.DataFrame, run: Run, clients: list[int]) -> dict[str, Any]:
    place = {client: index for index, client in enumerate(clients)}
    known = table[table.index.get_level_values("client").isin(clients)]
    names = run.names("layers")
    # A cosine below zero stays below zero: the sign is what makes a conflict.
    scaled = known.to_numpy() * _COSINE_STEPS
    away = np.where(scaled < 0, np.floor(scaled), np.round(scaled))
    return {
        "layers": [layer_title(layer, names) for layer in known.columns],
        "rounds": packed(known.index.get_level_values("round")),
        "clients": packed([place[c] for c in known.index.get_level_values("client")]),
        "values": packed(away + _COSINE_STEPS),
    }
