"""The paper's table as Markdown, LaTeX (booktabs) and CSV, best bold and second best underlined."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedcraft.errors import InputError
from fedcraft.runs import Run
from fedcraft.runs.run import load_pandas
from fedcraft.runs.select import Judge, group
from fedcraft.runs.summary import METRICS, Metric, marks, note, places, rows, spread

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["render", "summary"]

Rows = Sequence[Mapping[str, Any]]
Column = tuple[str, Metric]
"""The key of a column and the metric that it is about; ``mean_reference`` is about the mean."""

_PUBLISHED = "_reference"
_LATEX_SPECIAL = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {c: f"{{{c}}}" for c in "*[]"}  # the end of the row above takes them for its options
    | {"<": r"\textless{}", ">": r"\textgreater{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)
_MARKDOWN_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|*_`<>[]"})


def summary(runs: Iterable[Run], judge: Judge | None = None) -> pd.DataFrame:
    """Return one row per problem and method: see :func:`fedcraft.runs.summary.rows`.

    Validation data choose the setting where there are some, unless ``judge`` is ``"test"``, as in
    the paper.
    """
    frame: pd.DataFrame = load_pandas().DataFrame(rows(group(runs, judge)))
    return frame


def render(
    table: pd.DataFrame | Rows, format: str = "md", reference: pd.DataFrame | Rows | None = None
) -> str:
    """Write a summary, a frame or the rows of it, as ``md``, ``latex`` (booktabs) or ``csv``.

    The best value of each column is bold and the second best underlined (``**`` and ``_`` in
    Markdown). Diverged methods are marked and not ranked, and numbers after different rounds are
    not ranked against each other. ``reference`` adds published numbers: it has ``method``
    and any of ``mean, best10, worst10, std``; ``dataset`` and ``model`` where several problems are
    shown.
    """
    lines = _rows(table)
    if reference is not None:
        lines = _beside(lines, _rows(reference))
    writers = {"md": _markdown, "latex": _latex, "csv": _csv}
    if format not in writers:
        raise InputError(f"format should be 'md', 'latex' or 'csv', but is {format!r}.")
    return writers[format](lines)


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
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: "" if _is_nan(v) else v for k, v in row.items()} for row in rows)
    return text.getvalue()


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _markdown(rows: Rows) -> str:
    """One table per problem: ``**best**``, ``_second best_``."""
    return "\n".join(_markdown_block(title, part) for title, part in _by_problem(rows).items())


def _latex(rows: Rows) -> str:
    """The paper's layout: methods down, a group of columns for each problem (needs booktabs)."""
    parts = _by_problem(rows)
    groups = [_columns(part) for part in parts.values()]
    cells = {title: _grid(part, _latex_mark) for title, part in parts.items()}
    labels = {row["method"]: row["label"] for row in reversed(rows)}
    lines = [
        " & ".join([_latex_label(labels[method], method, parts), *_latex_row(method, parts, cells)])
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    notes = [f"% {title}: {text}" for title, part in parts.items() if (text := note(part))]
    body = [*(line + r" \\" for line in lines), r"\bottomrule", r"\end{tabular}", *notes, ""]
    return "\n".join([*_latex_head(list(parts), groups), *body])


def _by_problem(rows: Rows) -> dict[str, Rows]:
    titles = dict.fromkeys(str(row["problem"]) for row in rows)
    return {title: [row for row in rows if row["problem"] == title] for title in titles}


def _columns(part: Rows) -> list[Column]:
    """Each metric that has a number, followed by its published counterpart."""
    keys = [(key, m) for m in METRICS for key in (m.key, f"{m.key}{_PUBLISHED}")]
    return [(k, m) for k, m in keys if any(math.isfinite(row.get(k, math.nan)) for row in part)]


def _grid(part: Rows, mark: Callable[[str, int, str], str]) -> list[list[str]]:
    columns = [
        [
            mark(m.text(row[key]), place, spread(row) if key == "mean" else "")
            for row, place in zip(part, places_of, strict=True)
        ]
        for key, m in _columns(part)
        # Published numbers are ranked even where ours diverged.
        for places_of in (marks(part, m) if key == m.key else places([r[key] for r in part], m),)
    ]
    return [[column[number] for column in columns] for number in range(len(part))]


def _escaped(text: str, special: dict[int, str]) -> str:
    """Escape text so that it neither ends its row nor acts as markup."""
    return "".join(c if c.isprintable() else " " for c in text).translate(special)


def _markdown_mark(text: str, place: int, spread: str) -> str:
    marked = {1: f"**{text}**", 2: f"_{text}_"}.get(place, text)
    return f"{marked} ± {spread}" if spread else marked


def _latex_mark(text: str, place: int, spread: str) -> str:
    text = text.replace("–", "--")
    marked = {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(place, text)
    return rf"{marked} {{\scriptsize $\pm$ {spread}}}" if spread else marked


def _markdown_block(title: str, part: Rows) -> str:
    heads = ["Method", *(_heading(key, m, "↑", "↓") for key, m in _columns(part)), "Rounds"]
    lines = [
        [_markdown_label(row), *cells, str(row["rounds"])]
        for row, cells in zip(part, _grid(part, _markdown_mark), strict=True)
    ]
    rule = [":--", *["--:"] * (len(heads) - 1)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *lines))
    remark = note(part)
    below = f"\n{remark}\n" if remark else ""
    return f"**{_escaped(title, _MARKDOWN_SPECIAL)}**\n\n{body}\n{below}"


def _markdown_label(row: Mapping[str, Any]) -> str:
    return _escaped(row["label"], _MARKDOWN_SPECIAL) + (" (diverged)" if row["diverged"] else "")


def _heading(key: str, metric: Metric, up: str, down: str) -> str:
    if key.endswith(_PUBLISHED):
        return f"{metric.heading} (published)"
    return f"{metric.heading} {up if metric.higher_is_better else down}"


def _latex_label(label: str, method: str, parts: Mapping[str, Rows]) -> str:
    """The label of a row over all problems, with those where the method diverged."""
    lost = [
        title
        for title, part in parts.items()
        if any(row["method"] == method and row["diverged"] for row in part)
    ]
    where = f" on {', '.join(lost)}" if len(parts) > 1 else ""
    return _escaped(f"{label} (diverged{where})" if lost else label, _LATEX_SPECIAL)


def _latex_row(
    method: str, parts: Mapping[str, Rows], cells: Mapping[str, list[list[str]]]
) -> Iterator[str]:
    for title, part in parts.items():
        where = [number for number, row in enumerate(part) if row["method"] == method]
        yield from cells[title][where[0]] if where else ["--"] * len(_columns(part))


def _latex_head(titles: list[str], groups: list[list[Column]]) -> list[str]:
    heads, spans, rules, first = ["Algorithm"], [""], [], 2
    for title, columns in zip(titles, groups, strict=True):
        last = first + len(columns) - 1
        spans.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{{_escaped(title, _LATEX_SPECIAL)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
        heads += [
            _heading(key, m, r"($\uparrow$)", r"($\downarrow$)").replace("%", r"\%")
            for key, m in columns
        ]
        first = last + 1
    return [
        rf"\begin{{tabular}}{{l{'c' * (len(heads) - 1)}}}",
        r"\toprule",
        " & ".join(spans) + r" \\",
        " ".join(rules),
        " & ".join(heads) + r" \\",
        r"\midrule",
    ]
