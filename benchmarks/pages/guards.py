"""The tables of docs/guards.md."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.pages.markdown import table
from fedcraft.runs import Run
from fedcraft.studies.reproduce import from_results

__all__ = ["guards_blocks"]

_HEADS = (
    *("attack", "hostile", "method", "seeds", "mean", "worst 10 %"),
    *("hostile left out", "honest left out", "backdoor"),
)
_LIARS = {
    "nobody": "nobody hostile",
    "flip": "flip",
    "hundredfold": "×100",
    "claim": "claims 10⁹",
    "modest claim": "claims 30,000",
}
_LEFT_OUT = {"nobody": "honest", "flip": "hostile"}  # whose share is worth a column


def guards_blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks of the page."""
    found = json.loads((results / "benchmarks" / "guard-digits.json").read_text(encoding="utf-8"))
    return {"robustness": _study_table("robustness", results), "digits": _digits_table(found)}


def _digits_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean accuracy, and who was left out how often, by guard and by what the liar does."""
    groups: dict[tuple[Any, ...], dict[str, list[Mapping[str, Any]]]] = {}
    for row in sorted(rows, key=lambda row: (row["clients"], row["rounds"])):
        key = (row["clients"], row["rounds"], f"`{row['guard']}`")
        groups.setdefault(key, defaultdict(list))[row["liar"]].append(row)
    heads = ["clients", "rounds", "guard"]
    for liar, name in _LIARS.items():
        heads += [name, f"{_LEFT_OUT[liar]} left out"] if liar in _LEFT_OUT else [name]
    return table(heads, ([*key, *_digits_cells(group)] for key, group in groups.items()))


def _digits_cells(group: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    for liar in _LIARS:
        found = group.get(liar, ())
        yield f"{fmean(row['accuracy'] for row in found):.3f}" if found else "–"
        if liar in _LEFT_OUT:
            yield _share(found, "left_out", _LEFT_OUT[liar])


def _study_table(name: str, results: Path) -> str:
    """Every attack and method that is stored: accuracy, and who was left out how often."""
    groups: dict[tuple[str, float, str], list[Run]] = defaultdict(list)
    for run in from_results(name, results).result.runs:
        attack = run.values.get("attack", {})
        key = (str(attack.get("name", "none")), float(attack.get("share", 0)), run.method)
        groups[key].append(run)
    ordered = sorted(groups, key=lambda key: (key[1], key[0] != "none", key[0], key[2]))
    return table(_HEADS, (_row(key, groups[key]) for key in ordered))


def _row(key: tuple[str, float, str], runs: Sequence[Run]) -> list[str]:
    attack, share, method = key
    last = [run.records[-1] for run in runs]
    scores = [f"{fmean(run.final(metric) for run in runs):.3f}" for metric in ("mean", "worst10")]
    left_out = [_share(last, "left_out_shares", kind) for kind in ("hostile", "honest")]
    doors = [record["backdoor"] for record in last if record.get("backdoor") is not None]
    door = f"{fmean(doors):.3f}" if doors else "–"
    return [attack, f"{share:.0%}", f"`{method}`", str(len(runs)), *scores, *left_out, door]


def _share(records: Sequence[Mapping[str, Any]], name: str, kind: str) -> str:
    shares = [(record.get(name) or {}).get(kind) for record in records]
    known = [share for share in shares if share is not None]
    return f"{fmean(known):.0%}" if known else "–"
