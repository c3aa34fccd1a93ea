"""Differential privacy: the account agrees with independent ones, and unsound uses are refused."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import comb, logsumexp
from scipy.stats import kstest, norm

import fedcraft
from fedcraft import engine
from fedcraft.aggregators import aggregator
from fedcraft.config.settings import Settings
from fedcraft.data import federate, load
from fedcraft.engine.client_manager import CohortUpdates
from fedcraft.engine.executors.job import REPORT
from fedcraft.engine.sampling import SampledClients, draw_clients
from fedcraft.engine.server import Server
from fedcraft.errors import ConfigError, FedcraftError, InputError, StateError
from fedcraft.methods import method
from fedcraft.models import build
from fedcraft.privacy import Accountant, Privacy, mechanism, noise_for
from fedcraft.privacy.accounting import gaussian_epsilon, sampled_epsilon
from fedcraft.privacy.mechanism import (
    client_noise,
    clipped,
    privatised,
    server_noise,
    unpredictable,
)
from fedcraft.report.sections.about import run_list
from fedcraft.runs.select import group
from fedcraft.server_optimizers import server_optimizer
from fedcraft.updates import as_layout

DELTA = 1e-5
SMALL: dict[str, Any] = {
    "dataset": "digits", "clients": 12, "clients_per_round": 4, "samples": 400, "rounds": 4,
    "model_options": {"hidden": [8]}, "executor": "serial", "evaluate_every": 2, "seed": 5,
}  # fmt: skip


def privacy_table(mode: str) -> dict[str, Any]:
    return {"mode": mode, "clip": 1.0, "noise": 2.0}


def privacy(mode: Any = "local", **options: Any) -> Privacy:
    return Privacy(**{"mode": mode, "clip": 1.0, "noise": 2.0, **options})


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (4.0, 10), (0.7, 3), (10.0, 500)])
def test_epsilon_of_gaussian_rounds_is_that_of_the_exact_trade_off(noise, count):
    """Balle and Wang 2018: delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    mu = math.sqrt(count) / noise

    def excess(epsilon: float) -> float:
        second = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(norm.cdf(mu / 2 - epsilon / mu) - second - DELTA)

    assert gaussian_epsilon(noise, count, DELTA) == pytest.approx(brentq(excess, 0, 200), rel=1e-4)


def test_the_gaussian_trade_off_is_what_an_integral_over_the_loss_gives():
    """The same delta, integrated numerically from the two densities."""
    epsilon = gaussian_epsilon(2.0, 4, DELTA)
    mu = math.sqrt(4) / 2.0

    def positive(x: float) -> float:
        return max(norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x), 0.0)

    start = epsilon / mu + mu / 2
    delta, _ = quad(positive, start, start + 30, limit=200)
    assert delta == pytest.approx(DELTA, rel=1e-3)


def test_epsilon_of_sampled_rounds_lies_between_two_independent_bounds():
    """Above an audit of a pair of federations, and not above Wang et al.'s formula (theorem 9)."""
    noise, rounds, sample, population = 1.0, 50, 5, 100
    found = sampled_epsilon(noise, rounds, sample, population, DELTA)
    assert found <= _wang(noise, rounds, sample / population) * 1.001
    assert found >= _mixture(noise, rounds, sample / population) * 0.999
    assert found < gaussian_epsilon(noise, rounds, DELTA)


def _wang(noise: float, rounds: int, q: float) -> float:
    """Renyi bound for sampling without replacement and replaced records, integer orders."""
    best = math.inf
    for alpha in range(2, 65):

        def divergence(order: int) -> float:
            return order / (2 * noise**2)

        terms = [0.0]
        second = min(4 * math.expm1(divergence(2)), 2 * math.exp(divergence(2)))
        terms.append(2 * math.log(q) + math.log(comb(alpha, 2)) + math.log(second))
        for j in range(3, alpha + 1):
            bound = (j - 1) * divergence(j) + math.log(2)
            terms.append(j * math.log(q) + math.log(comb(alpha, j)) + bound)
        renyi = rounds * logsumexp(terms) / (alpha - 1)
        best = min(best, renyi + math.log(1 / DELTA) / (alpha - 1))
    return best


def _mixture(noise: float, rounds: int, q: float) -> float:
    """A lower bound: one replaced client moves each mean by one with probability q, by a CLT.

    The privacy loss of one round is integrated numerically; its sum over rounds is nearly normal.
    """

    def loss(x: float) -> float:
        return math.log((1 - q) + q * math.exp((2 * x - 1) / (2 * noise**2)))

    def density(x: float) -> float:
        return (1 - q) * norm.pdf(x, 0, noise) + q * norm.pdf(x, 1, noise)

    mean = quad(lambda x: density(x) * loss(x), -12, 13, limit=200)[0]
    square = quad(lambda x: density(x) * loss(x) ** 2, -12, 13, limit=200)[0]
    mu = math.sqrt(rounds * (square - mean**2))

    def excess(epsilon: float) -> float:
        second = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(norm.cdf(mu / 2 - epsilon / mu) - second - DELTA)

    return float(brentq(excess, 0, 100))


def test_the_noise_for_a_budget_spends_it():
    common = {"rounds": 20, "clients_per_round": 5, "clients": 100, "delta": DELTA}
    central = noise_for(3.0, mode="central", **common)
    assert 2.9 < sampled_epsilon(central, 20, 5, 100, DELTA) <= 3.0
    local = noise_for(3.0, mode="local", participations=4, **common)
    assert 2.98 < gaussian_epsilon(local, 4, DELTA) <= 3.0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("epsilon", 0.0), ("epsilon", math.inf), ("epsilon", math.nan),
        ("delta", 0.0), ("delta", 1.0), ("mode", "global"),
        ("rounds", 0), ("rounds", 2.5), ("participations", 0), ("participations", -1),
        ("clients_per_round", 0), ("clients", 0),
    ],
)  # fmt: skip
def test_a_budget_that_makes_no_sense_is_refused_by_the_name_of_the_argument(name, wrong):
    given = {"epsilon": 3.0, "mode": "local", "rounds": 5, "clients_per_round": 5, "clients": 10}
    with pytest.raises(InputError, match=f"^{name}: expected .*, found {re.escape(repr(wrong))}"):
        noise_for(**{**given, name: wrong})


def test_unpredictable_noise_is_standard_normal():
    """It has no seed. Each of three bounds fails by chance with probability 2 exp(-24) < 1e-10:

    Dvoretzky, Kiefer and Wolfowitz's for the distribution, the normal tail for the mean, Laurent
    and Massart's of chi-squared for the variance.
    """
    count = mechanism._PIECE + 7  # more than one piece
    noise = unpredictable(count).double().numpy()
    x = 24 / count
    assert kstest(noise, norm.cdf).statistic < math.sqrt(x / 2)
    assert abs(noise.mean()) < math.sqrt(2 * x)
    assert abs(np.square(noise).mean() - 1) < 2 * math.sqrt(x) + 2 * x
    assert not set(noise[-7:]) & set(noise[:7])  # a piece does not repeat the first


@pytest.mark.parametrize(("byte", "sign"), [(b"\x00", -1), (b"\xff", 1)])
def test_the_most_extreme_noise_is_finite(monkeypatch, byte, sign):
    monkeypatch.setattr(mechanism.os, "urandom", lambda size: byte * size)
    assert unpredictable(3).tolist() == pytest.approx([sign * 8.2095] * 3, abs=1e-3)


def test_two_draws_differ_whatever_the_seed_is():
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        draws.append(unpredictable(20))
    assert not bool((draws[0] == draws[1]).any())


def test_noise_has_as_many_digits_as_the_update():
    """Added in float64, noise of float32 would leave the last digits of an update as they are."""
    noise = privatised(torch.zeros(100, dtype=torch.float64), privacy("local"), 1)
    assert noise.dtype == torch.float64
    assert int((noise == noise.float().double()).sum()) < 10


def test_updates_are_clipped_and_noise_has_the_promised_size():
    rows = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    rows[2] *= 1e-4
    short = clipped(rows, 1.0)
    assert short.norm(dim=1)[:2].tolist() == pytest.approx([1, 1], rel=1e-5)
    assert torch.equal(short[2], rows[2])
    assert client_noise(privacy("local"), 1) == 4.0  # 2 clip noise
    assert client_noise(privacy("distributed"), 16) == 1.0
    assert client_noise(privacy("central"), 16) == 0.0
    zeros = torch.zeros(40_000)
    assert float(privatised(zeros, privacy("local"), 1).std()) == pytest.approx(4, rel=0.03)
    noisy = server_noise(zeros, privacy("central"), 10, torch.Generator().manual_seed(1))
    assert float(noisy.std()) == pytest.approx(0.4, rel=0.03)
    assert not torch.equal(*(privatised(zeros, privacy("local"), 1) for _ in range(2)))


@pytest.mark.parametrize("name", ["craft", "config", "fedmgda", "upgrad"])
@pytest.mark.parametrize("mode", ["central", "distributed"])
def test_noise_for_a_mean_is_refused_for_rules_without_bounded_sensitivity(name, mode):
    with pytest.raises(ConfigError, match="one client can move the step"):
        privacy(mode).check(aggregator(name), sums_only=True)


def test_craft_really_has_no_bounded_sensitivity_and_the_average_has():
    """One clipped client moves CRAFT's step by more than the noise assumes, whatever the clip."""
    clip, count = 1e-3, 10
    random = torch.Generator().manual_seed(0)
    rows = clipped(torch.randn(count, 50, generator=random), clip)
    other = rows.clone()
    other[0] = -rows[0]
    assumed = 2 * clip / count
    for name, least, most in (("craft", 100.0, math.inf), ("average", 0.0, 1.001)):
        steps = [aggregator(name).aggregate(x, layers=[50]).direction for x in (rows, other)]
        moved = float((steps[0] - steps[1]).norm()) / assumed
        assert least <= moved <= most


def test_other_unsound_combinations_are_refused():
    privacy("local").check(aggregator("craft"), sums_only=False)
    with pytest.raises(ConfigError, match=r"QFedAvg also needs .*losses"):
        privacy("local").check(aggregator("qfedavg"), sums_only=False)
    with pytest.raises(ConfigError, match=r"secure\.sketch = 0"):
        privacy("distributed").check(aggregator("average"), sums_only=False)
    for wrong in ({"noise": 0.0}, {"clip": -1.0}, {"delta": 2.0}, {"mode": "global"}):
        with pytest.raises(InputError, match=f"privacy.{next(iter(wrong))}: expected"):
            privacy(**wrong)
    for name in ("clip", "noise", "epsilon"):
        with pytest.raises(InputError, match=rf"privacy.{name}: expected a number .*, found True"):
            privacy(**{name: True})
    with pytest.raises(FedcraftError, match="unknown key 'nose'"):
        Privacy.from_table({"mode": "local", "clip": 1.0, "nose": 1.0})
    with pytest.raises(FedcraftError, match=r"privacy\.noise: expected a value, found none"):
        Privacy.from_table({"mode": "local", "clip": 1.0})


def test_an_account_follows_the_client_with_the_most_rounds_and_survives_a_resume():
    account = Accountant(privacy("local"), 10)
    assert account.epsilon() == 0
    account.add([1, 2])
    account.add([2, 3])
    assert account.epsilon() == gaussian_epsilon(2.0, 2, DELTA)
    assert account.after([1]) == gaussian_epsilon(2.0, 2, DELTA)
    assert account.after([2]) == gaussian_epsilon(2.0, 3, DELTA)
    again = Accountant(privacy("local"), 10)
    again.load_state_dict(json.loads(json.dumps(account.state_dict())))
    assert again.epsilon() == account.epsilon()
    with pytest.raises(StateError, match="no account of the budget"):
        again.load_state_dict(None)


def test_an_account_of_rounds_that_were_drawn_in_another_way_claims_no_amplification():
    account = Accountant(privacy("central"), None)
    account.add([1, 2])
    resumed = Accountant(privacy("central"), 100)
    resumed.load_state_dict(json.loads(json.dumps(account.state_dict())))
    assert resumed.epsilon() == gaussian_epsilon(2.0, 1, DELTA)


def test_only_the_uniform_draw_is_known_to_amplify():
    """With the same four clients in every round, sampling hides nobody."""
    federation = federate(load("digits"), "dirichlet", clients=20, alpha=0.5, seed=7)
    model = build("mlp", input_shape=(64,), classes=10, hidden=(8,), seed=3)
    central = {"mode": "central", "clip": 1.0, "noise": 2.0}
    options = {"clients_per_round": 4, "executor": "serial", "evaluate_every": 0}
    settings = Settings(rounds=2, **options, privacy=central)

    def same(settings: Settings, clients: int, index: int) -> SampledClients:
        return SampledClients(np.arange(4), np.arange(0))

    expected = gaussian_epsilon(2.0, 2, DELTA), sampled_epsilon(2.0, 2, 4, 20, DELTA)
    assert expected[0] > expected[1]
    for sampler, epsilon in zip((same, draw_clients), expected, strict=True):
        done = engine.run(method("fedavg"), federation, model, settings, sampler=sampler)
        assert done.metrics[-1]["privacy"]["epsilon"] == pytest.approx(epsilon)


def test_central_noise_is_refused_with_secure_rounds_before_anything_is_written(tmp_path):
    given = {"privacy": privacy_table("central"), "secure": {"enabled": True}}
    with pytest.raises(ConfigError, match=r"privacy\.mode: .*Leave out secure"):
        fedcraft.run(SMALL, method="fedavg", **given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_of_secure_rounds_without_secure_rounds_are_refused():
    with pytest.raises(ConfigError, match=r"secure: .*Add secure\.enabled=true, or remove"):
        Settings(secure={"sketch": 64})
    assert Settings(secure={"sketch": 64, "enabled": False}).secure["sketch"] == 64


def test_nothing_about_single_updates_is_written_under_central_privacy(tmp_path):
    """Their products carry no noise, and are about a step that was not taken."""
    lines = {}
    for mode in ("local", "central"):
        given = {**SMALL, "rounds": 1, "diagnostics_every": 1, "privacy": privacy_table(mode)}
        done = fedcraft.run(given, method="fedavg", out=tmp_path / mode)
        tables = (done.directory / f"{name}.csv" for name in ("conflicts", "cosines", "cohorts"))
        lines[mode] = [len(table.read_text().splitlines()) > 1 for table in tables]
        assert (_rows(done)[0]["conflicts"] is None) == (mode == "central")
    assert lines == {"local": [True] * 3, "central": [False] * 3}


@pytest.mark.parametrize("mode", ["local", "central"])
def test_updates_of_a_simulation_are_clipped(mode, tmp_path):
    table = {"mode": mode, "clip": 1e-3, "noise": 1e-6}  # nothing but the clip
    given = {**SMALL, "rounds": 1, "privacy": table}
    done = fedcraft.run(given, method="fedavg", out=tmp_path / "run")
    assert 0 < _rows(done)[0]["update_norm"] < 1.001e-3


def test_an_update_is_clipped_before_it_leaves_a_client():
    update = torch.full((100,), 5.0)
    found = privatised(update, privacy("local", noise=1e-6), 1)
    assert float(found.norm()) == pytest.approx(1, rel=1e-4)


def private_server(rule: Any, dimension: int, **options: Any) -> Server:
    table = {"mode": "central", "clip": 1.0, "noise": 1e-6, **options}
    settings, layout = Settings(clients_per_round=3, privacy=table), as_layout(None, dimension)
    return Server(rule, server_optimizer("sgd"), torch.zeros(dimension), layout, settings)


def moved(server: Server, updates: torch.Tensor, samples: Any, index: int = 0) -> torch.Tensor:
    """Return the step of a round with these updates."""
    count, before = len(updates), server.theta
    report = np.ones((count, len(REPORT)))
    report[:, REPORT.index("samples")] = samples
    nothing: list[None] = [None] * count
    trained = CohortUpdates(np.arange(count), updates, report, nothing, nothing, False)
    server.step(trained, index, 0.1, lambda theta, clients: [])
    return before - server.theta


def test_clients_weigh_alike_whatever_their_number_of_samples():
    server = private_server(aggregator("average"), 2)
    assert moved(server, torch.eye(2), [1, 10**9]).tolist() == pytest.approx([0.5, 0.5], abs=1e-3)


def test_the_servers_noise_is_new_in_every_round():
    server = private_server(aggregator("average"), 50, noise=1.0)
    first, second = (moved(server, torch.zeros(3, 50), 1, index) for index in (0, 1))
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.6


def test_central_noise_is_for_the_clients_that_are_in_the_mean():
    updates = torch.zeros(3, 20_000)
    updates[1] = torch.nan
    server = private_server(aggregator("average", nonfinite="drop"), 20_000, noise=1.0)
    assert float(moved(server, updates, 1).std()) == pytest.approx(2 / 2, rel=0.03)


def test_a_run_reports_its_budget_and_stops_before_it_is_exceeded(tmp_path):
    table = {"mode": "local", "clip": 1.0, "noise": 5.0}
    done = fedcraft.run(SMALL, method="craft", privacy=table, out=tmp_path / "run")
    rows = _rows(done)
    counts = np.bincount(np.concatenate([row["clients"] for row in rows]))
    expected = gaussian_epsilon(5.0, int(counts.max()), DELTA)
    assert rows[-1]["privacy"]["epsilon"] == pytest.approx(expected)
    (problem,) = group([done])
    (shown,) = run_list(problem)
    assert shown["reason"].endswith(f"epsilon {expected:.3g} at delta 1e-05")
    limit = gaussian_epsilon(5.0, 1, DELTA) * 1.01
    stopped = fedcraft.run(
        SMALL, method="craft", privacy={**table, "epsilon": limit}, out=tmp_path / "limited"
    )
    assert stopped.state == "stopped"
    assert "privacy budget" in stopped.status["reason"]
    assert _rows(stopped)[-1]["privacy"]["epsilon"] <= limit


def test_a_sum_with_too_little_noise_is_not_used(tmp_path):
    """Clients that are lost take their noise with them."""
    with pytest.raises(ConfigError, match="min_clients: a sum holds the noise of"):
        fedcraft.run(
            SMALL,
            method="fedavg",
            min_clients=4,
            privacy={"mode": "distributed", "clip": 1.0, "noise": 1.0},
            secure={"enabled": True, "sketch": 0, "bound": 20.0, "dropouts": {"sum": 0.4}},
            out=tmp_path / "run",
        )


def test_distributed_noise_adds_up_in_the_secure_sum(tmp_path):
    """The sum of four noisy updates has the noise of the central mode, and no certificate."""
    runs = {}
    for mode, extra in (
        ("central", {}),
        ("distributed", {"secure": {"enabled": True, "sketch": 0, "bound": 50.0}}),
    ):
        table = {"mode": mode, "clip": 1e-3, "noise": 500.0}  # nothing but noise
        given = {**SMALL, "rounds": 1, "min_clients": 4, "privacy": table, **extra}
        runs[mode] = _rows(fedcraft.run(given, method="fedavg", out=tmp_path / mode))[-1]
    ratio = runs["distributed"]["update_norm"] / runs["central"]["update_norm"]
    assert ratio == pytest.approx(1, rel=0.1)
    assert runs["distributed"]["conflicts"] is None


def _rows(run: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.directory / "metrics.jsonl").open()]
