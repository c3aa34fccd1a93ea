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
from fedcraft.cli.tables import interval_table, score_table
from fedcraft.metrics import summarise
from fedcraft.report.figures import clients, lines
from fedcraft.report.page import page
from fedcraft.runs import find_runs
from fedcraft.runs.select import group
from fedcraft.runs.summary import METRICS, gain_text, interval_text, note, one_seed, rows
from fedcraft.studies.sweep import SweepResult

FOLDERS = 40
EVERY = 3
CLIENTS = 24
LEVELS = (0.3, 0.3004, 0.45, 0.6)
SHOWN = [metric for metric in METRICS if metric.key in ("mean", "worst10", "std")]


def write_folder(folder: Path, draw: random.Random) -> None:
    """Write runs with ties, unequal rounds, lost and unfinished seeds, labels, validation parts."""
    validated = draw.random() < 0.5
    for alpha in draw.sample([0.1, 1.0], draw.choice([1, 1, 2])):
        for method in draw.sample(["fedavg", "fedprox", "fedavgm", "craft", "fedlf"], 4):
            label = draw.choice(["", "", "", "mine", "craft"])
            for client_lr in draw.sample([0.1, 0.2, 0.3], draw.choice([1, 2])):
                keys = {"method": method, "alpha": alpha, "client_lr": client_lr}
                keys |= {"label": label} if label else {}
                usual = draw.choice(LEVELS)
                for rounds in draw.choice([[12], [12], [12], [6], [6, 12]]):
                    for seed in range(draw.choice([1, 3, 3, 4])):
                        keys |= {"rounds": rounds, "seed": seed, "dataset": "digits"}
                        place = folder / f"{len(list(folder.iterdir()))}"
                        level = usual if draw.random() < 0.97 else draw.choice(LEVELS)
                        write_run(place, keys, level, draw, validated and draw.random() < 0.97)


def write_run(
    folder: Path, keys: dict[str, Any], level: float, draw: random.Random, validated: bool
) -> None:
    folder.mkdir()
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    (folder / "config.toml").write_text(text + "server_lr = 1.0\n")
    state = draw.choice(["finished"] * 20 + ["stopped", "running", "failed", "diverged", "new"])
    if state == "new":
        return
    end = keys["rounds"] if state == "finished" else draw.randrange(keys["rounds"])
    lost = state == "diverged"
    status = {"state": "stopped" if lost else state, "round": end, "diverged": lost}
    status |= {"split_hash": f"split {keys['seed']}"} if draw.random() < 0.9 else {}
    (folder / "status.json").write_text(json.dumps(status))
    evaluated = [n for n in range(1, end + 1) if n % EVERY == 0 or (n, state) == (end, "finished")]
    accuracies = {number: accuracies_of(keys["seed"], level, draw) for number in evaluated}
    records = (record(number, accuracies, draw, validated) for number in range(end + 1))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in records))
    if draw.random() < 0.95:
        write_clients(folder, accuracies)


def accuracies_of(seed: int, level: float, draw: random.Random) -> list[float]:
    """Methods that are ahead on average, on the worst clients, or nowhere."""
    talent = random.Random(seed)
    spread = 0.4 if level == LEVELS[0] else 0.1
    return [level + spread * talent.random() + draw.choice([0.0, 0.01]) for _ in range(CLIENTS)]


def write_clients(folder: Path, accuracies: dict[int, list[float]]) -> None:
    lines = (
        f"{number},{client},test,accuracy,{value!r},10\n"
        for number, values in accuracies.items()
        for client, value in enumerate(values)
    )
    (folder / "clients.csv").write_text("round,client,split,metric,value,n\n" + "".join(lines))


def record(
    number: int, accuracies: dict[int, list[float]], draw: random.Random, validated: bool
) -> dict[str, Any]:
    conflicts = {stage: draw.choice([None, 0, 1, 2]) for stage in ("average", "after")}
    found: dict[str, Any] = {"round": number, "conflicts": conflicts}
    if number in accuracies:
        found["evaluation"] = summarise(accuracies[number])
        if validated:
            found["evaluation"]["validation_mean"] = draw.choice([0.2, 0.3004, 0.3, 0.45])
    return found


Cells = dict[tuple[str, str], list[tuple[str, int]]]
"""What a reader sees of a method in a problem: each number and its place, the spread over seeds,
each interval, and each difference to the baseline and whether it is better."""


def expected(table: list[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    return {
        (row["problem"], row["label"]): [
            *(metric.text(row[metric.key]) for metric in METRICS),
            METRICS[0].text(row["mean_sd"]).replace("–", ""),
            *(interval_text(row, metric) for metric in SHOWN),
            *(gain_text(row, metric) for metric in SHOWN),
        ]
        for row in table
    }


def in_terminal(folder: Path) -> Cells:
    found: Cells = {}
    for problem in SweepResult(folder, tuple(find_runs(folder))).problems():
        told = rows([problem])
        table, beside = score_table(told, problem.title), interval_table(told)
        columns = {str(column.header).rstrip(" ↑↓"): [*column.cells] for column in table.columns}
        intervals = {str(c.header): [*c.cells] for c in beside.columns} if beside else {}
        assert note(told) in str(table.caption)
        assert one_seed(told) in str(beside.caption if beside else "")
        for number, name in enumerate(columns["Method"]):
            cells = [columns[metric.heading][number] for metric in METRICS]
            places = [["bold", "underline"].index(c.style) + 1 if c.style else 0 for c in cells]
            shown = [(cell.plain, place) for cell, place in zip(cells, places, strict=True)]
            over_seeds = columns["±"][number].plain if "±" in columns else ""
            stacked = [in_cell(intervals, metric.heading, number) for metric in SHOWN]
            further = [(over_seeds, 0), *((s[0], 0) for s in stacked), *(s[1:] for s in stacked)]
            found[problem.title, name.removesuffix(" (diverged)")] = [*shown, *further]
    return found


def in_cell(columns: dict[str, list[Any]], heading: str, number: int) -> tuple[str, str, int]:
    """The interval, the difference, and whether that is bold; the terminal drops leading zeros."""
    if not columns:
        return "", "", 0
    cell = columns[heading][number]
    lines = [re.sub(r"(?<!\d)\.", "0.", line) for line in cell.plain.splitlines()]
    covered = next((line for line in lines if line.startswith("[")), "")
    gained = next((line for line in lines if not line.startswith("[")), "")
    bold = any(str(span.style) == "bold" for span in cell.spans) or str(cell.style) == "bold"
    return covered, gained, int(bold)


def in_markdown(text: str) -> Cells:
    """Columns without a single number are left out of it, which reads as a dash elsewhere."""
    found: Cells = {}
    for block in re.split(r"^\*\*(?=Digits)", text, flags=re.MULTILINE)[1:]:
        title = block.partition("**")[0]
        table = [line[2:-2].split(" | ") for line in block.splitlines() if line.startswith("|")]
        heads = [re.sub(" − .*", " −", head.rstrip(" ↑↓")) for head in table[0]]
        for line in table[2:]:
            cells = dict(zip(heads, line, strict=True))
            shown = [cells.get(metric.heading, "–") for metric in METRICS]
            places = [1 if "**" in cell else 2 if "_" in cell else 0 for cell in shown]
            plain = [cell.partition(" ")[0].strip("*_") for cell in shown]
            over_seeds = re.search(r"± ([\d.]+)", cells.get("Mean", ""))
            covered = [re.search(r"\[.*\]", cells.get(metric.heading, "")) for metric in SHOWN]
            gained = [cells.get(f"{metric.heading} −", "–") for metric in SHOWN]
            name = cells["Method"].removesuffix(" (diverged)").replace("\\", "")
            found[title, name] = [
                *zip(plain, places, strict=True),
                (over_seeds[1] if over_seeds else "", 0),
                *((match[0] if match else "", 0) for match in covered),
                *((text.strip("*").replace("–", ""), int("**" in text)) for text in gained),
            ]
    return found


def in_page(text: str, titles: list[str]) -> Cells:
    found: Cells = {}
    parts = text.split('<table class="summary">')[1:]
    keys = [metric.key for metric in METRICS]
    for title, part in zip(titles, parts, strict=True):
        summary, _, rest = part.partition("</table>")
        gains = in_differences(rest)
        for row in re.findall(r"<tr data-method=.*?</tr>", summary, re.DOTALL):
            name = re.search(r'<th scope="row">(.*?)( <span|</th>)', row)
            assert name is not None
            cells = re.findall(
                r'<td class="place(\d)"><span>(.*?)</span>(.*?)</td>', row, re.DOTALL
            )
            shown = [(text, int(place)) for place, text, _ in cells]
            over_seeds = re.search(r"<small>±&nbsp;(.*?)</small>", row)
            beside = [re.search(r'"interval">(.*?)</small>', cells[i][2]) for i in map(keys.index,
                      [metric.key for metric in SHOWN])]  # fmt: skip
            found[title, html.unescape(name[1])] = [
                *shown,
                (over_seeds[1] if over_seeds else "", 0),
                *((match[1] if match else "", 0) for match in beside),
                *(gains.get((name[1], metric.heading), ("", 0)) for metric in SHOWN),
            ]
    return found


def in_differences(text: str) -> dict[tuple[str, str], tuple[str, int]]:
    """The table of differences that follows the summary on the page."""
    table = re.match(
        r'\s*</div>\s*<div.*?<table class="differences">(.*?)</table>', text, re.DOTALL
    )
    heads = re.findall(r'<th scope="col">(.*?)</th>', table[1])[1:] if table else []
    found = {}
    for name, row in re.findall(
        r'<th scope="row">(.*?)</th>(.*?)</tr>', table[1] if table else "", re.DOTALL
    ):
        cells = re.findall(r'<td class="place(\d)"><span>(.*?)</span>', row)
        for head, (place, shown) in zip(heads, cells, strict=True):
            found[name, head] = (shown.replace("–", ""), int(place))
    return found


def in_csv(text: str) -> list[dict[str, Any]]:
    return [
        {key: float(value or "nan") if key in _NUMBERS else value for key, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]


_NUMBERS = {metric.key for metric in METRICS} | {"mean_sd", "conflicts_before", "mean_on_test"}
_NUMBERS |= {
    f"{metric.key}_{part}"
    for metric in SHOWN
    for part in ("low", "high", "gain", "gain_low", "gain_high")
}


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
    markdown = call(app, ["table", str(tmp_path)]).stdout
    assert in_markdown(markdown) == terminal
    written = in_csv(call(app, ["table", str(tmp_path), "--format", "csv"]).stdout)
    assert expected(written) == wanted
    assert [int(row["rounds"]) for row in written] == [row["rounds"] for row in table]
    latex = call(app, ["table", str(tmp_path), "--format", "latex"]).stdout
    assert latex.count("textbf") == len(re.findall(r"\| \*\*", markdown))
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
