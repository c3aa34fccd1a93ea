"""The run directory: what is written, and that anyone can read it."""

from __future__ import annotations

import io
import json

import numpy as np
import polars
import pytest
from rich.console import Console
from safetensors.torch import load_file

from fedcraft.data import Federation, federate, from_arrays, load
from fedcraft.engine import progress, run
from fedcraft.errors import CheckpointError
from fedcraft.methods import method
from fedcraft.runs import Run
from fedcraft.runs.directory import RunDirectory
from fedcraft.runs.lock import is_free
from fedcraft.runs.tables import Table, check_start


@pytest.fixture(scope="module")
def finished(federation, model, tmp_path_factory):
    from fedcraft.engine import Settings

    place = tmp_path_factory.mktemp("run")
    settings = Settings(
        rounds=12, clients_per_round=5, batch_size=16, evaluate_every=5, executor="serial"
    )
    return run(method("craft"), federation, model, settings, place)


def test_tables_read_with_one_line_of_polars(finished):
    clients = polars.read_csv(finished.directory / "clients.csv")
    conflicts = polars.read_csv(finished.directory / "conflicts.csv")
    metrics = polars.read_ndjson(finished.directory / "metrics.jsonl")

    assert clients.columns == ["round", "client", "split", "metric", "value", "n"]
    assert set(clients["round"]) == {5, 10, 12}
    assert set(clients["split"]) == {"test", "train"}
    assert set(conflicts["round"]) == {5, 10, 12}
    assert set(conflicts["layer"]) == {"1", "3", "all"}
    assert metrics["round"].to_list() == list(range(1, 13))


def test_the_evaluation_is_that_of_the_clients_table(finished):
    clients = polars.read_csv(finished.directory / "clients.csv")
    last = clients.filter((polars.col("round") == 12) & (polars.col("split") == "test"))
    accuracy = last.filter(polars.col("metric") == "accuracy")["value"].to_numpy()

    assert len(accuracy) == 20
    assert finished.evaluation["mean"] == pytest.approx(accuracy.mean(), rel=1e-12)
    assert finished.evaluation["std"] == pytest.approx(accuracy.std(), rel=1e-12)
    assert finished.clients()["accuracy"].tolist() == accuracy.tolist()


def test_the_cosines_of_clients_agree_with_the_certificates(finished):
    """Every round for the whole model, the certified rounds by layer."""
    written = Run(finished.directory)
    cosines = written.cosines()
    whole = cosines[cosines["layer"] == "all"]
    for record in written.records:
        found = whole[whole["round"] == record["round"]]
        assert found["client"].tolist() == record["clients"]
        assert (found["cosine"] < 0).sum() == record["conflicts"]["after"]
    layered = cosines[cosines["layer"] != "all"]
    assert set(layered["round"]) == {5, 10, 12}
    smallest = layered.groupby(["round", "layer"])["cosine"].min()
    certified = written.conflicts().set_index(["round", "layer"])["min_cosine"]
    assert smallest.tolist() == pytest.approx(certified[smallest.index].tolist(), rel=5e-3)


def test_layers_that_are_numbers_have_a_name(finished):
    assert Run(finished.directory).names("layers") == {"1": "Linear 1", "3": "Linear 2"}


def test_no_diagnostics_means_no_cosines(federation, model, settings, tmp_path):
    silent = settings(rounds=2, clients_per_round=2, diagnostics_every=0)
    run(method("craft"), federation, model, silent, tmp_path)
    assert len(Run(tmp_path).cosines()) == len(Run(tmp_path).conflicts()) == 0


def test_the_final_model_and_the_split_are_there(finished, federation):
    model = load_file(finished.directory / "model.safetensors")
    split = Federation.load(finished.directory / "split.npz", federation.dataset)
    status = json.loads((finished.directory / "status.json").read_text())

    assert list(model) == ["1.bias", "1.weight", "3.bias", "3.weight"]
    assert model["1.weight"].equal(finished.tensors["1.weight"])
    assert split.split_hash == status["split_hash"] == federation.split_hash
    assert (status["state"], status["round"]) == ("finished", 12)
    assert {"torch", "numpy"} <= set(
        json.loads((finished.directory / "environment.json").read_text())["packages"]
    )


def test_the_labels_table_counts_every_training_sample(finished, federation):
    labels = polars.read_csv(finished.directory / "labels.csv")

    assert labels["count"].sum() == federation.sizes().sum()
    assert labels.filter(polars.col("client") == 3)["count"].sum() == len(federation.rows(3))


def test_clients_go_by_the_names_of_their_owners(model, settings, tmp_path):
    digits = load("digits")
    owners = np.repeat(["ward-10", "ward-2", "ward-9"], len(digits) // 3)
    data = from_arrays(digits.inputs, digits.labels, owners, scale=16.0)
    once = settings(rounds=1, clients_per_round=2)
    result = run(method("craft"), federate(data, "natural"), model, once, tmp_path)
    assert result.clients()["name"].tolist() == ["ward-10", "ward-2", "ward-9"]
    assert (tmp_path / "owners.csv").read_text() == "client,name\n0,ward-10\n1,ward-2\n2,ward-9\n"
    assert not (tmp_path / "classes.csv").exists()


def test_numbers_read_back_as_the_same_bits(tmp_path):
    values = np.random.default_rng(0).random(50).tolist()
    table = Table(tmp_path / "t.csv")
    table.open("value,text\n")
    table.rows((value, 'a,"b"') for value in values)
    table.close()

    frame = polars.read_csv(tmp_path / "t.csv")
    assert frame["value"].to_list() == values
    assert frame["text"][0] == 'a,"b"'


def test_a_directory_is_free_for_others_even_if_a_file_cannot_be_closed(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path)
    directory.begin({}, {}, state="running")

    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory.tables["metrics"], "close", full)
    with pytest.raises(OSError, match="No space"):
        directory.close()
    with pytest.raises(ValueError, match="closed"):
        directory.tables["clients"].write("late")
    assert is_free(tmp_path)


def test_json_lines_know_no_nan(tmp_path):
    table = Table(tmp_path / "t.jsonl")
    table.open()
    table.json({"loss": float("nan"), "deep": [{"x": float("inf")}]})
    table.close()

    assert json.loads((tmp_path / "t.jsonl").read_text()) == {"loss": None, "deep": [{"x": None}]}


def test_a_table_is_cut_back_to_a_checkpoint_but_never_stretched(tmp_path):
    path = tmp_path / "t.csv"
    table = Table(path)
    table.open("a\n")
    table.rows([[1]])
    known = table.digest
    table.rows([[2], [3]])
    check_start(path, known)
    again = Table(path, known.size)
    again.open("a\n")
    assert path.read_text() == "a\n1\n"
    assert again.digest == known
    with pytest.raises(CheckpointError, match="rows are lost"):
        check_start(path, known.size + 1)
    path.write_text("a\n2\n")
    with pytest.raises(CheckpointError, match="were changed"):
        check_start(path, known)
    Table(path).open("a\n")
    assert path.read_text() == "a\n"


@pytest.mark.parametrize("style", ["bar", "lines", "auto"])
def test_progress_shows_rounds_accuracy_and_conflicts(federation, model, settings, style):
    text = io.StringIO()
    console = Console(file=text, force_terminal=style == "bar", width=160)
    run(
        method("craft"), federation, model, settings(rounds=3), callbacks=[progress(style, console)]
    )

    shown = text.getvalue()
    assert "3/3" in shown
    for word in ("mean 0.", "worst 10 %", "conflicts", "20 clients, 5 a round"):
        assert word in shown


def test_a_quiet_run_says_nothing(federation, model, settings):
    text = io.StringIO()
    quiet = progress("quiet", Console(file=text))
    run(method("craft"), federation, model, settings(rounds=1), callbacks=[quiet])

    assert text.getvalue() == ""
