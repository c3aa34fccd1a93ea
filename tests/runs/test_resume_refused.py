"""What a run directory is not resumed with: other settings, another model, split or state."""

from __future__ import annotations

import shutil

import pytest
from torch.nn.functional import cross_entropy

from fedcraft.data import federate, load
from fedcraft.engine import run
from fedcraft.errors import CheckpointError, ConfigError
from fedcraft.methods import method
from fedcraft.models import build
from fedcraft.runs.statefile import write_state


def test_a_directory_with_a_run_is_not_overwritten(federation, model, settings, tmp_path):
    run(method("craft"), federation, model, settings(rounds=1), tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text()

    with pytest.raises(ConfigError, match="already holds a run"):
        run(method("craft"), federation, model, settings(rounds=1), tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_other_settings_are_refused_by_name(federation, model, settings, tmp_path):
    run(method("craft"), federation, model, settings(rounds=2), tmp_path)

    with pytest.raises(CheckpointError, match=r"client_lr was 0.05, is 0.2"):
        run(method("craft"), federation, model, settings(client_lr=0.2), tmp_path, resume=True)
    with pytest.raises(CheckpointError, match=r"aggregator was 'craft', is 'average'"):
        run(method("fedavg"), federation, model, settings(), tmp_path, resume=True)


def test_another_loss_is_refused(federation, model, settings, tmp_path):
    run(method("fedavg", local={"loss": _mild}), federation, model, settings(rounds=1), tmp_path)

    with pytest.raises(CheckpointError, match=r"local was .*_mild\)', is .*_milder\)'"):
        run(
            method("fedavg", local={"loss": _milder}),
            federation,
            model,
            settings(),
            tmp_path,
            resume=True,
        )


def _mild(outputs, labels):
    return cross_entropy(outputs, labels, label_smoothing=0.1)


def _milder(outputs, labels):
    return cross_entropy(outputs, labels, label_smoothing=0.2)


def test_another_model_is_refused(federation, model, settings, tmp_path):
    run(method("craft"), federation, model, settings(rounds=2), tmp_path)
    shape = federation.dataset.input_shape
    other = build("mlp", input_shape=shape, classes=10, hidden=(17,))

    with pytest.raises(CheckpointError, match=r"model was '1210 parameters"):
        run(method("craft"), federation, other, settings(), tmp_path, resume=True)


def test_a_state_that_is_not_a_run_is_refused(federation, model, settings, tmp_path):
    run(method("craft"), federation, model, settings(rounds=2, keep_checkpoints=1), tmp_path)
    write_state(tmp_path / "checkpoints/round-000002", {"round": 2})

    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(CheckpointError, match=r"round-000002: it is not a run's checkpoint"),
    ):
        run(method("craft"), federation, model, settings(), tmp_path, resume=True)


def test_a_state_that_is_not_a_run_is_passed_over_and_names_no_client(
    federation, model, settings, tmp_path
):
    run(method("ditto"), federation, model, settings(rounds=2), tmp_path)
    (tmp_path / "checkpoints/round-000005").mkdir()
    write_state(tmp_path / "checkpoints/round-000005", {"round": 5})

    with pytest.warns(UserWarning, match="passed over"):
        result = run(method("ditto"), federation, model, settings(), tmp_path, resume=True)
    assert result.round == 6


def test_another_split_is_refused(federation, model, settings, tmp_path):
    run(method("craft"), federation, model, settings(rounds=2), tmp_path)
    other = federate(load("digits"), "iid", clients=20, seed=1)

    with pytest.raises(CheckpointError, match="another split"):
        run(method("craft"), other, model, settings(), tmp_path, resume=True)


def test_a_checkpoint_of_another_run_is_refused(federation, model, settings, tmp_path):
    run(method("craft"), federation, model, settings(rounds=2), tmp_path / "one")
    run(method("fedavg"), federation, model, settings(rounds=2), tmp_path / "two")
    shutil.rmtree(tmp_path / "one/checkpoints")
    shutil.copytree(tmp_path / "two/checkpoints", tmp_path / "one/checkpoints")

    with (
        pytest.warns(UserWarning, match="passed over"),
        pytest.raises(CheckpointError, match=r"round-000002: .*metrics.jsonl"),
    ):
        run(method("craft"), federation, model, settings(), tmp_path / "one", resume=True)
