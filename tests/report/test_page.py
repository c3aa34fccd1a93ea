"""The page holds what the runs hold, asks nothing from the network, and trusts no name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedcraft.errors import MissingExtraError
from fedcraft.report import load_runs, summary, write_page
from fedcraft.report.extras import needs
from fedcraft.runs import Run
from tests.report.pages import data_of, page_of, unpacked

MakeRun = Callable[..., Path]


def test_the_page_names_no_other_address(text: str) -> None:
    addresses = set(re.findall(r"\bhttps?://[^\s\"'<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|srcset|action)=|@import|url\(", text)
    assert "default-src 'none'" in text


def test_the_page_is_small(text: str) -> None:
    assert len(text) < 500_000


def test_unchanged_runs_give_an_unchanged_page(runs: list[Run], tmp_path: Path) -> None:
    first, second = (write_page(runs, tmp_path / name) for name in ("a.html", "b.html"))
    assert first.read_bytes() == second.read_bytes()


def test_every_section_is_there(text: str) -> None:
    charts = data_of(text)[0]["charts"]
    assert all(charts.values())
    for name in charts:
        assert f'id="p0-{name}"' in text


def test_the_numbers_in_the_page_are_those_of_the_runs(text: str, runs: list[Run]) -> None:
    charts = data_of(text)[0]["charts"]
    crafted = [run for run in runs if run.method == "craft"]
    series = next(s for s in charts["convergence"]["metrics"]["mean"] if s["method"] == "craft")
    finals = [run.final("mean") for run in crafted]
    assert series["y"][-1] == pytest.approx(sum(finals) / 2, rel=1e-4)
    series = next(s for s in charts["distribution"]["series"] if s["method"] == "craft")
    values = unpacked(series["values"]) / 10_000
    assert values.tolist() == sorted(a for run in crafted for a in run.accuracies().values())
    assert charts["rates"]["grids"]["ditto"]["client_lr"] == [0.01, 0.05, 0.1]
    row, column = charts["rates"]["grids"]["ditto"]["chosen"]
    means = charts["rates"]["grids"]["ditto"]["mean"]
    assert means[row][column] == max(max(line) for line in means)
    assert charts["conflicts"]["methods"]["craft"]["layers"][-1] == "whole model"


def test_links_lead_to_the_folders_of_the_runs(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("runs/a run")
    near = write_page(load_runs(tmp_path), tmp_path / "page.html").read_text()
    assert '<a href="runs/a%20run/">' in near
    far = write_page(load_runs(tmp_path), tmp_path / "1/2/3/page.html").read_text()
    assert "a%20run" not in far


def test_other_splits_are_not_compared_and_the_page_says_so(
    make_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", method="fedavg", seed=0)
    make_run("b", method="craft", seed=1)
    text = page_of(tmp_path)
    gains = data_of(text)[0]["charts"]["gains"]
    assert (gains["methods"], gains["unpaired"]) == ({}, ["CRAFT"])
    assert "not made over the same split of the data: CRAFT" in text


def test_sections_without_data_leave_a_note(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("a", diagnostics=False)
    for name in ("clients.csv", "labels.csv", "metrics.jsonl", "environment.json"):
        (path / name).unlink()
    text = page_of(tmp_path)
    assert not any(data_of(text)[0]["charts"].values())
    assert text.count('<p class="absent">') >= len(data_of(text)[0]["charts"])
    assert "No evaluation has been written yet." in text


def test_a_running_comparison_shows_its_state_so_far(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="fedavg", written=25, state="running", level=0.5)
    path = make_run("b", method="craft", written=25, state="running")
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 26, "eva')
    text = page_of(tmp_path)
    assert "25 of 60 rounds" in text
    assert '<span class="badge running">running</span>' in text
    assert "this is the state so far" in text
    make_run("c", method="fedavgm", written=10, state="running")
    assert "at different rounds (10 to 25)" in page_of(tmp_path)


def test_names_are_text_and_never_markup(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("a")
    with (path / "config.toml").open("a") as stream:
        stream.write('label = "</script><img src=x onerror=alert(1)>"\n')
    text = page_of(tmp_path)
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert data_of(text)[0]["methods"][0]["label"] == "</script><img src=x onerror=alert(1)>"


def test_not_a_number_becomes_a_gap(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("a", rounds=10)
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 11, "evaluation": {"mean": NaN, "train_loss": null}}\n')
    text = page_of(tmp_path)
    assert "NaN" not in json.dumps(data_of(text))


def test_the_choice_on_validation_data_is_reported_beside_the_papers(
    make_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", client_lr=0.01, level=0.8, validation=0.5)
    make_run("b", client_lr=0.05, level=0.6, validation=0.7)
    text = page_of(tmp_path)
    assert "Mean, chosen on&nbsp;test" in text
    table = summary(load_runs(tmp_path))
    assert table.loc[0, "mean_on_test"] > table.loc[0, "mean"]


def test_the_page_shows_no_path_of_the_disk(comparison: Path, text: str) -> None:
    assert str(comparison) not in text
    assert "craft-s0" in text


def test_the_page_tells_the_rounds_of_the_longest_method(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="fedavg", rounds=5, level=0.5)
    make_run("b", method="craft", rounds=10)
    assert "10 of 10 rounds" in page_of(tmp_path)


def test_a_missing_extra_says_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "fedcraft.report.page")
    with pytest.raises(MissingExtraError, match=r"pip install 'fedcraft\[report\]'"):
        import fedcraft.report.page  # noqa: F401


def test_needs_lets_other_errors_through() -> None:
    with pytest.raises(KeyError), needs("pandas"):
        raise KeyError
