"""All clients are scored in one pass, with the right numbers."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcraft.data import federate, load
from fedcraft.engine import run
from fedcraft.local import LocalObjective
from fedcraft.methods import method
from fedcraft.metrics.scores import summary
from fedcraft.models.flat import FlatModel


def _by_hand(model, vector, federation, split):
    """Score client by client, the slow way."""
    flat = FlatModel(copy.deepcopy(model))
    flat.load(vector)
    flat.module.eval()
    scores = []
    with torch.no_grad():
        for client in range(len(federation)):
            inputs, labels = federation.client(client).tensors(split)
            outputs = flat(inputs)
            right = (outputs.argmax(1) == labels).double().mean()
            scores.append((float(right), float(cross_entropy(outputs, labels))))
    return np.array(scores).T


@pytest.mark.parametrize("split", ["test", "train", "validation"])
def test_one_pass_scores_like_a_loop_over_clients(split, model, settings):
    federation = federate(
        load("digits"), "dirichlet", clients=15, alpha=0.3, seed=1, validation_fraction=0.2
    )
    result = run(method("fedavg"), federation, model, settings(rounds=1, evaluate_batch=7))
    accuracy, loss = _by_hand(model, result.vector, federation, split)

    assert result.scores[split].accuracy == pytest.approx(accuracy, abs=1e-12)
    assert result.scores[split].loss == pytest.approx(loss, rel=1e-5)
    sizes = federation.sizes(split)
    assert result.evaluation[f"{split}_loss"] == pytest.approx(
        np.average(loss, weights=sizes), rel=1e-5
    )


def test_a_custom_loss_is_scored_client_by_client(federation, model, settings, monkeypatch):
    def doubled(outputs, labels):
        return 2 * cross_entropy(outputs, labels)

    plain = run(method("fedavg"), federation, model, settings(rounds=1, client_lr=1e-9))
    original = LocalObjective.__init__
    monkeypatch.setattr(LocalObjective, "__init__", lambda self, **_: original(self, loss=doubled))
    own = run(method("fedavg"), federation, model, settings(rounds=1, client_lr=1e-9))

    assert own.scores["test"].loss == pytest.approx(2 * plain.scores["test"].loss, rel=1e-5)
    assert own.scores["test"].accuracy.tolist() == plain.scores["test"].accuracy.tolist()


def test_personal_models_are_what_personal_methods_are_judged_by(federation, model, settings):
    shared = run(method("fedavg"), federation, model, settings(rounds=8, server_lr=1.0))
    personal = run(
        method("ditto", local={"lam": 0.0}),
        federation,
        model,
        settings(rounds=8, server_lr=1.0, client_lr=0.3, clients_per_round=20),
    )

    assert personal.evaluation["mean"] > shared.evaluation["mean"] + 0.1


def test_a_client_never_sampled_is_judged_by_the_start(federation, model, settings):
    result = run(method("ditto"), federation, model, settings(rounds=1, clients_per_round=1))
    (sampled,) = result.metrics[0]["clients"]
    accuracy, _ = _by_hand(
        model, torch.nn.utils.parameters_to_vector(model.parameters()).detach(), federation, "test"
    )
    rest = np.delete(np.arange(20), sampled)

    assert result.scores["test"].accuracy[rest] == pytest.approx(accuracy[rest], abs=1e-12)


def test_clients_without_test_samples_are_left_out(model, settings):
    federation = federate(load("digits"), "iid", clients=900, seed=1, train_fraction=0.8)
    sizes = federation.sizes("test")
    assert (sizes == 0).any()
    result = run(method("fedavg"), federation, model, settings(rounds=1))

    assert result.scores["test"].clients.tolist() == np.flatnonzero(sizes).tolist()


_FEW_AND_MANY = """
import json
from fedcraft.data import federate, load
from fedcraft.engine import Settings, run
from fedcraft.methods import method
from fedcraft.models import build

few = federate(load("digits"), "dirichlet", clients=20, alpha=0.5, seed=7)
model = build("mlp", input_shape=few.dataset.input_shape, classes=10, hidden=(16,), seed=3)
settings = Settings(rounds=5, clients_per_round=10, executor="serial", evaluate_every=5)
for federation in (few, few.virtual(100_000)):
    rows = run(method("craft"), federation, model, settings).metrics
    print(json.dumps([max(max(row["clients"]) for row in rows), rows[-1]["peak_memory_mb"]]))
"""


def test_a_hundred_thousand_clients_cost_the_memory_of_the_few_active():
    # A process of its own: the peaks of other tests would hide that of this one.
    done = subprocess.run(
        [sys.executable, "-c", _FEW_AND_MANY], capture_output=True, text=True, check=True
    )
    (_, few), (largest, many) = map(json.loads, done.stdout.splitlines())

    assert largest > 20
    assert many - few < 20  # MiB; one model per client would be 500


def test_the_summary_weighs_losses_by_samples_and_accuracies_by_clients(
    federation, model, settings
):
    result = run(method("fedavg"), federation, model, settings(rounds=1))
    found = summary(result.scores)
    test = result.scores["test"]

    assert found["mean"] == pytest.approx(test.accuracy.mean())
    assert found["mean_weighted"] == pytest.approx(np.average(test.accuracy, weights=test.samples))
