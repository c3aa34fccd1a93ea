"""What hostile clients do to each method: one row per attack, share and method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedcraft.runs import Run


@dataclass(frozen=True)
class AttackRow:
    """A method under one attack, as means over the runs; None where nothing was measured."""

    attack: str  # "none" where nobody is hostile
    share: float  # of all clients
    method: str
    seeds: int
    mean: float
    worst10: float
    hostile_left_out: float | None  # the share of hostile updates that a guard left out
    honest_left_out: float | None
    backdoor: float | None  # the share of patched images that pass for the attacker's class


def attack_rows(runs: Iterable[Run]) -> list[AttackRow]:
    """Return the rows of the finished runs: nobody hostile first, then by share and attack."""
    groups: dict[tuple[float, bool, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        attack = run.values.get("attack", {})
        name, share = str(attack.get("name", "none")), float(attack.get("share", 0))
        if run.done:
            groups[share, name != "none", name, run.method].append(run)
    return [_row(*key, groups[key]) for key in sorted(groups)]


def _row(share: float, _: bool, attack: str, method: str, runs: Sequence[Run]) -> AttackRow:
    last = [run.records[-1] for run in runs]
    left_out: dict[str, Any] = {
        kind: _mean((record.get("left_out_shares") or {}).get(kind) for record in last)
        for kind in ("hostile", "honest")
    }
    return AttackRow(
        attack,
        share,
        method,
        len(runs),
        fmean(run.final("mean") for run in runs),
        fmean(run.final("worst10") for run in runs),
        left_out["hostile"],
        left_out["honest"],
        _mean(record.get("backdoor") for record in last),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
