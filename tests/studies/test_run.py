"""A run directory holds all that is needed to repeat the run, and is never overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedcraft
from fedcraft.engine import Callback
from fedcraft.errors import BusyError, ConfigError, DataError, FedcraftError, InputError
from fedcraft.runs import Run, find_runs
from fedcraft.runs.lock import Lock
from fedcraft.runs.verify import accept
from fedcraft.studies.run import resume, run
from tests.studies.conftest import prepare

TINY = {
    "rounds": 4,
    "clients": 10,
    "clients_per_round": 4,
    "evaluate_every": 2,
    "diagnostics_every": 1,
    "checkpoint_every": 1,
    "executor": "serial",
}
SAME_BITS = ("clients.csv", "conflicts.csv", "labels.csv", "split.npz", "model.safetensors")


class StopAt(Callback):
    """Dies after some rounds, as a machine does."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_round(self, record: Any) -> None:
        if record["round"] == self.last:
            raise RuntimeError("the machine went away")


def same_bits(one: Path, other: Path) -> None:
    for name in SAME_BITS:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    untimed = [
        [{k: v for k, v in r.items() if k not in ("seconds", "peak_memory_mb")} for r in rows]
        for rows in (Run(one).records, Run(other).records)
    ]
    assert untimed[0] == untimed[1]


@pytest.mark.parametrize("method", ["craft", "fedfv", "ditto+craft"])
def test_its_config_toml_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    first = run(TINY, method=method, out=tmp_path / "a")
    again = run(tmp_path / "a" / "config.toml", out=tmp_path / "b")
    assert first.config == again.config
    same_bits(first.directory, again.directory)


def test_another_seed_gives_other_bits(tmp_path: Path) -> None:
    run(TINY, out=tmp_path / "a")
    run(tmp_path / "a", seed=5, out=tmp_path / "b")
    with pytest.raises(AssertionError):
        same_bits(tmp_path / "a", tmp_path / "b")


def test_resumed_run_gives_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    run(TINY, out=tmp_path / "whole")
    with pytest.raises(RuntimeError, match="went away"):
        run(TINY, out=tmp_path / "cut", callbacks=(StopAt(3),))
    assert Run(tmp_path / "cut").state == "failed"
    assert resume(tmp_path / "cut").state == "finished"
    same_bits(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_trained_further_gives_the_bits_of_a_longer_one(tmp_path: Path) -> None:
    longer = TINY["rounds"] * 2
    run(TINY, out=tmp_path / "long", rounds=longer)
    short = run(TINY, out=tmp_path / "short")
    further = resume(short.directory, rounds=longer)
    assert further.config.rounds == further.status["round"] == longer
    same_bits(tmp_path / "long", tmp_path / "short")


def test_a_run_is_not_made_shorter(tmp_path: Path) -> None:
    done = run(TINY, out=tmp_path / "a")
    with pytest.raises(ConfigError, match="rounds: expected at least the"):
        resume(done.directory, rounds=1)
    assert done.config == Run(done.directory).config


def test_rounds_are_not_written_to_a_run_that_another_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> None:
        raise BusyError("another process has it")

    done = run(TINY, out=tmp_path / "a")
    monkeypatch.setattr("fedcraft.engine.run", busy)
    with pytest.raises(BusyError):
        resume(done.directory, rounds=8)
    assert Run(done.directory).config.rounds == TINY["rounds"]


def test_configuration_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedcraft.atomic.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        prepare(fedcraft.Config(), tmp_path / "a")
    assert not (tmp_path / "a" / "config.toml").exists()


def test_configuration_without_a_method_is_not_a_run(tmp_path: Path) -> None:
    directory = prepare(fedcraft.Config.model_validate(TINY | {"method": "fedavg"}), tmp_path / "a")
    (directory / "config.toml").write_text("")
    accept(directory)
    with pytest.raises(ConfigError, match=r"a/config\.toml: method: expected the method"):
        resume(directory)


def test_finished_run_is_left_alone(tmp_path: Path) -> None:
    done = run(TINY, out=tmp_path / "a")
    before = {path: path.stat().st_mtime_ns for path in done.directory.rglob("*")}
    resume(done.directory)
    assert before == {path: path.stat().st_mtime_ns for path in done.directory.rglob("*")}


def test_directory_with_a_run_is_never_written_to(tmp_path: Path) -> None:
    run(TINY, out=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"holds a run already.*fedcraft resume"):
        run(TINY, out=tmp_path / "a")


def test_folder_of_a_run_that_never_started_is_free_for_the_corrected_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    too_late = {"samples": 5000}, {"min_size": 500}, {"model_options": {"widht": 3}}
    for out in (tmp_path / "a", None):
        for wrong in (*too_late, {"model": "json:nix"}, {"device": "cuda"}):
            with pytest.raises(FedcraftError):
                run(TINY, out=out, **wrong)
    assert not [path for path in tmp_path.rglob("*") if path.name != "runs"]
    assert run(TINY, out=tmp_path / "a").state == "finished"


def test_folder_of_a_run_that_has_started_is_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="went away"):
        run(TINY, out=tmp_path / "a", callbacks=(StopAt(1),))
    with pytest.raises(ConfigError, match="holds a run already"):
        run(TINY, out=tmp_path / "a")


@pytest.mark.parametrize("trace", ["status.json", "checkpoints"])
def test_folder_with_any_trace_of_a_run_is_left_as_it_is(tmp_path: Path, trace: str) -> None:
    (tmp_path / "a" / trace).mkdir(parents=True)
    with pytest.raises(ConfigError, match="already holds a run"):
        run(TINY, out=tmp_path / "a")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {trace, ".lock"}


def test_folder_that_another_process_holds_is_left_as_it_is(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "a")
    with pytest.raises(BusyError):
        run(TINY, out=tmp_path / "a")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {".lock"}
    lock.release()


def test_too_many_rounds_are_reported_like_any_wrong_key(tmp_path: Path) -> None:
    directory = prepare(fedcraft.Config.model_validate(TINY), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"rounds: expected a number of at most .* 99999999"):
        resume(directory, rounds=99_999_999)


def test_runs_without_out_get_separate_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [run(TINY, rounds=1).directory.name for _ in range(3)]
    assert names[1:] == [f"{names[0]}-2", f"{names[0]}-3"]
    assert names[0].startswith("craft-")


def test_tables_are_tidy(tmp_path: Path) -> None:
    result = run(TINY, out=tmp_path / "a", validation_fraction=0.25)
    clients = result.clients()
    assert list(clients.columns) == ["round", "client", "split", "metric", "value", "n"]
    assert set(clients["split"]) == {"train", "test", "validation"}
    last = clients.query("split == 'test' and metric == 'accuracy' and round == 4")
    assert len(last) == 10
    assert last["value"].mean() == pytest.approx(result.final("mean"))
    assert len(result.rounds()) == 4
    assert result.labels()["count"].sum() > 0
    assert "min_cosine" in result.conflicts()


def test_plain_csv_reads_in_polars(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    result = run(TINY, out=tmp_path / "a")
    table = polars.read_csv(result.directory / "clients.csv")
    assert table.height == len(result.clients())


def test_missing_table_is_reported(tmp_path: Path) -> None:
    directory = prepare(fedcraft.Config.model_validate(TINY), tmp_path / "a")
    with pytest.raises(DataError, match="the run is new"):
        Run(directory).clients()


def test_results_are_found_below_a_folder(tmp_path: Path) -> None:
    run(TINY, out=tmp_path / "deep" / "a")
    assert [r.directory.name for r in find_runs(tmp_path)] == ["a"]
    with pytest.raises(DataError, match="nowhere"):
        find_runs(tmp_path / "nowhere")


def test_diverged_run_is_stopped_and_known_as_such(tmp_path: Path) -> None:
    result = run(TINY, out=tmp_path / "a", method="fedavg", client_lr=900.0, nonfinite="stop")
    assert result.state == "stopped"
    assert result.diverged
    assert result.done


def test_user_table_and_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{k % 5},{k % 7}.0,{k % 3}.5,{k % 2}" for k in range(100)]
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(["hospital,x,y,label", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "own_model.py").write_text(
        "from torch import nn\n\n"
        "def net(input_shape, classes, width=4):\n"
        "    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Linear(width, classes))\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run(
        dataset=str(table),
        model="own_model:net",
        model_options={"width": 3},
        data_options={"client": "hospital"},
        clients=5,
        clients_per_round=2,
        rounds=2,
        executor="serial",
        out=tmp_path / "run",
    )
    assert result.state == "finished"
    assert result.config.partition == "natural"


def test_samples_limits_the_data(tmp_path: Path) -> None:
    result = run(TINY, samples=250, out=tmp_path / "a")
    last = result.clients().query("round == 4 and metric == 'accuracy'")
    assert last["n"].sum() == 250
    with pytest.raises(ConfigError, match="samples"):
        run(TINY, samples=5000, out=tmp_path / "b")


def test_status_says_how_it_ended(tmp_path: Path) -> None:
    result = run(TINY, out=tmp_path / "a")
    status = json.loads((result.directory / "status.json").read_text())
    assert (status["state"], status["round"]) == ("finished", 4)
    assert status["split_hash"]


OWN_MODELS = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=64, outputs=10):
        super().__init__(nn.Linear(width, 5), nn.Linear(5, outputs))

class Pair(Net):
    def forward(self, inputs):
        return super().forward(inputs), inputs

one_layer = lambda: nn.Sequential(nn.Linear(64, 10))
made = Net()
"""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "own_models:Net", "model_options": {"width": 9}}, r"\(2, 64\).*2x64 and 9x5"),
        ({"model": "own_models:Net", "model_options": {"outputs": 4}}, r"\(2, 10\).*\(2, 4\)"),
        ({"model": "own_models:Pair"}, "own_models:Pair.*found a tuple"),
        ({"model": "own_models:made"}, "must be a class or function"),
        ({"method": "fedrep", "local": {"head": "nowhere"}}, r"head.*found \['nowhere'\]"),
        ({"method": "fedrep+craft", "local": {"head": 5}}, "local: head: expected a name.*found 5"),
        ({"method": "fedrep", "model": "own_models:one_layer"}, "head.*the whole model"),
    ],
)
def test_model_that_cannot_be_trained_is_reported_before_anything_is_written(
    given: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models.py").write_text(OWN_MODELS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises((ConfigError, InputError), match=message):
        run(TINY, out=tmp_path / "a", **given)
    assert not (tmp_path / "a").exists()
