"""Methods are compared on one problem, and a seed that diverged is not forgotten."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedcraft.runs import Run
from fedcraft.runs.select import Setting, group
from fedcraft.runs.summary import note, rivals, rows
from fedcraft.studies.estimate import estimate
from fedcraft.studies.plan import Plan
from fedcraft.studies.results import collect, stored
from fedcraft.studies.sweep import SweepResult, repeat_best
from tests.studies.conftest import write_result

LOST = {"state": "stopped", "reason": "not finite: client 3"}


@pytest.fixture
def two_problems(tmp_path: Path) -> SweepResult:
    """CRAFT and FedAvg at two rates each on an uneven and an even split."""
    grid = [
        ("craft", 0.1, 0.01, 0.5),
        ("craft", 0.1, 0.1, 0.4),
        ("fedavg", 0.1, 0.1, 0.3),
        ("craft", 100.0, 0.1, 0.8),
        ("fedavg", 100.0, 0.1, 0.9),
    ]
    runs = [
        write_result(tmp_path, mean, method=method, alpha=alpha, client_lr=rate)
        for method, alpha, rate, mean in grid
    ]
    return SweepResult(tmp_path, tuple(runs))


def test_methods_are_chosen_problem_by_problem(two_problems: SweepResult) -> None:
    found = [(r["problem"], r["method"], r["mean"]) for r in two_problems.rows()]
    assert found == [
        ("Digits & MLP, alpha 0.1", "fedavg", 0.3),
        ("Digits & MLP, alpha 0.1", "craft", 0.5),
        ("Digits & MLP, alpha 100.0", "fedavg", 0.9),
        ("Digits & MLP, alpha 100.0", "craft", 0.8),
    ]
    assert "problem" in two_problems.table()
    assert next(iter(two_problems.best())) == "fedavg on Digits & MLP, alpha 0.1"
    assert [len(problem.entries) for problem in two_problems.problems()] == [2, 2]


def test_one_problem_needs_no_name(two_problems: SweepResult) -> None:
    one = SweepResult(two_problems.folder, two_problems.runs[:3])
    assert list(one.best()) == ["fedavg", "craft"]
    assert {r["problem"] for r in one.rows()} == {"Digits & MLP"}


def test_problem_with_a_validation_part_is_judged_by_it(tmp_path: Path) -> None:
    keys = {"method": "craft", "validation_fraction": 0.2}
    runs = (
        write_result(tmp_path, 0.9, validation=0.1, client_lr=0.1, **keys),
        write_result(tmp_path, 0.8, validation=0.2, client_lr=0.2, **keys),
        write_result(tmp_path, 0.7, method="craft"),
    )
    told = [(r["mean"], r["chosen_on"]) for r in SweepResult(tmp_path, runs).rows()]
    assert told == [(0.8, "validation"), (0.7, "test")]


def test_best_of_every_problem_is_repeated_and_collected(
    two_problems: SweepResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Plan] = []

    def place(plan: Plan, **_: Any) -> SweepResult:
        planned.append(plan)
        return SweepResult(two_problems.folder, ())

    monkeypatch.setattr("fedcraft.studies.sweep.sweep", place)
    repeat_best(two_problems, [78])
    (plan,) = planned
    assert {(c.method, c.alpha, c.client_lr, c.seed) for c in plan.configs()} == {
        ("craft", 0.1, 0.01, 78),
        ("fedavg", 0.1, 0.1, 78),
        ("craft", 100.0, 0.1, 78),
        ("fedavg", 100.0, 0.1, 78),
    }
    for run in two_problems.runs:
        (run.directory / "environment.json").write_text('{"cores": 2}')
    kept = [Run(run.directory) for run in two_problems.runs]
    again = stored(collect(kept, tmp_path / "stored"))
    assert sum(bool(run.environment) for run in again.runs) == 4


def test_repetition_that_is_there_already_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [write_result(tmp_path, 0.5, method="craft", seed=seed) for seed in (77, 78)]
    lost = {runs[1].directory.name: "the machine went away"}
    again = SweepResult(tmp_path, (Run(runs[1].directory),))
    monkeypatch.setattr("fedcraft.studies.sweep.sweep", lambda *_, **__: again)
    result = repeat_best(SweepResult(tmp_path, tuple(runs), lost), [78])
    assert [run.directory for run in result.runs] == [run.directory for run in runs]
    assert [r["seeds"] for r in result.rows()] == [2]
    assert not result.failures, "what went well at last has not failed"


def test_estimate_counts_the_repetitions_of_every_problem() -> None:
    configs = Plan({"clients_per_round": 4}, {"alpha": [0.1, 100.0], "client_lr": [0.1, 0.2]})
    assert estimate(configs.configs(), repeats=3).runs == 4 + 3 * 2


def test_seed_that_diverged_before_its_first_evaluation_leaves_no_number(tmp_path: Path) -> None:
    whole = write_result(tmp_path, 0.6, method="fedavg", seed=1)
    lost = write_result(tmp_path, None, method="fedavg", seed=2, reached=3, **LOST)
    setting = Setting({}, (whole, lost))
    assert math.isnan(setting.final("mean"))
    assert math.isnan(setting.spread("mean"))
    (told,) = rows(group([whole, lost]))
    assert (told["rounds"], told["diverged"]) == (3, 1)


def test_seed_that_is_still_on_its_way_is_left_out(tmp_path: Path) -> None:
    whole = write_result(tmp_path, 0.6, method="fedavg", seed=1)
    young = write_result(tmp_path, None, method="fedavg", seed=2, state="running", reached=1)
    assert Setting({}, (whole, young)).final("mean") == 0.6


def test_setting_that_diverged_never_wins(tmp_path: Path) -> None:
    runs = [
        write_result(tmp_path, 0.9, method="fedavg", client_lr=0.5, reached=3, **LOST),
        write_result(tmp_path, 0.4, method="fedavg", client_lr=0.1),
    ]
    (winner,) = rows(group(runs))
    assert winner["mean"] == 0.4


def test_equal_settings_are_shown_at_the_smaller_rates(tmp_path: Path) -> None:
    rates = [(0.1, 0.5), (0.1, 0.3), (0.5, 0.1)]
    runs = [write_result(tmp_path, 0.5, client_lr=c, server_lr=s) for c, s in rates]
    for order in (runs, runs[::-1]):
        (shown,) = rows(group(order))
        assert (shown["client_lr"], shown["server_lr"]) == (0.1, 0.3)


def test_label_makes_another_entry_and_no_other_setting(tmp_path: Path) -> None:
    named = {"method": "craft", "label": "mine"}
    runs = [write_result(tmp_path / "b", 0.4, **named, seed=seed) for seed in (1, 2)]
    runs.append(write_result(tmp_path, 0.5, method="craft"))
    assert [(r["method"], r["settings"], r["seeds"]) for r in rows(group(runs))] == [
        ("craft", 1, 1),
        ("mine", 1, 2),
    ]


def test_runs_planned_for_fewer_rounds_do_not_speak_for_a_method(tmp_path: Path) -> None:
    """A good run of 6 rounds is not shown beside rivals that were trained for 12."""
    runs = [
        write_result(tmp_path, mean, method=method, rounds=rounds)
        for method, rounds, mean in [
            ("craft", 6, 0.3),
            ("craft", 12, 0.49),
            ("fedavg", 6, 0.101),
            ("fedavg", 12, 0.1),
        ]
    ]
    assert [(r["method"], r["rounds"], r["mean"]) for r in rows(group(runs))] == [
        ("fedavg", 12, 0.1),
        ("craft", 12, 0.49),
    ]
    assert not note(rows(group(runs)))


def test_numbers_after_different_rounds_are_not_ranked_against_each_other(tmp_path: Path) -> None:
    ends = {"fedavg": (6, 0.9), "fedprox": (12, 0.3), "craft": (12, 0.4)}
    runs = [
        write_result(tmp_path, mean, method=method, rounds=rounds)
        for method, (rounds, mean) in ends.items()
    ]
    found = rows(group(runs))
    assert [r["method"] for r in found] == ["fedavg", "fedprox", "craft"]
    assert [r["method"] for r in rivals(found)] == ["fedprox", "craft"]
    assert note(found) == "Rounds differ: only the methods at 12 rounds are ranked."
    assert note(found[:2]) == "Rounds differ, so no number is marked as best."
    assert note(found[1:]) == ""
