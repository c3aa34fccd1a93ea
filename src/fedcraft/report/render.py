"""A summary frame as Markdown and as LaTeX (booktabs), best bold and second best underlined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from fedcraft.report.extras import needs
from fedcraft.report.ranks import METRICS, Metric, places, sound

with needs("pandas"):
    import pandas as pd

__all__ = ["latex", "markdown"]

_LATEX_SPECIAL = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {c: f"{{{c}}}" for c in "*[]"}  # the end of the row above takes them for its options
    | {"<": r"\textless{}", ">": r"\textgreater{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)
_MARKDOWN_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|*_`<>[]"})


def markdown(table: pd.DataFrame) -> str:
    """One table per problem: ``**best**``, ``_second best_``."""
    return "\n".join(_markdown_block(title, part) for title, part in _by_problem(table))


def latex(table: pd.DataFrame) -> str:
    """The paper's layout: methods down, a group of columns for each problem (needs booktabs)."""
    parts = list(_by_problem(table))
    groups = [_columns(part) for _, part in parts]
    cells = [_grid(part, _latex_mark) for _, part in parts]
    labels = table.drop_duplicates("method")
    rows = [
        " & ".join([_latex_label(label, method, parts), *_latex_row(method, parts, cells, groups)])
        for method, label in zip(labels["method"], labels["label"], strict=True)
    ]
    return "\n".join([*_latex_head([title for title, _ in parts], groups), *_latex_body(rows)])


def _by_problem(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for title, part in table.groupby("problem", sort=False):
        yield str(title), part.reset_index(drop=True)


def _columns(part: pd.DataFrame) -> list[tuple[str, Metric]]:
    """Each metric that has a number, followed by its published counterpart."""
    keys = [(m.key, m) for m in METRICS] + [(f"{m.key}_reference", m) for m in METRICS]
    present = [(k, m) for k, m in keys if k in part and part[k].notna().any()]
    return sorted(present, key=lambda column: METRICS.index(column[1]))


def _grid(part: pd.DataFrame, mark: Callable[[str, int], str]) -> list[list[str]]:
    columns = [
        [
            mark(_number(value, metric), place)
            for value, place in zip(part[key], _places(part, key, metric), strict=True)
        ]
        for key, metric in _columns(part)
    ]
    return (
        [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in part.index]
    )


def _places(part: pd.DataFrame, key: str, metric: Metric) -> list[int]:
    """Published numbers compete whatever became of ours."""
    return places(sound(part, key) if key == metric.key else part[key], metric)


def _escaped(text: str, special: dict[int, str]) -> str:
    """Text that can neither end its row nor be taken for markup."""
    return "".join(c if c.isprintable() else " " for c in text).translate(special)


def _number(value: float, metric: Metric) -> str:
    return f"{value:.{metric.decimals}f}" if math.isfinite(value) else "–"


def _markdown_mark(text: str, place: int) -> str:
    return {1: f"**{text}**", 2: f"_{text}_"}.get(place, text)


def _latex_mark(text: str, place: int) -> str:
    text = text.replace("–", "--")
    return {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(place, text)


def _markdown_block(title: str, part: pd.DataFrame) -> str:
    heads = ["Method", *(_heading(key, m, "↑", "↓") for key, m in _columns(part)), "Rounds"]
    lines = [
        [_markdown_label(label, diverged), *cells, str(rounds)]
        for label, diverged, cells, rounds in zip(
            part["label"],
            part["diverged"],
            _grid(part, _markdown_mark),
            part["rounds"],
            strict=True,
        )
    ]
    rule = [":--", *["--:"] * (len(heads) - 1)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *lines))
    return f"**{_escaped(title, _MARKDOWN_SPECIAL)}**\n\n{body}\n"


def _markdown_label(label: str, diverged: int) -> str:
    return _escaped(label, _MARKDOWN_SPECIAL) + (" (diverged)" if diverged else "")


def _heading(key: str, metric: Metric, up: str, down: str) -> str:
    if key.endswith("_reference"):
        return f"{metric.heading} (published)"
    return f"{metric.heading} {up if metric.higher_is_better else down}"


def _latex_label(label: str, method: str, parts: list[tuple[str, pd.DataFrame]]) -> str:
    """A row is about all problems: it names those where the method diverged."""
    lost = [t for t, part in parts if part.loc[part["method"] == method, "diverged"].any()]
    where = f" on {', '.join(lost)}" if len(parts) > 1 else ""
    return _escaped(f"{label} (diverged{where})" if lost else label, _LATEX_SPECIAL)


def _latex_row(
    method: str,
    parts: list[tuple[str, pd.DataFrame]],
    cells: list[list[list[str]]],
    groups: list[list[tuple[str, Metric]]],
) -> Iterator[str]:
    for (_, part), rows, columns in zip(parts, cells, groups, strict=True):
        where = part.index[part["method"] == method]
        yield from rows[where[0]] if len(where) else ["--"] * len(columns)


def _latex_head(titles: list[str], groups: list[list[tuple[str, Metric]]]) -> list[str]:
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


def _latex_body(rows: list[str]) -> list[str]:
    return [*(row + r" \\" for row in rows), r"\bottomrule", r"\end{tabular}", ""]
