"""The verdict says what the numbers show, and how sure that is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fedcraft.report import load_runs
from fedcraft.report.verdict import verdict
from fedcraft.runs.select import group
from fedcraft.runs.summary import rows
from tests.report.pages import page_of

MakeRun = Callable[..., Path]


def words(folder: Path) -> str:
    (problem,) = group(load_runs(folder))
    return verdict(problem, rows([problem]))


def test_the_verdict_names_the_winners(make_run: MakeRun, tmp_path: Path) -> None:
    for name, level in (("fedavg", 0.5), ("craft", 0.7)):
        for seed in (0, 1):
            make_run(f"{name}{seed}", method=name, level=level, seed=seed)
    text = words(tmp_path)
    assert text.startswith("CRAFT has the best mean accuracy")
    assert "It also has the best worst tenth" in text
    assert re.search(r"CRAFT passed the runner-up's final mean after round \d+", text)


def test_the_verdict_is_not_surer_than_the_numbers(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="fedavg", level=0.5)
    make_run("b", method="craft", level=0.7)
    assert "One seed each" in words(tmp_path)
    make_run("c", method="fedavg", level=0.7, seed=1)
    make_run("d", method="craft", level=0.5, seed=1)
    assert "FedAvg has the highest mean accuracy" in words(tmp_path)
    assert "the intervals do not separate it from CRAFT" in words(tmp_path)


def test_the_verdict_names_one_seed_of_the_best_two(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="craft", level=0.9)
    make_run("b", method="fedprox", level=0.7)
    for seed in (0, 1):
        make_run(f"c{seed}", method="fedavg", level=0.3, seed=seed)
    assert "One seed each: the intervals cover the clients, not the seeds" in words(tmp_path)
    make_run("d", method="fedprox", level=0.7, seed=1)
    assert "One seed of CRAFT: the intervals cover the clients" in words(tmp_path)
    assert "CRAFT has the highest mean accuracy" in words(tmp_path)
    make_run("e", method="craft", level=0.9, seed=1)
    assert "CRAFT has the best mean accuracy" in words(tmp_path)


def test_seeds_to_come_are_reported_and_not_counted(
    make_run: MakeRun, plan_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", seed=0)
    plan_run("b", seed=1)
    assert "after 60 rounds" in words(tmp_path)
    text = page_of(tmp_path)
    assert "<span>1 seed</span><span>1 run not evaluated yet</span>" in text


def test_what_diverged_is_marked_and_never_named_best(make_run: MakeRun, tmp_path: Path) -> None:
    lost = {"state": "stopped", "reason": "not finite: client 3"}
    make_run("a", method="fedavg", level=0.9, **lost)
    assert words(tmp_path) == "FedAvg diverged."
    make_run("b", method="craft", level=0.6)
    assert words(tmp_path).startswith("CRAFT reaches a mean accuracy of")
    make_run("c", method="fedprox", level=0.5)
    assert words(tmp_path).startswith("CRAFT has the highest mean accuracy")
    assert words(tmp_path).endswith("FedAvg diverged.")
    text = page_of(tmp_path)
    row = text[text.index('<tr data-method="fedavg">') :].partition("</tr>")[0]
    assert '<span class="badge diverged">diverged</span>' in row
    assert "best)" not in row
    assert "<span>1 diverged</span>" in text


def ranked(make_run: MakeRun, folder: Path, means: list[float], worst: list[float]) -> str:
    """The verdict on methods with these final numbers."""
    names = ["fedavg", "fedprox", "fednova", "fedavgm", "craft"]
    for name, mean, tail in zip(names, means, worst, strict=False):
        path = make_run(name, method=name)
        (path / "clients.csv").unlink()
        record = {"round": 60, "evaluation": {"mean": mean, "worst10": tail}}
        with (path / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps(record) + "\n")
    return words(folder)


@pytest.mark.parametrize(
    ("means", "worst", "first", "then"),
    [
        (
            [0.6001, 0.5999, 0.5],
            [0.2001, 0.1999, 0.1],
            "FedAvg and FedProx share the highest mean accuracy, 0.600.",
            "They also have the highest worst tenth of the clients, 0.200.",
        ),
        (
            [0.6, 0.6, 0.5, 0.5, 0.6],
            [0.1, 0.1, 0.1, 0.2, 0.2],
            "FedAvg, FedProx and CRAFT share the highest mean accuracy, 0.600.",
            "CRAFT and FedAvgM have the highest worst tenth of the clients, 0.200.",
        ),
        (
            [0.6, 0.6, 0.6, 0.6],
            [0.1, 0.1, 0.1, 0.1],
            "FedAvg and 3 others share the highest mean accuracy, 0.600.",
            "All methods leave the worst tenth of the clients at 0.100.",
        ),
        (
            [0.7006, 0.7004, 0.7001],
            [0.2, 0.1, 0.1],
            "FedAvg has the highest mean accuracy, 0.701, 0.001 above FedProx and FedNova.",
            "It also has the highest worst tenth of the clients, 0.200.",
        ),
    ],
)
def test_the_verdict_names_all_that_are_written_equal(
    make_run: MakeRun, tmp_path: Path, means: list[float], worst: list[float], first: str, then: str
) -> None:
    text = ranked(make_run, tmp_path, means, worst)
    why = "The runs hold no accuracies of single clients, so there are no intervals."
    assert text == f"{first} {then} {why}"


def test_a_shared_best_mean_is_not_a_lead(make_run: MakeRun, tmp_path: Path) -> None:
    for name in ("fedavg", "craft"):
        for seed in (0, 1):
            path = make_run(f"{name}{seed}", method=name, seed=seed)
            with (path / "metrics.jsonl").open("a") as stream:
                stream.write('{"round": 60, "evaluation": {"mean": 0.5, "worst10": 0.1}}\n')
    assert words(tmp_path).endswith("the worst tenth of the clients at 0.100.")
