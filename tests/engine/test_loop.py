"""What a round does, and which clients take part."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedcraft.data import Federation, Ragged, from_arrays
from fedcraft.engine import Callback, Settings, TooFewClients, run
from fedcraft.engine.sampling import SampledClients, draw_clients
from fedcraft.errors import ConfigError, DataError, InputError
from fedcraft.methods import method


def test_fedavg_is_the_weighted_mean_of_what_its_clients_would_do_alone(
    federation, model, settings
):
    everybody = settings(rounds=1, clients_per_round=len(federation), server_lr=1.0)
    together = run(method("fedavg"), federation, model, everybody)
    alone = [
        run(
            method("fedavg"),
            federation,
            model,
            settings(rounds=1, clients_per_round=1, server_lr=1.0),
            sampler=lambda s, n, t, c=client: _only(c),
        ).vector
        for client in range(len(federation))
    ]
    mean = sum(w * v.double() for w, v in zip(federation.weights(), alone, strict=True))

    assert torch.allclose(together.vector.double(), mean, atol=1e-6)


def _only(client):
    return SampledClients(np.array([client]), np.empty(0, np.int64))


def test_the_client_rate_falls_from_the_third_round_on():
    settings = Settings(client_lr=1.0, lr_decay=0.5)

    assert [settings.client_lr_at(t) for t in range(4)] == [1.0, 1.0, 0.5, 0.25]


def test_cohorts_are_sorted_distinct_and_uniform():
    settings = Settings(clients_per_round=4)
    cohorts = [draw_clients(settings, 10, t).present for t in range(2000)]
    counts = np.bincount(np.concatenate(cohorts), minlength=10)

    assert all(np.array_equal(c, np.unique(c)) and len(c) == 4 for c in cohorts)
    # 800 expected, standard deviation sqrt(2000 * 0.4 * 0.6) = 22
    assert abs(counts - 800).max() < 110


def test_a_cohort_costs_memory_for_its_own_size_only():
    drawn = draw_clients(Settings(clients_per_round=3), 10**12, 0)

    assert len(drawn.present) == 3


def test_absent_clients_are_named_and_their_cohort_is_the_same(federation, model, settings):
    whole = run(method("fedavg"), federation, model, settings(rounds=5))
    thinned = run(method("fedavg"), federation, model, settings(rounds=5, dropout=0.5))

    for full, rest in zip(whole.metrics, thinned.metrics, strict=True):
        assert sorted(rest["clients"] + rest["dropped"]) == full["clients"]
    assert 5 < sum(len(row["dropped"]) for row in thinned.metrics) < 20


def test_too_few_answers_are_an_error(federation, model, settings):
    thin = settings(rounds=20, dropout=0.8, min_clients=4)

    with pytest.raises(TooFewClients, match=r"round \d+: \d client\(s\) left of 5"):
        run(method("fedavg"), federation, model, thin)


def test_more_active_clients_than_clients_is_an_error(federation, model, settings):
    with pytest.raises(ConfigError, match="at most the 20 clients"):
        run(method("fedavg"), federation, model, settings(clients_per_round=21))


def test_a_client_without_samples_is_an_error():
    dataset = from_arrays(np.ones((2, 3)), [0, 1])
    full = Ragged.from_rows([np.array([0]), np.array([1])])
    hollow = Ragged.from_rows([np.array([0]), np.array([], dtype=np.int64)])

    with pytest.raises(DataError, match="client 1 has no training sample"):
        Federation(dataset, hollow, full, full)


def test_a_batch_larger_than_the_data_is_one_batch(federation, model, settings):
    large = run(method("fedavg"), federation, model, settings(rounds=1, batch_size=10**6))
    exact = run(method("fedavg"), federation, model, settings(rounds=1, batch_size=2000))

    assert torch.equal(large.vector, exact.vector)


def test_the_mode_a_part_was_handed_over_in_has_no_influence(federation, settings):
    torch.manual_seed(1)
    layers = (nn.Flatten(), nn.Linear(64, 12), nn.Dropout(0.5), nn.Tanh(), nn.Linear(12, 10))
    module = nn.Sequential(*layers)
    module[2].eval()
    often, seldom = (
        run(method("fedavg"), federation, module, settings(rounds=3, evaluate_every=every))
        for every in (1, 3)
    )

    assert torch.equal(often.vector, seldom.vector)


class _Twice(nn.Module):
    """What a sequence computes whose last two layers share their weight, with no layer shared."""

    def __init__(self, first, second, bias):
        super().__init__()
        self.first, self.second, self.third = first, second, nn.ParameterDict({"bias": bias})

    def forward(self, inputs):
        hidden = self.second(self.first(inputs.flatten(1)).relu()).relu()
        return nn.functional.linear(hidden, self.second.weight, self.third["bias"])


@pytest.mark.parametrize("executor", ["serial", "processes", "auto"])
def test_a_weight_that_two_layers_share_is_trained_through_both(executor, federation, settings):
    torch.manual_seed(1)
    first, second, third = nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(10, 10)
    third.weight = second.weight
    tied = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), third)
    choice = settings(rounds=20, clients_per_round=2, executor=executor, workers=2)
    found = run(method("fedavg"), federation, tied, choice)
    twice = _Twice(first, second, third.bias)
    expected = run(method("fedavg"), federation, twice, choice)

    assert found.vector.numel() == 64 * 10 + 10 * 10 + 3 * 10
    assert found.executor != "vectorized"
    assert torch.allclose(found.vector, expected.vector, atol=1e-6)
    assert not torch.allclose(found.tensors["3.weight"], second.weight, atol=1e-3)


def test_the_start_can_be_evaluated_too(federation, model, settings):
    result = run(method("fedavg"), federation, model, settings(rounds=1, evaluate_first=True))

    assert [row["round"] for row in result.metrics] == [0, 1]
    assert result.metrics[0]["evaluation"]["mean"] < 0.3


def test_callbacks_see_every_round_and_the_end(federation, model, settings):
    class Witness(Callback):
        def __init__(self):
            self.seen = []

        def on_start(self, info):
            self.seen.append(("start", info.clients, info.dimension))

        def on_round(self, record):
            self.seen.append(("round", record["round"]))

        def on_evaluate(self, round_number, scores):
            self.seen.append(("evaluate", round_number, len(scores["test"].clients)))

        def on_end(self, state, reason):
            self.seen.append(("end", state))

    witness = Witness()
    dimension = sum(p.numel() for p in model.parameters())
    run(method("fedavg"), federation, model, settings(rounds=2), callbacks=[witness])

    assert witness.seen == [
        ("start", 20, dimension),
        ("round", 1),
        ("evaluate", 2, 20),
        ("round", 2),
        ("end", "finished"),
    ]


def test_the_average_of_the_iterates_is_what_afl_is_judged_by(federation, model, settings):
    last = run(
        method("afl", aggregator={"evaluate_average": False}),
        federation,
        model,
        settings(rounds=3),
    )
    averaged = run(method("afl"), federation, model, settings(rounds=3))

    assert not torch.equal(last.vector, averaged.vector)
    steps = [
        run(
            method("afl", aggregator={"evaluate_average": False}),
            federation,
            model,
            settings(rounds=count),
        ).vector
        for count in (1, 2, 3)
    ]
    assert torch.allclose(torch.stack(steps).mean(0), averaged.vector, atol=1e-6)


def test_time_and_memory_are_in_every_record(federation, model, settings):
    rows = run(
        method("fedavg"), federation, model, settings(rounds=3, executor="processes", workers=2)
    ).metrics

    for row in rows:
        assert set(row["seconds"]) == {"train", "aggregate", "evaluate", "idle"}
        assert 0 < row["seconds"]["idle"] <= row["seconds"]["train"]
        assert row["peak_memory_mb"] > 50
    assert rows[2]["seconds"]["evaluate"] > 0
    assert rows[1]["seconds"]["evaluate"] == 0


@pytest.mark.parametrize("stage", ["keys", "sum"])
def test_clients_lost_in_a_secure_round_are_not_in_it(stage, federation, model, settings):
    """They are listed as dropped, leave no state behind, and count as missing."""
    lossy = {"enabled": True, "dropouts": {stage: 0.4}, "attempts": 20}
    choice = settings(rounds=1, clients_per_round=6, evaluate_every=0, secure=lossy)
    done = run(method("craft"), federation, model, choice)
    (row,) = done.metrics
    lost = row["secure"]["lost"]
    assert 0 < len(lost) < 6
    assert row["dropped"] == sorted(lost)
    assert len(row["clients"]) == 6 - len(lost)
    assert not set(lost) & set(row["clients"])
    left = len(row["clients"])
    with pytest.raises(TooFewClients, match=rf"round 1: {left} client\(s\) left of 6"):
        run(method("craft"), federation, model, choice.but(min_clients=left + 1))


def test_a_rule_that_needs_rows_is_refused_in_secure_rounds_before_anything_is_written(
    federation, model, settings, tmp_path
):
    median = method("fedavg").overridden(aggregator="coordinate_median")
    with pytest.raises(InputError, match="reads single updates"):
        run(median, federation, model, settings(secure={"enabled": True}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
