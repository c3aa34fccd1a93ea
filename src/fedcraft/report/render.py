"""The paper's table, and the differences to a baseline, as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedcraft.errors import InputError
from fedcraft.runs import Run
from fedcraft.runs.run import load_pandas
from fedcraft.runs.select import Judge, group
from fedcraft.runs.summary import (
    METRICS,
    Metric,
    gain_place,
    gain_text,
    interval_text,
    marks,
    note,
    one_seed,
    places,
    rows,
    spread,
)
from fedcraft.runs.tables import csv_text

if TYPE_CHECKING:
    import pandas as pd

Rows = Sequence[Mapping[str, Any]]
Column = tuple[str, Metric]
"""The key of a column and the metric that it is about: ``mean_reference`` is about the mean."""

_PUBLISHED, _GAIN = "_reference", "_gain"
_LATEX_SPECIAL = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {c: f"{{{c}}}" for c in "*[]"}  # the end of the row above takes them for its options
    | {"<": r"\textless{}", ">": r"\textgreater{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)
_MARKDOWN_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|*_`<>[]"})


def summary(
    runs: Iterable[Run], judge: Judge | None = None, baseline: str | None = None
) -> pd.DataFrame:
    """Return one row per problem and method: see :func:`fedcraft.runs.summary.rows`.

    Validation data choose the setting where there are some, unless ``judge`` is ``"test"``, as in
    the paper. Differences are to ``baseline``, FedAvg if none is named.
    """
    frame: pd.DataFrame = load_pandas().DataFrame(rows(group(runs, judge), baseline))
    return frame


def render(
    table: pd.DataFrame | Rows,
    format: str = "md",
    reference: pd.DataFrame | Rows | None = None,
    *,
    intervals: bool = True,
) -> str:
    """Write a summary, a frame or the rows of it, as ``md``, ``latex`` (booktabs) or ``csv``.

    A number is bold only if the interval says that it is better than all others; those that may be
    the best are underlined (``**`` and ``_`` in Markdown). Diverged methods are marked and not
    ranked, and numbers after different rounds are not ranked against each other. With
    ``intervals``, each number has its 95 % interval, and further columns the differences to the
    baseline; CSV always contains them. ``reference`` adds published numbers, best bold and second
    best underlined: it has ``method`` and any of ``mean, best10, worst10, std``; ``dataset`` and
    ``model`` where several problems are shown.
    """
    lines = _rows(table)
    if reference is not None:
        lines = _beside(lines, _rows(reference))
    if format == "csv":
        return _csv(lines)
    writers = {"md": _markdown, "latex": _latex}
    if format not in writers:
        raise InputError(f"format should be 'md', 'latex' or 'csv', but is {format!r}.")
    parts = _by_problem(lines)
    return writers[format]({title: _Part(part, intervals) for title, part in parts.items()})


def _rows(table: pd.DataFrame | Rows) -> Rows:
    if isinstance(table, Sequence):
        return table
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _beside(rows: Rows, reference: Rows) -> Rows:
    """Add the published numbers of each method as ``mean_reference`` and so on."""
    known = list(dict.fromkeys(key for row in reference for key in row))
    metrics = [metric.key for metric in METRICS if metric.key in known]
    if "method" not in known or not metrics:
        raise InputError(
            "reference should have a column 'method' and some of mean, best10, worst10, std, "
            f"but has {known}."
        )
    keys = [key for key in ("dataset", "model", "method") if key in known]
    published = {_place(row, keys): row for row in reversed(reference)}
    return [
        {**row, **{f"{m}{_PUBLISHED}": theirs.get(m, math.nan) for m in metrics}}
        for row in rows
        for theirs in (published.get(_place(row, keys), {}),)
    ]


def _place(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(row[key]).lower() if key == "method" else str(row[key]) for key in keys)


def _csv(rows: Rows) -> str:
    names = list(rows[0]) if rows else []
    return csv_text([names, *([_blank_nan(row.get(name, "")) for name in names] for row in rows)])


def _blank_nan(value: object) -> object:
    return "" if isinstance(value, float) and math.isnan(value) else value


def _by_problem(rows: Rows) -> dict[str, Rows]:
    titles = dict.fromkeys(str(row["problem"]) for row in rows)
    return {title: [row for row in rows if row["problem"] == title] for title in titles}


@dataclass(frozen=True)
class _Part:
    """The rows of one problem, and the columns and cells that are shown of them."""

    rows: Rows
    intervals: bool

    @cached_property
    def columns(self) -> list[Column]:
        """Each metric that has a number, its published counterpart, the gains on the baseline."""
        keys = [(key, m) for m in METRICS for key in (m.key, f"{m.key}{_PUBLISHED}")]
        if self.intervals:
            keys += [(f"{m.key}{_GAIN}", m) for m in METRICS]
        known = [{k for k, v in row.items() if isinstance(v, (int, float)) and math.isfinite(v)}
                 for row in self.rows]  # fmt: skip
        return [(key, m) for key, m in keys if any(key in row for row in known)]

    @property
    def headings(self) -> list[str]:
        """The headings of the columns."""
        return [self._heading(key, metric) for key, metric in self.columns]

    def _heading(self, key: str, metric: Metric) -> str:
        if key.endswith(_PUBLISHED):
            return f"{metric.heading} (published)"
        if key.endswith(_GAIN):
            baseline = self.rows[0].get("baseline")
            labels = (str(row["label"]) for row in self.rows if row["method"] == baseline)
            return f"{metric.heading} − {next(labels, '')}"
        return f"{metric.heading} {'↑' if metric.higher_is_better else '↓'}"

    @property
    def note(self) -> str:
        """The reservations that belong below the table."""
        return " ".join(filter(None, [note(self.rows), one_seed(self.rows)]))

    def grid(self, mark: Callable[[str, int, str], str]) -> list[list[str]]:
        """The cells, row by row; ``mark`` writes a number, its place and what stands beside it."""
        columns = [self._cells(key, metric, mark) for key, metric in self.columns]
        return [[column[number] for column in columns] for number in range(len(self.rows))]

    def _cells(self, key: str, m: Metric, mark: Callable[[str, int, str], str]) -> list[str]:
        if key.endswith(_GAIN):
            return [mark(gain_text(r, m) or "–", gain_place(r, m), "") for r in self.rows]
        if key.endswith(_PUBLISHED):  # ranked even where ours diverged
            ranked = places([row[key] for row in self.rows], m)
            return [mark(m.text(r[key]), p, "") for r, p in zip(self.rows, ranked, strict=True)]
        ranked = marks(self.rows, m)
        return [
            mark(m.text(row[key]), place, self._beside(row, m))
            for row, place in zip(self.rows, ranked, strict=True)
        ]

    def _beside(self, row: Mapping[str, Any], metric: Metric) -> str:
        over_seeds = f"± {spread(row)}" if metric.key == "mean" and spread(row) else ""
        covered = interval_text(row, metric) if self.intervals else ""
        return " ".join(filter(None, [over_seeds, covered]))


def _markdown(parts: Mapping[str, _Part]) -> str:
    """One table per problem: ``**best**``, ``_one of the best_``."""
    return "\n".join(_markdown_block(title, part) for title, part in parts.items())


def _latex(parts: Mapping[str, _Part]) -> str:
    """The paper's layout: methods down, a group of columns for each problem (needs booktabs)."""
    rows = [row for part in parts.values() for row in part.rows]
    cells = {title: part.grid(_latex_mark) for title, part in parts.items()}
    labels = {row["method"]: row["label"] for row in reversed(rows)}
    lines = [
        " & ".join([_latex_label(labels[method], method, parts), *_latex_row(method, parts, cells)])
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    notes = [f"% {title}: {part.note}" for title, part in parts.items() if part.note]
    body = [*(line + r" \\" for line in lines), r"\bottomrule", r"\end{tabular}", *notes, ""]
    return "\n".join([*_latex_head(parts), *body])


def _escaped(text: str, special: dict[int, str]) -> str:
    """Escape text so that it neither ends its row nor acts as markup."""
    return "".join(c if c.isprintable() else " " for c in text).translate(special)


def _markdown_mark(text: str, place: int, beside: str) -> str:
    marked = {1: f"**{text}**", 2: f"_{text}_"}.get(place, text)
    return f"{marked} {beside}" if beside else marked


def _latex_mark(text: str, place: int, beside: str) -> str:
    text = text.replace("–", "--")
    marked = {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(place, text)
    small = beside.replace("±", r"$\pm$")
    return rf"{marked} {{\scriptsize {small}}}" if beside else marked


def _markdown_block(title: str, part: _Part) -> str:
    heads = [*map(_markdown_text, ["Method", *part.headings, "Rounds"])]
    lines = [
        [_markdown_label(row), *cells, str(row["rounds"])]
        for row, cells in zip(part.rows, part.grid(_markdown_mark), strict=True)
    ]
    rule = [":--", *["--:"] * (len(heads) - 1)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *lines))
    below = f"\n{part.note}\n" if part.note else ""
    return f"**{_markdown_text(title)}**\n\n{body}\n{below}"


def _markdown_text(text: str) -> str:
    return _escaped(text, _MARKDOWN_SPECIAL)


def _markdown_label(row: Mapping[str, Any]) -> str:
    return _markdown_text(row["label"]) + (" (diverged)" if row["diverged"] else "")


def _latex_label(label: str, method: str, parts: Mapping[str, _Part]) -> str:
    """The label of a row over all problems, with those where the method diverged."""
    lost = [
        title
        for title, part in parts.items()
        if any(row["method"] == method and row["diverged"] for row in part.rows)
    ]
    where = f" on {', '.join(lost)}" if len(parts) > 1 else ""
    return _escaped(f"{label} (diverged{where})" if lost else label, _LATEX_SPECIAL)


def _latex_row(
    method: str, parts: Mapping[str, _Part], cells: Mapping[str, list[list[str]]]
) -> Iterator[str]:
    for title, part in parts.items():
        where = [number for number, row in enumerate(part.rows) if row["method"] == method]
        yield from cells[title][where[0]] if where else ["--"] * len(part.columns)


def _latex_head(parts: Mapping[str, _Part]) -> list[str]:
    heads, spans, rules, first = ["Algorithm"], [""], [], 2
    for title, part in parts.items():
        last = first + len(part.columns) - 1
        span = _escaped(title, _LATEX_SPECIAL)
        spans.append(rf"\multicolumn{{{len(part.columns)}}}{{c}}{{{span}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
        heads += _latex_headings(part)
        first = last + 1
    return [
        rf"\begin{{tabular}}{{l{'c' * (len(heads) - 1)}}}",
        r"\toprule",
        " & ".join(spans) + r" \\",
        " ".join(rules),
        " & ".join(heads) + r" \\",
        r"\midrule",
    ]


def _latex_headings(part: _Part) -> list[str]:
    arrows = {"↑": r"($\uparrow$)", "↓": r"($\downarrow$)", "−": "$-$"}
    heads = [_escaped(head, _LATEX_SPECIAL) for head in part.headings]
    return ["".join(arrows.get(character, character) for character in head) for head in heads]
