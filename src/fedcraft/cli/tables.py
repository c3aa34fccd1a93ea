"""Rows as rich tables: what the intervals say is best is bold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedcraft.cli.console import out_console, print_json

if TYPE_CHECKING:
    from fedcraft.runs.summary import Metric
    from fedcraft.studies.robustness import AttackRow

Rows = Sequence[Mapping[str, Any]]

_MARKS = "Bold: better than all others. Underlined: may be the best."
_INTERVALS = "95 % intervals over clients{seeds}. Bold: better than {baseline}."
_WITHOUT = ("best10",)  # a terminal is 80 columns wide
_CONFLICTS = "Conflicts: clients per round that the step works against."
_RATES = "Rates: client_lr / server_lr."
_STYLE: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "title_justify": "left",
    "caption_justify": "left",
    "pad_edge": False,
    "collapse_padding": True,
}
_DIGITS, _SPREAD = 5, "±"
_PLACES = ("", "bold", "underline")
_ATTACK_HEADS = ("Seeds", "Mean", "Worst 10 %", "Liars out", "Rest out", "Door")
_ATTACK_NOTE = (
    "Out: the share of hostile updates, and of all others, that a guard left out. Door: the share "
    "of images with the attacker's patch that pass for the attacker's class."
)
_PAPER = {"mean_paper": "Paper", "mean_difference": "Off by"}


def score_table(rows: Rows, title: str, *, show_rounds: bool = False) -> Table:
    """Return the table of one problem's methods; rounds are shown where they differ.

    Runs with fewer rounds than the paper's are shown beside its numbers, but without a difference.
    """
    from fedcraft.runs.summary import METRICS, marks, note, spread

    show_rounds = show_rounds or len({row["rounds"] for row in rows}) > 1
    beside = ("mean_paper",) if show_rounds else tuple(_PAPER)
    papers = [key for key in beside if rows and key in rows[0]]
    left_out = "conflicts" if papers else ""  # a terminal is 80 columns wide
    shown = [metric for metric in METRICS if metric.key != left_out]
    over_seeds = "±: standard deviation over seeds." if any(map(spread, rows)) else ""
    marked = _MARKS if any(any(marks(rows, metric)) for metric in shown) else ""
    caption = [marked, over_seeds, _CONFLICTS if not left_out else "", _RATES, note(rows)]
    about = " ".join(filter(None, caption))
    # The box leaves a space between columns, which is enough where a terminal is narrow.
    table = Table(title=title, caption=about, padding=0, **_STYLE)
    table.add_column("Method", overflow="fold", min_width=10)
    columns: dict[str, Sequence[str | Text]] = dict(_scores(rows, shown))
    columns |= {_PAPER[key]: [_beside(row, key) for row in rows] for key in papers}
    columns |= {"Rounds": [_rounds(row) for row in rows]} if show_rounds else {}
    for head in columns:
        # Names and headings are wrapped before a number loses a digit.
        table.add_column(head, justify="right", min_width=_DIGITS)
    table.add_column("Rates", justify="right", no_wrap=True)
    for row, *cells in zip(rows, *columns.values(), strict=True):
        name = f"{row['label']} (diverged)" if row["diverged"] else str(row["label"])
        rates = f"{row['client_lr']:g} / {row['server_lr']:g}"
        table.add_row(name, *cells, "" if _missing(row) else rates)
    return table


def _missing(row: Mapping[str, Any]) -> bool:
    return row.get("state") == "missing"


def _rounds(row: Mapping[str, Any]) -> str:
    return "missing" if _missing(row) else str(row["rounds"])


def interval_table(rows: Rows) -> Table | None:
    """Return the intervals of one problem's numbers and of their differences to the baseline.

    There is none where no interval is known.
    """
    from fedcraft.runs.summary import COLUMNS, METRICS, one_seed

    rows = [row for row in rows if not _missing(row)]
    shown = [m for m in METRICS if m.key in COLUMNS and m.key not in _WITHOUT]
    cells = [[_interval_cell(row, metric) for metric in shown] for row in rows]
    if not any(cell.plain for line in cells for cell in line):
        return None
    names = [str(row["label"]) for row in rows if row["method"] == row["baseline"]]
    title = f"Intervals, and differences to {names[0]}" if names else "Intervals"
    over = " and seeds" if any(row["seeds"] > 1 for row in rows) else ""
    about = _INTERVALS.format(seeds=over, baseline=names[0]) if names else ""
    caption = " ".join(filter(None, [about, one_seed(rows)]))
    table = Table(title=title, caption=caption, padding=0, **_STYLE)
    table.add_column("Method", overflow="fold", min_width=10)
    for metric in shown:
        table.add_column(metric.heading, justify="right")
    for row, line in zip(rows, cells, strict=True):
        table.add_row(str(row["label"]), *line)
    return table


def _interval_cell(row: Mapping[str, Any], metric: Metric) -> Text:
    """The interval of the number, and below it the difference with its interval."""
    from fedcraft.runs.summary import gain_place, gain_text, interval_text

    covered, gained = (_narrow(text(row, metric)) for text in (interval_text, gain_text))
    lines = [Text(covered), Text(gained, _PLACES[gain_place(row, metric)])]
    return Text("\n").join(line for line in lines if line.plain)


def _narrow(text: str) -> str:
    """Write +0.126 as +.126: three intervals fit into 80 columns."""
    return text.replace("0.", ".")


def _scores(rows: Rows, shown: Sequence[Metric]) -> Iterator[tuple[str, list[Text]]]:
    """Yield heading and cells of each metric, after the mean those of its spread over seeds."""
    from fedcraft.runs.summary import marks, spread

    for metric in shown:
        cells = zip(rows, marks(rows, metric), strict=True)
        texts = [Text(metric.text(row[metric.key]), _PLACES[place]) for row, place in cells]
        yield f"{metric.heading} {'↑' if metric.higher_is_better else '↓'}", texts
        if metric.key == "mean" and any(map(spread, rows)):
            yield _SPREAD, [Text(spread(row)) for row in rows]


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", *, data: Any = None
) -> None:
    """Print a table of text, or in its place ``data`` as JSON."""
    if data is not None:
        print_json(data)
        return
    table = Table(title=title or None, show_header=any(heads), **_STYLE)
    for number, head in enumerate(heads):
        table.add_column(head, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    out_console().print(table)


def print_attacks(rows: Sequence[AttackRow], title: str) -> None:
    """Print what hostile clients do to each method."""

    def text(share: float | None) -> str:
        return "" if share is None else f"{share:.0%}"

    table = Table(title=title, caption=_ATTACK_NOTE, padding=0, **_STYLE)
    for head in ("Hostile clients", "Method"):
        table.add_column(head, no_wrap=True)
    for head in _ATTACK_HEADS:
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(
            f"{row.attack} {text(row.share)}" if row.share else row.attack,
            row.method,
            str(row.seeds),
            *(f"{score:.3f}" for score in (row.mean, row.worst10)),
            *map(text, (row.hostile_left_out, row.honest_left_out, row.backdoor)),
        )
    out_console().print(table)


def _beside(row: Mapping[str, Any], key: str) -> str:
    from fedcraft.runs.summary import METRICS

    text = METRICS[0].text(row[key])
    return f"+{text}" if key == "mean_difference" and row[key] >= 0 else text
