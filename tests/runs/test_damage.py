"""A damaged file is an error that names it, or is made again: never a silent wrong number."""

from __future__ import annotations

import json
import shutil
import warnings

import pytest

import fedcraft
from benchmarks.torture import corrupt, files_of
from fedcraft.config.toml import load_config
from fedcraft.engine import Callback, run
from fedcraft.errors import CheckpointError, DamageError, FedcraftError
from fedcraft.methods import method
from fedcraft.runs.checkpoint import Checkpoints
from fedcraft.runs.seal import Seal, read_checked
from fedcraft.runs.verify import accept, check, unconfirmed
from tests.studies.conftest import prepare

_TABLES = ("metrics.jsonl", "clients.csv", "conflicts.csv")
_SEEDS = 16  # for a finished run, and again for one that is going on


class _Copy(Callback):
    """Copy the directory in the middle of a round: a run that is killed there looks like this."""

    def __init__(self, source, target):
        self.source, self.target = source, target

    def on_round(self, record):
        if record["round"] == 5:
            shutil.copytree(self.source, self.target)


@pytest.fixture(scope="module")
def begin(federation, model):
    from fedcraft.engine import Settings

    choice = Settings(
        rounds=6, clients_per_round=5, batch_size=16, evaluate_every=2, executor="serial",
        checkpoint_every=2, diagnostics_every=1,
    )  # fmt: skip

    def work(place, **options):
        return run(method("ditto+craft"), federation, model, choice, place, **options)

    return work


@pytest.fixture(scope="module")
def runs(begin, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    begin(place / "finished", callbacks=[_Copy(place / "finished", place / "killed")])
    return place


@pytest.mark.parametrize("state", ["finished", "killed"])
@pytest.mark.parametrize("seed", range(_SEEDS))
def test_random_damage_is_never_silent(runs, state, seed, begin, tmp_path, same_run):
    place = tmp_path / "run"
    shutil.copytree(runs / state, place)
    what = corrupt(place, seed)
    truth, noticed = Seal.load(runs / state), bool(check(place))
    for name in _TABLES:
        try:
            assert read_checked(place / name) == truth.read(name), what
        except DamageError:
            noticed = True
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            begin(place, resume=True)
            same_run(place, runs / "finished")
            # An older checkpoint cannot be made again.
            assert all(damage.file.startswith("checkpoints/") for damage in check(place))
        except FedcraftError:
            noticed = True
    # What was never confirmed may change unseen: nobody counts it.
    assert noticed or warned or (state == "killed" and what.split()[1] in _TABLES), what


def test_an_intact_run_is_intact_and_checking_changes_nothing(runs):
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    for state in ("finished", "killed"):
        assert check(runs / state) == []
    assert unconfirmed(runs / "finished") == {}
    assert before == {path: path.stat().st_mtime_ns for path in runs.rglob("*")}


def test_the_seal_covers_every_file(runs):
    seal = Seal.load(runs / "finished")
    known = {*seal.files, *seal.rows, "seal.txt"}
    top = {p.name for p in files_of(runs / "finished") if p.parent == runs / "finished"}
    assert top == known


def test_rows_that_were_never_confirmed_do_not_count(runs, tmp_path):
    shutil.copytree(runs / "killed", tmp_path / "run")
    whole = read_checked(tmp_path / "run/metrics.jsonl")
    with (tmp_path / "run/metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 6, "evalu')
    assert read_checked(tmp_path / "run/metrics.jsonl") == whole
    assert unconfirmed(tmp_path / "run") == {"metrics.jsonl": 19}
    assert check(tmp_path / "run") == []


def test_rows_after_the_end_of_a_run_are_damage(runs, tmp_path):
    shutil.copytree(runs / "finished", tmp_path / "run")
    with (tmp_path / "run/metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 7}\n')
    with pytest.raises(DamageError, match=r"metrics.jsonl was changed: 13 bytes were added"):
        read_checked(tmp_path / "run/metrics.jsonl")


def test_a_run_whose_seal_is_lost_is_not_taken_for_an_old_one(runs, tmp_path):
    shutil.copytree(runs / "finished", tmp_path / "run")
    (tmp_path / "run/seal.txt").unlink()
    with pytest.raises(DamageError, match=r"seal.txt is missing.*verify --accept"):
        read_checked(tmp_path / "run/metrics.jsonl")


@pytest.mark.parametrize("lost", range(2, 40, 3))
def test_a_seal_that_lost_its_last_lines_never_hides_rows(runs, tmp_path, lost):
    for state in ("finished", "killed"):
        place = tmp_path / state
        shutil.copytree(runs / state, place)
        truth = {name: read_checked(place / name) for name in _TABLES}
        lines = (place / "seal.txt").read_bytes().splitlines(keepends=True)
        (place / "seal.txt").write_bytes(b"".join(lines[:-lost]))
        for name, whole in truth.items():
            try:
                found = read_checked(place / name)
            except DamageError:
                continue
            # Of a killed run, such rows are as if the process had died before it confirmed them.
            said = state == "killed" and (name in unconfirmed(place) or check(place))
            assert found == whole or said, name


def test_a_checkpoint_that_knows_more_rows_than_the_seal_is_reported(runs, tmp_path):
    place = tmp_path / "run"
    shutil.copytree(runs / "killed", place)
    lines = (place / "seal.txt").read_bytes().splitlines(keepends=True)
    cut = next(i for i, line in enumerate(lines) if b"metrics.jsonl" in line)
    (place / "seal.txt").write_bytes(b"".join(lines[: cut + 1]))
    assert any("seal.txt only" in damage.problem for damage in check(place))


def test_damage_to_a_table_before_the_checkpoint_names_it_and_after_it_costs_rounds_only(
    runs, begin, tmp_path, same_run
):
    for name, place in (("early", 30), ("late", -30)):
        shutil.copytree(runs / "finished", tmp_path / name)
        path = tmp_path / name / "metrics.jsonl"
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(CheckpointError, match=r"metrics.jsonl: its first \d+ bytes"),
    ):
        begin(tmp_path / "early", resume=True)
    with pytest.warns(UserWarning, match="round-000006: .*metrics.jsonl"):
        begin(tmp_path / "late", resume=True)
    same_run(tmp_path / "late", runs / "finished")
    assert "warning: checkpoint passed over" in (tmp_path / "late/log.txt").read_text()


def test_files_that_can_be_made_again_are(runs, begin, tmp_path, same_run):
    shutil.copytree(runs / "finished", tmp_path / "run")
    for name in ("model.safetensors", "labels.csv", "status.json"):
        (tmp_path / "run" / name).write_text("no")
    (tmp_path / "run/split.npz").unlink()
    assert {damage.file for damage in check(tmp_path / "run")} == {
        "model.safetensors", "labels.csv", "status.json", "split.npz",
    }  # fmt: skip
    with pytest.warns(UserWarning, match="it is written again"):
        begin(tmp_path / "run", resume=True)
    same_run(tmp_path / "run", runs / "finished")
    assert check(tmp_path / "run") == []


def test_files_changed_on_purpose_can_be_accepted(runs, tmp_path):
    shutil.copytree(runs / "finished", tmp_path / "run")
    (tmp_path / "run/labels.csv").write_text("client,label,count\n")
    (tmp_path / "run/seal.txt").write_text("nonsense\n")
    assert check(tmp_path / "run")
    accept(tmp_path / "run")
    assert check(tmp_path / "run") == []
    assert read_checked(tmp_path / "run/labels.csv") == b"client,label,count\n"


def test_the_configuration_of_a_run_that_has_not_started_is_sealed_too(tmp_path):
    place = prepare(load_config({"rounds": 2, "clients": 5, "clients_per_round": 2}), tmp_path)
    assert check(place) == []
    path = place / "config.toml"
    path.write_text(path.read_text().replace("rounds = 2", "rounds = 3"))
    with pytest.raises(DamageError, match=r"config.toml is not what the run wrote"):
        fedcraft.resume(place)
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 2"))
    assert fedcraft.resume(place).state == "finished"
    assert check(place) == []


def test_a_run_without_a_seal_is_resumed_and_gets_one(runs, begin, tmp_path, same_run):
    place = tmp_path / "run"
    shutil.copytree(runs / "killed", place)
    status = json.loads((place / "status.json").read_text())
    (place / "status.json").write_text(json.dumps({"state": "running", "round": status["round"]}))
    (place / "seal.txt").unlink()
    checkpoints = Checkpoints(place / "checkpoints")
    for number in checkpoints.rounds():  # fedcraft 0.1.0 kept the sizes of the tables only
        state = checkpoints.read(number)
        sizes = {name: size for name, (size, _) in state["tables"].items()}
        checkpoints.save(number, {**state, "tables": sizes})
    assert read_checked(place / "metrics.jsonl") == (place / "metrics.jsonl").read_bytes()
    begin(place, resume=True)
    same_run(place, runs / "finished")
    assert check(place) == []
    assert "model.safetensors" in Seal.load(place).files
