"""One line of the configuration logs a run to TensorBoard or MLflow too."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedcraft.config.schema import Config
from fedcraft.engine import Callback
from fedcraft.errors import MissingExtraError
from fedcraft.studies.run import resume, run
from fedcraft.studies.tracking import numbers, trackers

TINY = {"rounds": 3, "clients": 10, "clients_per_round": 4, "evaluate_every": 3, "workers": 1}


def test_numbers_of_a_record_are_flat() -> None:
    record = {"round": 2, "clients": [1], "evaluation": {"mean": 0.5}, "ok": True, "x": None}
    assert dict(numbers(record)) == {"evaluation/mean": 0.5}


def test_tensorboard_holds_every_round(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run(TINY, tracking="tensorboard", out=tmp_path / "a")
    events = accumulator.EventAccumulator(str(result.directory / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("update_norm")] == [1, 2, 3]
    (mean,) = events.Scalars("evaluation/mean")
    assert mean.value == pytest.approx(result.final("mean"))


def test_tensorboard_of_a_resumed_run_has_every_round_once(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    class Crash(Callback):
        def on_round(self, record: Mapping[str, Any]) -> None:
            if record["round"] == 5:
                raise RuntimeError("the machine went away")

    given = TINY | {"rounds": 8, "evaluate_every": 2, "checkpoint_every": 4}
    with pytest.raises(RuntimeError, match="went away"):
        run(given, tracking="tensorboard", out=tmp_path / "a", callbacks=(Crash(),))
    result = resume(tmp_path / "a")
    events = accumulator.EventAccumulator(str(result.directory / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("update_norm")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [event.step for event in events.Scalars("evaluation/mean")] == [2, 4, 6, 8]


@pytest.mark.parametrize(("done", "first_purged"), [(0, 0), (4, 5)])
def test_tensorboard_forgets_what_will_be_written_again(
    done: int, first_purged: int, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    (board,) = trackers(Config(tracking="tensorboard"), tmp_path)
    purged = []
    board._make = lambda _, purge_step: purged.append(purge_step)
    board.on_start(SimpleNamespace(first_round=done))
    assert purged == [first_purged]


@pytest.mark.slow
def test_mlflow_holds_parameters_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    result = run(TINY, tracking="mlflow", out=tmp_path / "a")
    (found,) = mlflow.search_runs(experiment_names=["fedcraft"], output_format="list")
    assert found.data.params["method"] == "craft"
    assert found.data.metrics["evaluation/mean"] == pytest.approx(result.final("mean"))
    assert found.info.status == "FINISHED"
    assert {path.name for path in tmp_path.iterdir()} == {"a"}, "nothing outside the run directory"


@pytest.mark.parametrize(
    ("tracking", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")]
)
def test_missing_extra_is_reported_with_its_pip_command(
    tracking: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"fedcraft\[tracking\]"):
        run(TINY, tracking=tracking, out=tmp_path / "a")
