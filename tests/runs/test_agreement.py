"""Terminal, ``fedcraft table``, page and figures show the same numbers of any folder."""

from __future__ import annotations

import csv
import html
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedcraft.cli.app import app
from fedcraft.cli.tables import score_table
from fedcraft.report.figures import clients, lines
from fedcraft.report.page import page
from fedcraft.runs import find_runs
from fedcraft.runs.select import group
from fedcraft.runs.summary import METRICS, note, rows
from fedcraft.studies.sweep import SweepResult

FOLDERS = 40
EVERY = 3


def write_folder(folder: Path, draw: random.Random) -> None:
    """Write runs with ties, unequal rounds, lost and unfinished seeds, labels, validation parts."""
    validated = draw.random() < 0.5
    for alpha in draw.sample([0.1, 1.0], draw.choice([1, 1, 2])):
        for method in draw.sample(["fedavg", "fedprox", "fedavgm", "craft", "fedlf"], 4):
            label = draw.choice(["", "", "", "mine", "craft"])
            for client_lr in draw.sample([0.1, 0.2, 0.3], draw.choice([1, 2])):
                keys = {"method": method, "alpha": alpha, "client_lr": client_lr}
                keys |= {"label": label} if label else {}
                for rounds in draw.choice([[12], [12], [12], [6], [6, 12]]):
                    for seed in range(draw.choice([1, 1, 2, 3])):
                        keys |= {"rounds": rounds, "seed": seed, "dataset": "digits"}
                        place = folder / f"{len(list(folder.iterdir()))}"
                        write_run(place, keys, draw, validated and draw.random() < 0.97)


def write_run(folder: Path, keys: dict[str, Any], draw: random.Random, validated: bool) -> None:
    folder.mkdir()
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    (folder / "config.toml").write_text(text + "server_lr = 1.0\n")
    state = draw.choice(["finished"] * 8 + ["stopped", "running", "failed", "diverged", "new"])
    if state == "new":
        return
    end = keys["rounds"] if state == "finished" else draw.randrange(keys["rounds"])
    lost = state == "diverged"
    status = {"state": "stopped" if lost else state, "round": end, "diverged": lost}
    (folder / "status.json").write_text(json.dumps(status))
    records = (json.dumps(record(number, end, state, draw, validated)) for number in range(end + 1))
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in records))


def record(
    number: int, end: int, state: str, draw: random.Random, validated: bool
) -> dict[str, Any]:
    conflicts = {stage: draw.choice([None, 0, 1, 2]) for stage in ("average", "after")}
    evaluated = number and (number % EVERY == 0 or (number == end and state == "finished"))
    names = ("mean", "best10", "worst10", "std", *(["validation_mean"] if validated else []))
    scores = {name: draw.choice([0.2, 0.3004, 0.3, 0.45]) for name in names}
    return {"round": number, "conflicts": conflicts} | ({"evaluation": scores} if evaluated else {})


Cells = dict[tuple[str, str], list[tuple[str, int]]]
"""What a reader sees of a method in a problem: each number and its place, then the spread."""


def expected(table: list[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    return {
        (row["problem"], row["label"]): [
            *(metric.text(row[metric.key]) for metric in METRICS),
            METRICS[0].text(row["mean_sd"]).replace("–", ""),
        ]
        for row in table
    }


def in_terminal(folder: Path) -> Cells:
    found: Cells = {}
    for problem in SweepResult(folder, tuple(find_runs(folder))).problems():
        table = score_table(rows([problem]), problem.title)
        columns = {str(column.header).rstrip(" ↑↓"): [*column.cells] for column in table.columns}
        assert note(rows([problem])) in str(table.caption)
        for number, name in enumerate(columns["Method"]):
            cells = [columns[metric.heading][number] for metric in METRICS]
            places = [["bold", "underline"].index(c.style) + 1 if c.style else 0 for c in cells]
            shown = [(cell.plain, place) for cell, place in zip(cells, places, strict=True)]
            over_seeds = columns["±"][number].plain if "±" in columns else ""
            found[problem.title, name.removesuffix(" (diverged)")] = [*shown, (over_seeds, 0)]
    return found


def in_markdown(text: str) -> Cells:
    """Columns without a single number are left out of it, which reads as a dash elsewhere."""
    found: Cells = {}
    for block in re.split(r"^\*\*(?=Digits)", text, flags=re.MULTILINE)[1:]:
        title = block.partition("**")[0]
        table = [line[2:-2].split(" | ") for line in block.splitlines() if line.startswith("|")]
        heads = [head.rstrip(" ↑↓") for head in table[0]]
        for line in table[2:]:
            cells = dict(zip(heads, line, strict=True))
            shown = [cells.get(metric.heading, "–") for metric in METRICS]
            places = [1 if "**" in cell else 2 if "_" in cell else 0 for cell in shown]
            plain = [cell.partition(" ±")[0].strip("*_") for cell in shown]
            over_seeds = cells["Mean"].partition(" ± ")[2] if "Mean" in cells else ""
            name = cells["Method"].removesuffix(" (diverged)").replace("\\", "")
            found[title, name] = [*zip(plain, places, strict=True), (over_seeds, 0)]
    return found


def in_page(text: str, titles: list[str]) -> Cells:
    found: Cells = {}
    parts = text.split('<table class="summary">')[1:]
    for title, part in zip(titles, parts, strict=True):
        for row in re.findall(r"<tr data-method=.*?</tr>", part, re.DOTALL):
            name = re.search(r'<th scope="row">(.*?)( <span|</th>)', row)
            assert name is not None
            cells = re.findall(r'<td class="place(\d)"><span>(.*?)</span>', row)
            shown = [(text, int(place)) for place, text in cells]
            over_seeds = re.search(r"<small>±&nbsp;(.*?)</small>", row)
            spread = over_seeds[1] if over_seeds else ""
            found[title, html.unescape(name[1])] = [*shown, (spread, 0)]
    return found


def in_csv(text: str) -> list[dict[str, Any]]:
    return [
        {key: float(value or "nan") if key in _NUMBERS else value for key, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]


_NUMBERS = {metric.key for metric in METRICS} | {"mean_sd", "conflicts_before", "mean_on_test"}


@pytest.mark.parametrize("seed", range(FOLDERS))
def test_every_view_of_a_folder_shows_the_same_numbers(tmp_path: Path, seed: int) -> None:
    write_folder(tmp_path, random.Random(seed))
    runs = find_runs(tmp_path)
    problems = group(runs)
    table = rows(problems)
    wanted = expected(table)
    terminal = in_terminal(tmp_path)
    assert {key: [text for text, _ in cells] for key, cells in terminal.items()} == wanted
    assert repr(SweepResult(tmp_path, tuple(runs)).rows()) == repr(table)

    call = CliRunner().invoke
    assert in_markdown(call(app, ["table", str(tmp_path)]).stdout) == terminal
    written = in_csv(call(app, ["table", str(tmp_path), "--format", "csv"]).stdout)
    assert expected(written) == wanted
    assert [int(row["rounds"]) for row in written] == [row["rounds"] for row in table]
    latex = call(app, ["table", str(tmp_path), "--format", "latex"]).stdout
    assert latex.count("textbf") == sum(p == 1 for cells in terminal.values() for _, p in cells)
    assert in_page(page(runs), [problem.title for problem in problems]) == terminal

    bars = _bars(problems)
    assert bars == {key: cells[3] for key, cells in wanted.items() if cells[3] != "–"}
    ends = _curve_ends(problems)
    for problem in problems:
        for entry in problem.entries:
            last = {max(run.curve("mean"), default=0) for run in entry.chosen.counted}
            if len(last) == 1 and last != {0}:  # else its seeds ended at different rounds
                assert (
                    METRICS[0].text(ends[problem.title, entry.label])
                    == (wanted[problem.title, entry.label][0])
                )


def _bars(problems: Any) -> dict[tuple[str, str], str]:
    """The heights in the figure of the spread over clients."""
    figure = clients.spread(problems)
    return {
        (ax.get_title(), label.get_text()): METRICS[3].text(bar.get_height())
        for ax in (figure.axes if figure else [])
        for label, bar in zip(ax.get_xticklabels(), ax.patches, strict=True)
    }


def _curve_ends(problems: Any) -> dict[tuple[str, str], float]:
    """The last points in the figure of convergence."""
    figure = lines.convergence(problems)
    return {
        (ax.get_title(), str(line.get_label())): line.get_ydata()[-1]
        for ax in (figure.axes if figure else [])
        for line in ax.get_lines()
    }
