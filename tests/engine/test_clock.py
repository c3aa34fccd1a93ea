"""The virtual clock: who reports when, how stale, and with which weight."""

from __future__ import annotations

import copy
import itertools
import re

import numpy as np
import pytest
import torch

from benchmarks.torture import TIMES
from fedcraft.config.clock import Clock
from fedcraft.config.schema import Config
from fedcraft.data import federate, load
from fedcraft.engine import Callback, Settings, TooFewClients, run
from fedcraft.engine.clocked_sampling import Devices
from fedcraft.engine.participation import Synchronous
from fedcraft.engine.sampling import SampledClients
from fedcraft.errors import ConfigError
from fedcraft.methods import method

UNEVEN = {"speed_spread": 20.0, "availability_swing": 4.0, "day": 5.0, "label_correlation": 1.0}
BUFFERED = {"mode": "buffered", "concurrency": 12, **UNEVEN}
SYNCHRONOUS = {"mode": "synchronous", "concurrency": 8, **UNEVEN}
CLOCKS = pytest.mark.parametrize("clock", [SYNCHRONOUS, BUFFERED], ids=lambda clock: clock["mode"])


class _Fails(Callback):
    def __init__(self, round_number):
        self.round_number = round_number

    def on_round(self, record):
        if record["round"] == self.round_number:
            raise RuntimeError("the power is gone")


@CLOCKS
@pytest.mark.parametrize("name", ["craft", "scaffold", "fedavg"])
def test_workers_do_not_change_a_bit(name, clock, federation, model, settings, same_bits):
    given = {"rounds": 4, "clock": clock, "dropout": 0.1}
    alone = run(method(name), federation, model, settings(**given))

    for workers in (1, 2):
        together = settings(**given, executor="processes", workers=workers)
        same_bits(run(method(name), federation, model, together), alone)


@CLOCKS
@pytest.mark.parametrize("name", ["craft-auto", "ditto", "afl"])
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    name, clock, federation, model, settings, tmp_path, same_run
):
    choice = settings(rounds=7, clock=clock, dropout=0.1)
    run(method(name), federation, model, choice, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="power"):
        run(method(name), federation, model, choice, tmp_path / "torn", callbacks=[_Fails(5)])

    result = run(method(name), federation, model, choice, tmp_path / "torn", resume=True)

    assert [row["round"] for row in result.metrics] == [1, 2, 3, 4, 5, 6, 7]
    same_run(tmp_path / "torn", tmp_path / "whole")


@pytest.mark.parametrize("mode", ["synchronous", "buffered"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_clock_without_late_clients_gives_the_plain_run(
    mode, dropout, federation, model, settings
):
    plain = run(method("craft"), federation, model, settings(dropout=dropout))
    clock = {"mode": mode, "concurrency": 5}
    clocked = run(method("craft"), federation, model, settings(dropout=dropout, clock=clock))

    assert torch.equal(clocked.vector, plain.vector)
    for ours, theirs in zip(clocked.metrics, plain.metrics, strict=True):
        assert all(ours[key] == value for key, value in theirs.items() if key not in TIMES)
        assert not any(ours.get("staleness", ()))
        assert not ours.get("late")


def test_stale_updates_weigh_as_computed_by_hand(federation, model, settings):
    """Replay a run from its rows, with what every client does alone from the model it got."""
    clock = {"mode": "buffered", "concurrency": 6, "speed_spread": 30.0}
    # Whole batches: what a client computes does not depend on the round.
    choice = settings(rounds=5, clients_per_round=2, batch_size=2000, lr_decay=1.0, server_lr=1.0)
    models, seen = [_vector(model)], set()

    def update(client, version):
        start, one = _with_vector(model, models[version]), choice.but(rounds=1, clients_per_round=1)
        only = SampledClients(np.array([client]), np.empty(0, np.int64))
        found = run(method("fedavg"), federation, start, one, sampler=lambda s, n, t: only)
        return (models[version] - found.vector).double()

    result = run(method("fedavg"), federation, model, choice.but(clock=clock))
    for index, row in enumerate(result.metrics):
        ages = row["staleness"]
        weights = federation.sizes()[row["clients"]] / np.sqrt(1 + np.array(ages))
        weights = torch.from_numpy(weights / weights.sum())
        rows = [update(c, index - age) for c, age in zip(row["clients"], ages, strict=True)]
        models.append((models[-1].double() - weights @ torch.stack(rows)).float())
        seen |= set(ages)

    assert len(seen) > 1
    assert torch.allclose(models[-1], result.vector, atol=1e-6)


def _vector(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def _with_vector(model, vector):
    changed = copy.deepcopy(model)
    torch.nn.utils.vector_to_parameters(vector.clone(), changed.parameters())
    return changed


def test_updates_arrive_in_the_order_of_the_clock(federation, model, settings):
    """Nobody who started earlier and takes less time arrives later, and the clock says when."""
    clock = {"mode": "buffered", "concurrency": 12, "speed_spread": 20.0}
    choice = settings(rounds=25, clients_per_round=3, evaluate_every=0, clock=clock)
    rows = run(method("fedavg"), federation, model, choice).metrics
    durations = Devices.of(Clock(**clock), federation, choice.seed).durations
    sent = [0.0, *(row["virtual_time"] for row in rows)]
    arrivals = [
        sorted(
            sent[index - age] + durations[client]
            for client, age in zip(row["clients"], row["staleness"], strict=True)
        )
        for index, row in enumerate(rows)
    ]

    assert sent[1:] == [pytest.approx(ends[-1]) for ends in arrivals]
    assert all(now[-1] <= later[0] for now, later in itertools.pairwise(arrivals))
    assert max(max(row["staleness"]) for row in rows) > 3


def test_over_selection_keeps_the_fastest(federation, settings):
    clock = Clock(mode="synchronous", concurrency=9, speed_spread=20.0)
    rounds = Synchronous(settings(), federation, clock)
    durations = rounds.devices.durations

    reports = rounds.collect(0, _Trained)
    taken, late = reports.trained.clients, reports.row["late"]

    assert (len(taken), len(late)) == (5, 4)
    assert durations[taken].max() < durations[late].min()
    assert reports.row["virtual_time"] == durations[taken].max()
    assert reports.memory == {"time": durations[taken].max()}


def test_a_deadline_ends_a_round_that_has_too_few(federation, settings):
    clock = Clock(mode="synchronous", concurrency=9, speed_spread=20.0, deadline=0.3)
    rounds = Synchronous(settings(), federation, clock)

    reports = rounds.collect(0, _Trained)
    taken = reports.trained.clients

    assert 0 < len(taken) < 5
    assert rounds.devices.durations[taken].max() <= 0.3
    assert reports.row["virtual_time"] == 0.3


class _Trained:
    """The clients that a participation let train, in place of their updates."""

    def __init__(self, clients):
        self.clients = clients


@pytest.mark.parametrize("clock", [SYNCHRONOUS, BUFFERED], ids=lambda clock: clock["mode"])
def test_lost_updates_are_as_many_as_asked_for(clock, federation, model, settings):
    choice = settings(rounds=60, evaluate_every=0, clock=clock, dropout=0.1)
    rows = run(method("fedavg"), federation, model, choice).metrics
    lost = sum(len(row["dropped"]) for row in rows)
    started = lost + sum(len(row["clients"]) + len(row.get("late", ())) for row in rows)

    assert 0.06 < lost / started < 0.14


def test_a_day_shows_in_who_takes_part(settings):
    federation = federate(load("digits"), "shards", clients=80, shards_per_client=1, seed=7)
    clock = Clock(mode="synchronous", availability_swing=4.0, label_correlation=1.0, day=10.0)
    devices = Devices.of(clock, federation, seed=5)
    labels = federation.label_counts().argmax(axis=1)
    counts = np.zeros((2, 10))
    for index in range(400):
        for half in range(2):  # at the peak of label 0, and of label 5 half a day later
            drawn = devices.draw(10, 10.0 * index + 5.0 * half, 2 * index + half, 0.0).present
            counts[half] += np.bincount(labels[drawn], minlength=10)

    assert counts[0, 0] / counts[1, 0] == pytest.approx(4, rel=0.25)
    assert counts[1, 5] / counts[0, 5] == pytest.approx(4, rel=0.25)


@CLOCKS
def test_a_run_ends_at_a_virtual_time_and_stays_ended(clock, federation, model, settings, tmp_path):
    choice = settings(rounds=200, clock={**clock, "until": 4.0})
    first = run(method("fedavg"), federation, model, choice, tmp_path)
    again = run(method("fedavg"), federation, model, choice, tmp_path, resume=True)

    times = [row["virtual_time"] for row in first.metrics]
    assert times[-2] < 4.0 <= times[-1]
    assert "evaluation" in first.metrics[-1]
    assert first.reason == again.reason == f"virtual time: {times[-1]:.6g} of 4"
    assert again.round == first.round < 200


def test_nobody_is_sent_a_second_model_while_training(federation, model, settings):
    clock = {"mode": "buffered", "concurrency": 20, "speed_spread": 50.0}
    rows = run(method("fedavg"), federation, model, settings(rounds=30, clock=clock)).metrics
    started = {}
    for index, row in enumerate(rows):
        for client, age in zip(row["clients"], row["staleness"], strict=True):
            assert index - age > started.get(client, -1)
            started[client] = index

    assert rows[-1]["virtual_time"] > rows[0]["virtual_time"] > 0


def test_a_buffer_takes_what_is_on_its_way_when_too_many_are_lost(federation, model, settings):
    clock = {"mode": "buffered", "concurrency": 5}
    rows = run(method("fedavg"), federation, model, settings(clock=clock, dropout=0.5)).metrics

    assert all(len(row["clients"]) + len(row["dropped"]) == 5 for row in rows)
    thin = settings(rounds=30, clock=clock, dropout=0.8, min_clients=4)
    with pytest.raises(TooFewClients, match=r"\d client\(s\) left of 5"):
        run(method("fedavg"), federation, model, thin)


def test_fedbuff_is_fedavg_on_a_buffer(federation, model, settings, same_bits):
    asked = settings(clock={"mode": "buffered", "speed_spread": 9.0})

    fedbuff = run(method("fedbuff"), federation, model, settings(clock={"speed_spread": 9.0}))

    same_bits(fedbuff, run(method("fedavg"), federation, model, asked))
    assert any(sum(row["staleness"]) for row in fedbuff.metrics)
    assert method("fedbuff+craft").buffered
    assert method("fedprox+fedbuff").buffered


def test_a_sampler_and_a_clock_contradict_each_other(federation, model, settings):
    def sampler(asked, clients, index):
        return SampledClients(np.arange(5), np.empty(0, np.int64))

    with pytest.raises(ConfigError, match="sampler: expected none, because clock draws"):
        run(method("craft"), federation, model, settings(clock=BUFFERED), sampler=sampler)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "sync"}, "clock.mode: expected one of synchronous, buffered, found 'sync'"),
        ({"mode": "buffered", "buffer": 3}, "clock: unknown key 'buffer'"),
        ({"mode": "buffered", "concurency": 3}, "Did you mean 'concurrency'?"),
        ({"mode": "buffered", "concurrency": 4}, "clients_per_round = 5 or more, found 4"),
        ({"mode": "buffered", "deadline": 1}, "clock.deadline: expected none"),
        ({"mode": "buffered", "speed_spread": 0.5}, "clock.speed_spread: expected a number from 1"),
        ({"mode": "buffered", "label_correlation": 2}, "from 0 to 1, found 2"),
        ({"mode": "buffered", "day": True}, "clock.day"),
        ({"mode": "synchronous", "concurrency": 1.5}, "clock.concurrency: expected a whole number"),
    ],
)
def test_bad_keys_are_named(given, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        Settings(clients_per_round=5, clock=given)
    assert str(caught.value).startswith("clock")


def test_a_clock_refuses_what_it_would_make_unsound():
    private = {"mode": "local", "clip": 1.0, "noise": 1.0}
    with pytest.raises(ConfigError, match="clock: the account of differential privacy"):
        Settings(clock={"mode": "synchronous"}, privacy=private)
    with pytest.raises(ConfigError, match=r"clock\.mode: secure aggregation"):
        Settings(clock={"mode": "buffered"}, secure={"enabled": True})


def test_a_configuration_knows_the_mode_of_an_asynchronous_method():
    assert Config(method="fedbuff").clock == {"mode": "buffered"}
    assert Config(method="fedbuff+craft", clock={"day": 9.0}).clock["mode"] == "buffered"
    assert Config(method="fedavg").clock == {}
    assert Config(method="fedbuff").but(method="fedavg").clock == {}
