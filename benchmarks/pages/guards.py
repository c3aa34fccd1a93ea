"""The tables of docs/guards.md."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.pages.markdown import table
from fedcraft.studies.reproduce import from_results
from fedcraft.studies.robustness import AttackRow, attack_rows

__all__ = ["guards_blocks"]

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
    return {"robustness": _study_tables("robustness", results), "digits": _digits_table(found)}


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


def _study_tables(name: str, results: Path) -> str:
    """Two tables: accuracy under every attack, and whom the guards left out."""
    rows = attack_rows(from_results(name, results).result.runs)
    return f"{_accuracy_table(rows)}\n\n{_left_out_table(rows)}"


def _accuracy_table(rows: Sequence[AttackRow]) -> str:
    """Mean and worst tenth: a line per attack, a column per method."""
    methods = list(dict.fromkeys(row.method for row in rows if not row.share))
    most = max(row.seeds for row in rows)
    lines = []
    for attack, cells in _by_attack(rows):
        shown = [cells.get(method) for method in methods]
        lines.append([*attack, *("" if row is None else _accuracy(row, most) for row in shown)])
    return table(["attack", "hostile", *(f"`{method}`" for method in methods)], lines)


def _accuracy(row: AttackRow, seeds: int) -> str:
    fewer = "" if row.seeds == seeds else f" [{row.seeds}]"
    return f"{row.mean:.3f} ({row.worst10:.3f}){fewer}"


def _left_out_table(rows: Sequence[AttackRow]) -> str:
    """Shares of the hostile and of the honest updates, and the backdoor's success."""
    methods = list(dict.fromkeys(row.method for row in rows if row.honest_left_out is not None))
    lines = []
    for attack, cells in _by_attack(rows):
        shown = [cells.get(method) for method in methods]
        if any(shown):
            lines.append([*attack, *map(_left_out, shown)])
    heads = ["hostile / honest left out", "hostile", *(f"`{method}`" for method in methods)]
    return table(heads, lines)


def _by_attack(
    rows: Sequence[AttackRow],
) -> Iterator[tuple[tuple[str, str], dict[str, AttackRow]]]:
    groups: dict[tuple[str, str], dict[str, AttackRow]] = {}
    for row in rows:
        groups.setdefault((row.attack, f"{row.share:.0%}"), {})[row.method] = row
    yield from groups.items()


def _left_out(row: AttackRow | None) -> str:
    if row is None or row.honest_left_out is None:
        return ""
    hostile = "–" if row.hostile_left_out is None else f"{row.hostile_left_out:.0%}"
    door = "" if row.backdoor is None else f", backdoor {row.backdoor:.0%}"
    return f"{hostile} / {row.honest_left_out:.0%}{door}"


def _share(records: Sequence[Mapping[str, Any]], name: str, kind: str) -> str:
    shares = [(record.get(name) or {}).get(kind) for record in records]
    known = [share for share in shares if share is not None]
    return f"{fmean(known):.0%}" if known else "–"
