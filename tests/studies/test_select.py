"""Methods are compared on one problem, and a seed that diverged is not forgotten."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedcraft.report import RunData
from fedcraft.report.groups import Setting as ReportSetting
from fedcraft.runs.reader import Result
from fedcraft.runs.select import Setting, best, row
from fedcraft.studies.estimate import estimate
from fedcraft.studies.plan import Plan
from fedcraft.studies.results import collect
from fedcraft.studies.sweep import SweepResult, repeat_best

LOST = {"state": "stopped", "reason": "not finite: client 3"}


def _made_results() -> ModuleType:
    path = Path(__file__).with_name("conftest.py")
    spec = importlib.util.spec_from_file_location("made_results", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


write_result = _made_results().write_result


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
    rows = [(r["problem"], r["method"], r["mean"]) for r in two_problems.rows()]
    assert rows == [
        ("digits & mlp, alpha 0.1", "craft", 0.5),
        ("digits & mlp, alpha 0.1", "fedavg", 0.3),
        ("digits & mlp, alpha 100.0", "craft", 0.8),
        ("digits & mlp, alpha 100.0", "fedavg", 0.9),
    ]
    assert "problem" in two_problems.table()
    assert next(iter(two_problems.best())) == "craft on digits & mlp, alpha 0.1"
    assert [len(part.runs) for part in two_problems.problems()] == [3, 2]


def test_one_problem_needs_no_name(two_problems: SweepResult) -> None:
    one = SweepResult(two_problems.folder, two_problems.runs[:3])
    assert list(one.best()) == ["craft", "fedavg"]
    assert all("problem" not in r for r in one.rows())


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
        for name in ("labels.csv", "environment.json"):
            (run.directory / name).write_text("{}")
    stored = collect(two_problems.runs, tmp_path / "stored")
    assert len(list(stored.glob("*/environment.json"))) == 4


def test_repetition_that_is_there_already_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [write_result(tmp_path, 0.5, method="craft", seed=seed) for seed in (77, 78)]
    lost = {runs[1].directory.name: "the machine went away"}
    again = SweepResult(tmp_path, (Result(runs[1].directory),))
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
    ours = Setting("fedavg", (whole, lost))
    theirs = ReportSetting({}, (RunData(whole.directory), RunData(lost.directory)))
    for setting in (ours, theirs):
        assert math.isnan(setting.final("mean"))
    assert math.isnan(theirs.spread("mean"))
    told = row(ours, "test")
    assert (told["rounds"], told["diverged"]) == (3, 1)


def test_seed_that_is_still_on_its_way_is_left_out(tmp_path: Path) -> None:
    whole = write_result(tmp_path, 0.6, method="fedavg", seed=1)
    young = write_result(tmp_path, None, method="fedavg", seed=2, state="running", reached=1)
    theirs = ReportSetting({}, (RunData(whole.directory), RunData(young.directory)))
    assert Setting("fedavg", (whole, young)).final("mean") == theirs.final("mean") == 0.6


def test_setting_that_diverged_never_wins(tmp_path: Path) -> None:
    runs = [
        write_result(tmp_path, 0.9, method="fedavg", client_lr=0.5, reached=3, **LOST),
        write_result(tmp_path, 0.4, method="fedavg", client_lr=0.1),
    ]
    (winner,) = best(runs)
    assert winner.final("mean") == 0.4
