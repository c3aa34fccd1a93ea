"""A sweep does every run once, whatever happens to it on the way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedcraft.config.settings import usable_cores
from fedcraft.config.toml import config_text
from fedcraft.errors import ConfigError, DataError, MissingExtraError
from fedcraft.runs import Run
from fedcraft.runs.verify import accept
from fedcraft.studies.plan import Plan
from fedcraft.studies.runner import ChildPool
from fedcraft.studies.sweep import Observer, SweepResult, sweep

TINY: dict[str, Any] = {
    "rounds": 12,
    "clients": 10,
    "clients_per_round": 4,
    "evaluate_every": 4,
    "checkpoint_every": 3,
    "validation_fraction": 0.25,
}
GRID_OF_24 = {
    "method": ["craft", "fedavg", "fedfv"],
    "client_lr": [0.05, 0.1],
    "seed": [1, 2, 3, 4],
}
KILLS = 3


def tables(folder: Path) -> dict[str, bytes]:
    names = ("clients.csv", "conflicts.csv", "model.safetensors", "split.npz")
    return {
        f"{run.name}/{name}": (run / name).read_bytes()
        for run in sorted(folder.iterdir())
        for name in names
    }


def started(folder: Path) -> int:
    """Runs that have written their first round."""
    files = folder.glob("*/metrics.jsonl") if folder.is_dir() else ()
    return sum(file.stat().st_size > 0 for file in files)


def wait_for(condition: Any, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return sweep({**TINY, "grid": GRID_OF_24}, out=tmp_path_factory.mktemp("whole"), jobs=2)


def test_killed_three_times_ends_with_the_tables_of_an_undisturbed_sweep(
    undisturbed: SweepResult, tmp_path: Path
) -> None:
    script = tmp_path / "go.py"
    given = {**TINY, "grid": GRID_OF_24}
    out = tmp_path / "out"
    script.write_text(
        "from fedcraft.studies.sweep import sweep\n"
        f"result = sweep({given!r}, out={str(out)!r}, jobs=2)\n"
        "print(len([r for r in result.runs if r.state == 'finished']), len(result.failures))\n"
    )
    draw = random.Random(11)
    for kill in range(KILLS):
        process = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
        goal = started(out) + draw.randint(2, 5)
        wait_for(lambda goal=goal: started(out) >= goal, process)
        time.sleep(draw.random() * 0.2)
        assert process.poll() is None, f"ended before kill {kill + 1}"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    told = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["24", "0"]
    assert len(list(out.iterdir())) == 24
    assert tables(out) == tables(undisturbed.folder)


def test_second_call_does_nothing(undisturbed: SweepResult) -> None:
    class Watch(Observer):
        waiting = -1

        def planned(self, results: Any, waiting: int) -> None:
            self.waiting = waiting

    watch = Watch()
    before = {p: p.stat().st_mtime_ns for p in undisturbed.folder.rglob("*")}
    again = sweep({**TINY, "grid": GRID_OF_24}, out=undisturbed.folder, observer=watch)
    assert watch.waiting == 0
    assert before == {p: p.stat().st_mtime_ns for p in undisturbed.folder.rglob("*")}
    assert again.rows() == undisturbed.rows()


def test_best_is_chosen_on_validation_and_on_test_and_says_which(undisturbed: SweepResult) -> None:
    assert undisturbed.judges == ("validation", "test")
    for judge, metric in (("validation", "validation_mean"), ("test", "mean")):
        rows = undisturbed.rows(judge)
        assert [row["method"] for row in rows] == ["fedavg", "fedfv", "craft"]
        assert {row["chosen_on"] for row in rows} == {judge}
        for row in rows:
            rates = {
                lr: sum(r.final(metric) for r in undisturbed.runs if at(r, row["method"], lr)) / 4
                for lr in GRID_OF_24["client_lr"]
            }
            assert row["client_lr"] == max(rates, key=rates.__getitem__)
            assert row["seeds"] == 4


def at(result: Run, method: str, client_lr: float) -> bool:
    return result.method == method and result.config.client_lr == client_lr


def test_sweep_results_are_frames(undisturbed: SweepResult) -> None:
    assert {"mean", "best10", "worst10", "std", "conflicts"} <= set(undisturbed.table().columns)
    clients = undisturbed.clients()
    assert clients["run"].nunique() == 24
    assert set(clients["method"]) == {"craft", "fedavg", "fedfv"}


def test_missing_pandas_is_reported_with_its_pip_command(
    undisturbed: SweepResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for frame in (undisturbed.table, undisturbed.clients):
        with pytest.raises(MissingExtraError, match=r"fedcraft\[report\]"):
            frame()


def test_clients_of_a_sweep_without_a_finished_run_are_an_error(tmp_path: Path) -> None:
    placed = sweep(Plan(TINY, {"seed": [1, 2]}), out=tmp_path, runner=lambda *_: [])
    with pytest.raises(DataError, match="none of its 2 runs"):
        placed.clients()


def test_cores_are_counted_where_no_affinity_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert usable_cores() == 7


def test_runs_of_a_sweep_use_one_process_each(undisturbed: SweepResult) -> None:
    for run in undisturbed.runs:
        assert (run.config.executor, run.config.workers) == ("serial", 1)


def test_failure_is_reported_and_the_others_are_done(tmp_path: Path) -> None:
    variants = [
        {"method": "fedavg", "client_lr": 900.0, "nonfinite": "raise"},
        {"method": "fedavg", "client_lr": 0.1},
    ]
    result = sweep(Plan(TINY | {"rounds": 6}, {}, variants), out=tmp_path, jobs=1)
    assert [run.state for run in result.runs] == ["failed", "finished"]
    (error,) = result.failures.values()
    assert "NaN or Inf" in error
    assert len(result.rows()) == 1


def test_folder_that_is_another_run_now_is_refused(tmp_path: Path) -> None:
    plan = Plan(TINY, {"seed": [1]})
    (placed,) = sweep(plan, out=tmp_path, runner=lambda *_: []).runs
    (placed.directory / "config.toml").write_bytes(config_text(placed.config.but(workers=3)))
    accept(placed.directory)
    sweep(plan, out=tmp_path, runner=lambda *_: [])
    (placed.directory / "config.toml").write_bytes(config_text(placed.config.but(rounds=60)))
    accept(placed.directory)
    with pytest.raises(ConfigError) as caught:
        sweep(plan, out=tmp_path, runner=lambda *_: [])
    for told in (str(placed.directory), "rounds is 60 instead of 12", "Move the folder out"):
        assert told in str(caught.value)


def test_a_run_is_not_a_folder_for_runs(undisturbed: SweepResult) -> None:
    run = undisturbed.runs[0].directory
    before = sorted(run.iterdir())
    with pytest.raises(ConfigError, match=r"out: .* is a run itself"):
        sweep(Plan(TINY), out=run)
    assert sorted(run.iterdir()) == before


def test_dead_worker_is_replaced_and_takes_only_its_own_run_with_it(tmp_path: Path) -> None:
    class Killer(Observer):
        killed: Path | None = None

        def progress(self, directory: Path, record: Any) -> None:
            if self.killed is None:
                self.killed = directory
                (worker,) = children(os.getpid())
                os.kill(worker, signal.SIGKILL)

    killer = Killer()
    base = TINY | {"rounds": 60, "checkpoint_every": 20}
    plan = Plan(base, {"seed": [1, 2]})
    result = sweep(plan, out=tmp_path, jobs=1, observer=killer)
    assert killer.killed is not None
    assert list(result.failures) == [killer.killed.name]
    assert "signal 9" in result.failures[killer.killed.name]
    assert sum(run.state == "finished" for run in result.runs) == 1
    assert not sweep(plan, out=tmp_path, jobs=1).failures


def test_error_of_an_observer_comes_out(tmp_path: Path) -> None:
    class Broken(Observer):
        def ended(self, directory: Path, error: str) -> None:
            raise RuntimeError("the bar broke")

    with pytest.raises(RuntimeError, match="the bar broke"):
        sweep(Plan(TINY, {"seed": [1]}), out=tmp_path, jobs=1, observer=Broken())


def children(parent: int) -> list[int]:
    psutil = pytest.importorskip("psutil")
    found = psutil.Process(parent).children()
    return [child.pid for child in found if "fedcraft.studies.child" in child.cmdline()]


def test_run_that_another_process_is_doing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(TINY, {"seed": [1]})
    (run,) = sweep(plan, out=tmp_path, jobs=0, runner=lambda *_: []).runs
    hold = (
        "import sys, pathlib\n"
        "from fedcraft.runs.lock import Lock\n"
        f"lock = Lock(pathlib.Path({str(run.directory)!r}))\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", hold]
    waits = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"

        def let_go(seconds: float) -> None:
            waits.append(seconds)
            other.stdin.close()
            other.wait()

        monkeypatch.setattr("fedcraft.studies.sweep.time.sleep", let_go)
        result = sweep(plan, out=tmp_path, jobs=1)
    assert len(waits) == 1
    assert [run.state for run in result.runs] == ["finished"]
    assert not result.failures


def test_the_children_of_a_pool_serve_every_phase(tmp_path, monkeypatch):
    started = []
    popen = subprocess.Popen

    def counted(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", counted)
    with ChildPool() as pool:
        for seed in (1, 2):
            result = sweep(Plan({**TINY, "rounds": 2}, {"seed": [seed]}), out=tmp_path, runner=pool)
            assert not result.failures
            assert len(result.done) == 1
        (child,) = started
        assert child.poll() is None
    assert child.poll() == 0
