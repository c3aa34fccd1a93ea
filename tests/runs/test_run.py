"""A run is read from its directory, checked, and needs no pandas for its numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedcraft
from fedcraft.engine import Callback, RunInfo
from fedcraft.errors import DataError, MissingExtraError
from fedcraft.runs import Run, find_runs

OLD = Path(__file__).with_name("run-of-0.1.0")
TINY = {"rounds": 2, "clients": 6, "samples": 200, "evaluate_every": 1, "executor": "serial"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedcraft.run(TINY, out=tmp_path_factory.mktemp("runs") / "one")


def test_run_holds_what_was_written(run: Run) -> None:
    assert (run.method, run.state, run.done, run.diverged) == ("craft", "finished", True, False)
    assert [record["round"] for record in run.records] == [1, 2]
    assert run.final("mean") == run.curve("mean")[2] == run.evaluation["mean"]
    accuracy = run.clients().query("round == 2 and split == 'test' and metric == 'accuracy'")
    assert run.accuracies() == dict(zip(accuracy["client"], accuracy["value"], strict=True))
    assert set(run.conflicts()["round"]) == {1, 2}
    assert run.rounds()["evaluation.mean"].tolist() == list(run.curve("mean").values())
    assert all(tensor.isfinite().all() for tensor in run.tensors.values())


def test_run_describes_itself(run: Run) -> None:
    assert repr(run).startswith("Run(method=craft, round=2/2, state=finished, mean=0.")
    assert f"<td style='text-align:left'>{run.directory}</td>" in run._repr_html_()
    assert "does not exist" in repr(Run("nowhere"))


def test_run_draws_a_metric_by_round(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    (line,) = run.plot("worst10").get_lines()
    assert dict(zip(*line.get_data(), strict=True)) == run.curve("worst10")
    with pytest.raises(DataError, match="metric: expected one that was evaluated"):
        run.plot("luck")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"fedcraft\[report\]"):
        run.plot()


def test_every_file_is_checked_before_it_is_read(tmp_path: Path) -> None:
    directory = fedcraft.run(TINY, out=tmp_path / "one").directory
    reads = {
        "config.toml": lambda run: run.config,
        "status.json": lambda run: run.state,
        "environment.json": lambda run: run.environment,
        "metrics.jsonl": lambda run: run.records,
        "clients.csv": lambda run: run.accuracies(),
        "conflicts.csv": lambda run: run.conflicts(),
        "labels.csv": lambda run: run.labels(),
        "model.safetensors": lambda run: run.tensors,
    }
    for name, read in reads.items():
        content = (directory / name).read_bytes()
        changed = content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]
        (directory / name).write_bytes(changed)
        with pytest.raises(DataError, match=f"{directory / name} "):
            read(Run(directory))
        (directory / name).write_bytes(content)
        read(Run(directory))


def test_run_that_is_being_written_can_be_read(tmp_path: Path) -> None:
    seen: list[int] = []

    class Reader(Callback):
        def on_start(self, info: RunInfo) -> None:
            self.directory = info.directory

        def on_round(self, record: dict) -> None:
            found = Run(self.directory)
            assert found.state == "running"
            seen.append(found.last_round)

    fedcraft.run(TINY, out=tmp_path / "one", callbacks=[Reader()])
    assert seen == sorted(seen)
    assert seen[-1] > 0


def test_numbers_need_no_pandas(run: Run) -> None:
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "from fedcraft.cli import main\n"
        f"sys.argv = ['fedcraft', 'table', {str(run.directory)!r}]\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert "| CRAFT |" in done.stdout, done.stderr


def test_run_of_version_0_1_0_can_be_read() -> None:
    (old,) = find_runs(OLD)
    assert (old.method, old.state, old.last_round) == ("craft", "finished", 2)
    assert old.config.dataset == "digits"
    assert old.final("mean") == pytest.approx(old.clients().query("round == 2")["value"].mean())
    assert len(old.accuracies()) == 10
    assert not old.diverged


def test_run_of_version_0_1_0_says_in_its_reason_that_it_diverged(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes((OLD / "config.toml").read_bytes())
    (tmp_path / "status.json").write_text('{"state": "stopped", "reason": "not finite: client 3"}')
    assert Run(tmp_path).diverged
    (tmp_path / "status.json").write_text('{"state": "stopped", "reason": "", "diverged": true}')
    assert Run(tmp_path).diverged
