"""Runs are sorted into problems, settings and entries, and the right one is shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from fedcraft.report import RunData, load_runs
from fedcraft.report.groups import group
from fedcraft.report.names import in_order, styles
from fedcraft.report.sections.grids import rate_grid
from fedcraft.report.series import curve, mean_seconds

MakeRun = Callable[..., Path]


def test_methods_appear_in_the_order_of_the_table(runs: list[RunData]) -> None:
    (problem,) = group(runs)
    names = [entry.name for entry in problem.entries]
    assert names[:4] == ["fedavg", "fedavgm", "fedlf-history", "config"]
    assert names[4:] == ["craft", "ditto", "ditto+craft"]
    assert in_order(["my label", "craft"]) == ["craft", "my label"]


def test_seeds_are_one_setting_and_rates_are_several(runs: list[RunData]) -> None:
    (problem,) = group(runs)
    craft, ditto = problem.entry("craft"), problem.entry("ditto")
    assert craft is not None
    assert ditto is not None
    assert [run.seed for run in craft.runs] == [0, 1]
    assert len(ditto.settings) == 9


def test_the_setting_with_the_best_mean_is_shown(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", client_lr=0.01, level=0.5)
    make_run("b", client_lr=0.05, level=0.8)
    make_run("c", client_lr=0.1, level=0.6)
    (problem,) = group(load_runs(tmp_path))
    assert problem.judge == "test"
    assert problem.entries[0].chosen.config["client_lr"] == 0.05


def test_a_winner_with_more_seeds_is_judged_by_those_its_rivals_have(
    make_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", client_lr=0.05, seed=1, level=0.8)
    make_run("b", client_lr=0.05, seed=2, level=0.3)
    make_run("c", client_lr=0.1, seed=1, level=0.6)
    (problem,) = group(load_runs(tmp_path))
    assert problem.entries[0].chosen.config["client_lr"] == 0.05
    assert [run.seed for run in problem.entries[0].runs] == [1, 2]


def test_validation_data_choose_where_every_run_has_some(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", client_lr=0.01, level=0.8, validation=0.5)
    make_run("b", client_lr=0.05, level=0.6, validation=0.7)
    (problem,) = group(load_runs(tmp_path))
    (entry,) = problem.entries
    assert problem.judge == "validation"
    assert entry.chosen.config["client_lr"] == 0.05
    assert entry.best("test").config["client_lr"] == 0.01
    make_run("c", client_lr=0.1, level=0.4)
    assert group(load_runs(tmp_path))[0].judge == "test"


def test_a_diverged_setting_never_wins(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", client_lr=0.01, level=0.4)
    make_run("b", client_lr=0.5, level=0.9, state="stopped", reason="not finite: client 3")
    (problem,) = group(load_runs(tmp_path))
    assert problem.entries[0].chosen.config["client_lr"] == 0.01


def test_a_pair_of_rates_that_diverged_is_a_gap_in_the_grid(
    make_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", client_lr=0.01, level=0.4)
    make_run("b", client_lr=0.05, level=0.6)
    make_run("c", client_lr=0.5, level=0.9, state="stopped", reason="not finite: client 3")
    (problem,) = group(load_runs(tmp_path))
    grid = rate_grid(problem.entries[0])
    assert grid is not None
    small, middle, large = grid.to_numpy().ravel()
    assert 0 < small < middle
    assert math.isnan(large)


def test_a_grid_where_every_pair_diverged_is_not_drawn(make_run: MakeRun, tmp_path: Path) -> None:
    for rate in (0.1, 0.5):
        make_run(str(rate), client_lr=rate, state="stopped", reason="not finite: client 3")
    (problem,) = group(load_runs(tmp_path))
    assert rate_grid(problem.entries[0]) is None


def test_the_number_of_workers_makes_no_new_setting(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in (0, 1):
        path = make_run(f"s{seed}", seed=seed)
        with (path / "config.toml").open("a") as stream:
            stream.write(f"workers = {seed + 1}\n")
    (problem,) = group(load_runs(tmp_path))
    assert len(problem.entries[0].settings) == 1


def test_of_a_run_done_twice_the_longer_counts(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("broken", written=10, state="failed")
    make_run("whole")
    (problem,) = group(load_runs(tmp_path))
    assert [run.path.name for run in problem.entries[0].runs] == ["whole"]


def test_different_problems_are_kept_and_told_apart(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", dataset="femnist", model="mlp")
    make_run("b", clients=100)
    make_run("c", clients=30)
    titles = [problem.title for problem in group(load_runs(tmp_path))]
    assert titles == ["FEMNIST & MLP", "CIFAR-10 & CNN, clients 100", "CIFAR-10 & CNN, clients 30"]


def test_craft_and_fedavg_look_the_same_in_every_report() -> None:
    few, many = styles(["craft", "fedavg"]), styles(["craft", "fedavg", "afl", "ditto", "fedrep"])
    assert few["craft"] == many["craft"]
    assert few["fedavg"] == many["fedavg"]


def test_no_two_of_twenty_methods_look_alike() -> None:
    looks = styles([f"method {i}" for i in range(20)])
    assert len({(s.colour, s.dash, s.marker) for s in looks.values()}) == 20


def test_a_curve_averages_only_rounds_that_all_seeds_reached(
    make_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", seed=0, written=40, state="running")
    make_run("b", seed=1)
    (problem,) = group(load_runs(tmp_path))
    points = curve(problem.entries[0].chosen, "mean")
    assert points.index.max() == 40
    finals = [run.evaluations["mean"][40] for run in problem.entries[0].runs]
    assert points["mean"][40] == pytest.approx(sum(finals) / 2)
    assert points["sd"][40] == pytest.approx(abs(finals[0] - finals[1]) / math.sqrt(2))


def test_waiting_is_not_counted_as_training_too(make_run: MakeRun) -> None:
    run = RunData(make_run("one", rounds=5))
    seconds = mean_seconds([run])
    written = [record["seconds"] for record in run.rounds if "seconds" in record]
    spent = sum(s["train"] + s["aggregate"] + s["evaluate"] for s in written) / len(written)
    assert sum(seconds.values()) == pytest.approx(spent)
