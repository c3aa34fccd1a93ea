"""Runs are sorted into problems, settings and entries, and the right one is shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from fedcraft.report import load_runs, summary
from fedcraft.report.names import styles
from fedcraft.report.sections.grids import learning_rates, rate_grid
from fedcraft.report.series import curve, mean_seconds
from fedcraft.runs import Run
from fedcraft.runs.select import Setting, group, in_order

MakeRun = Callable[..., Path]


def test_methods_appear_in_the_order_of_the_table(runs: list[Run]) -> None:
    (problem,) = group(runs)
    names = [entry.name for entry in problem.entries]
    assert names[:4] == ["fedavg", "fedavgm", "fedlf-history", "config"]
    assert names[4:] == ["craft", "ditto", "ditto+craft"]
    assert in_order(["my label", "craft"]) == ["craft", "my label"]


def test_seeds_are_one_setting_and_rates_are_several(runs: list[Run]) -> None:
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


@pytest.mark.parametrize("more_seeds", [False, True])
def test_the_framed_cell_of_the_grid_is_the_number_of_the_table(
    make_run: MakeRun, tmp_path: Path, more_seeds: bool
) -> None:
    make_run("a", {"lr_decay": 0.9}, level=0.8, validation=0.5)
    make_run("b", {"lr_decay": 0.8}, level=0.6, validation=0.7)
    make_run("c", client_lr=0.5, level=0.3, validation=0.2)
    if more_seeds:  # seed 0 alone, which all settings have, chooses
        make_run("d", {"lr_decay": 0.9}, level=0.8, validation=0.9, seed=1)
        make_run("e", {"lr_decay": 0.8}, level=0.6, validation=0.3, seed=1)
    runs = load_runs(tmp_path)
    (problem,) = group(runs)
    grids = learning_rates(problem)
    assert grids is not None
    cells = grids["grids"]["craft"]
    row, column = cells["chosen"]
    assert problem.entries[0].chosen.config["lr_decay"] == 0.8
    assert cells["mean"][row][column] == pytest.approx(summary(runs).loc[0, "mean"], abs=1e-4)


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
    assert [run.directory.name for run in problem.entries[0].runs] == ["whole"]


def test_different_problems_are_kept_and_distinguished(make_run: MakeRun, tmp_path: Path) -> None:
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
    finals = [run.curve("mean")[40] for run in problem.entries[0].runs]
    assert points["mean"][40] == pytest.approx(sum(finals) / 2)
    assert points["sd"][40] == pytest.approx(abs(finals[0] - finals[1]) / math.sqrt(2))


def test_seeds_are_averaged_at_the_last_round_that_they_share(
    make_run: MakeRun, plan_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", seed=0)
    make_run("b", seed=1, written=7, state="interrupted")
    plan_run("c", seed=2)
    (problem,) = group(load_runs(tmp_path))
    setting = problem.entries[0].chosen
    at_five = [Run(tmp_path / name).curve("mean")[5] for name in "ab"]
    assert setting.finals("mean") == at_five
    assert (setting.rounds, setting.seeds) == (5, {0, 1})
    assert setting.final("mean") == curve(setting, "mean")["mean"].iloc[-1]


def test_seeds_that_stopped_early_count_with_their_ends(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", seed=0)
    make_run("b", seed=1, written=10, state="stopped", reason="target_accuracy reached")
    (problem,) = group(load_runs(tmp_path))
    setting = problem.entries[0].chosen
    assert setting.finals("mean") == [run.final("mean") for run in setting.runs]
    assert setting.rounds == 10


def test_seeds_that_were_evaluated_at_their_ends_alone_count_with_those(
    make_run: MakeRun, tmp_path: Path
) -> None:
    for seed, end in enumerate((10, 15)):
        path = make_run(f"s{seed}", seed=seed, rounds=end)
        lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
        (path / "metrics.jsonl").write_text(lines[-1])
    setting = Setting({}, tuple(load_runs(tmp_path)))
    assert setting.finals("mean") == [run.final("mean") for run in setting.runs]
    assert (setting.rounds, len(setting.seeds)) == (10, 2)


def test_a_seed_to_come_has_no_say_in_the_choice(
    make_run: MakeRun, plan_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", client_lr=0.05, seed=1, level=0.8)
    make_run("b", client_lr=0.05, seed=2, level=0.3)
    make_run("c", client_lr=0.1, seed=1, level=0.6)
    plan_run("d", client_lr=0.1, seed=2)
    plan_run("e", client_lr=0.5, seed=3)
    (problem,) = group(load_runs(tmp_path))
    assert problem.entries[0].chosen.config["client_lr"] == 0.05


def test_a_seed_that_diverged_before_its_first_evaluation_has_a_say(
    make_run: MakeRun, plan_run: MakeRun, tmp_path: Path
) -> None:
    for seed in (1, 2):
        make_run(f"a{seed}", client_lr=0.05, seed=seed, level=0.4)
    make_run("b", client_lr=0.5, seed=1, level=0.9)
    lost = plan_run("c", client_lr=0.5, seed=2)
    (lost / "status.json").write_text('{"state": "stopped", "reason": "not finite: client 3"}')
    (problem,) = group(load_runs(tmp_path))
    assert problem.entries[0].chosen.config["client_lr"] == 0.05


def test_conflicts_are_counted_over_the_rounds_that_all_seeds_have_done(
    make_run: MakeRun,
) -> None:
    runs = [Run(make_run("a")), Run(make_run("b", seed=1, written=5))]
    counts = [r["conflicts"]["average"] for run in runs for r in run.records[1:6]]
    assert Setting({}, tuple(runs)).conflicts("average") == pytest.approx(sum(counts) / 10)


def test_waiting_is_not_counted_as_training_too(make_run: MakeRun) -> None:
    run = Run(make_run("one", rounds=5))
    seconds = mean_seconds([run])
    written = [record["seconds"] for record in run.records if "seconds" in record]
    spent = sum(s["train"] + s["aggregate"] + s["evaluate"] for s in written) / len(written)
    assert sum(seconds.values()) == pytest.approx(spent)
