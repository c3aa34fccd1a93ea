"""The guard ``answers``: what clients of quadratic losses send, honest and flipped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedcraft import aggregate_files, aggregator
from fedcraft.aggregators import guard
from fedcraft.aggregators.inputs import RoundInput, read_cohort
from fedcraft.aggregators.wrapper import Wrapper
from fedcraft.errors import InputError

CLIENTS, DIMENSION, ROUNDS = 6, 60, 8


class Federation:
    """Clients with losses 1/2 ||theta - goal_i||^2_H whose goals are orthogonal: no one agrees."""

    def __init__(self, flipped=(), seed=0, clients=CLIENTS):
        draw = np.random.default_rng(seed)
        self.goals = np.linalg.qr(draw.normal(size=(DIMENSION, clients)))[0].T
        self.curvature = draw.uniform(0.5, 1.5, DIMENSION)
        self.signs = np.where(np.isin(np.arange(clients), flipped), -1.0, 1.0)
        self.theta, self.draw = np.zeros(DIMENSION), draw

    def updates(self, noise=0.02):
        clean = self.curvature * (self.theta - self.goals)
        rows = self.signs[:, None] * clean
        return rows + noise * self.draw.normal(size=rows.shape) / np.sqrt(DIMENSION)

    def train(self, rule, rounds=ROUNDS, rate=0.3, **options):
        left_out = []
        for _ in range(rounds):
            step = rule.aggregate(self.updates(**options))
            self.theta = self.theta - rate * step.direction
            left_out.append(set(step.certificate.left_out))
        return left_out


def cohort(rows):
    return read_cohort(rows, RoundInput(), drop_nonfinite=False)


def guarded(rule="craft", name="answers", **options):
    return aggregator(rule, **options).guarded(guard(name))


class Halved(Wrapper):
    def after(self, cohort, step):
        return replace(step, direction=step.direction / 2)


@pytest.mark.parametrize("rule", ["average", "craft", "config"])
@pytest.mark.parametrize("seed", range(3))
def test_a_flip_that_nobody_disagrees_with_is_left_out(rule, seed):
    left_out = Federation(flipped=[2], seed=seed).train(guarded(rule))
    assert left_out[0] == set(), "one round of orthogonal updates says nothing"
    assert all(absent == {2} for absent in left_out[3:])


@pytest.mark.parametrize("rule", ["average", "craft"])
@pytest.mark.parametrize("seed", range(3))
def test_honest_clients_that_agree_with_nobody_stay(rule, seed):
    assert not any(Federation(seed=seed).train(guarded(rule), rounds=20))


@pytest.mark.parametrize(
    ("changes", "records"),
    [
        ([-2, -2.2, -2, -2, -0.8, 3], [1, 1, 1, 1, 0.4, -1]),
        ([-0.1, 2, -2, 3, -3, -0.2], [0, 0, 0, 0, 0, 0]),
        ([2, 2.2, 1.8, 2, 1, -3], [0, 0, 0, 0, 0, 0]),
    ],
    ids=["usual", "chance", "uphill"],
)
def test_a_record_is_the_answer_relative_to_the_usual_one(changes, records):
    rule, rows = guard("answers"), 1e3 * np.eye(6, 7, k=1)
    step = torch.eye(7, dtype=torch.float64)[0]
    rule.screen(cohort(rows))
    rule.after(cohort(rows), step, {})
    after = rows + np.outer(changes, step)
    rule.screen(cohort(after))
    demand = rule.demand(cohort(after))
    np.testing.assert_allclose(rule.memory["records"], records, atol=1e-5)
    np.testing.assert_allclose(demand.spread, np.where(np.array(records) > 0.5, 3, 1.5))
    np.testing.assert_allclose(demand.least, -0.3)


def test_a_client_that_changes_sides_is_noticed_and_can_recover():
    federation, rule = Federation(seed=3), guarded("average")
    federation.train(rule, rounds=12, rate=0.05)
    federation.signs[1] = -1
    assert 1 in federation.train(rule, rounds=7, rate=0.05)[-1]
    federation.signs[1] = 1
    assert 1 not in federation.train(rule, rounds=7, rate=0.05)[-1]


def test_other_clients_every_round_are_judged_as_by_cosine():
    draw, both = np.random.default_rng(4), (guarded("average"), guarded("average", "cosine"))
    common = draw.normal(size=DIMENSION)
    for number in range(5):
        rows = common + 2 * draw.normal(size=(8, DIMENSION))
        rows[0] = 0.05 * draw.normal(size=DIMENSION) - 0.01 * common
        ids = [f"{number}-{row}" for row in range(8)]
        found, expected = (rule.aggregate(rows, client_ids=ids).certificate for rule in both)
        if number:
            assert list(found.left_out) == list(expected.left_out) == [f"{number}-0"]
        else:
            assert not found.left_out, "the first round does not know who will come back"


def test_strong_disagreement_outweighs_good_answers():
    draw, rule = np.random.default_rng(5), guarded("average")
    common, theta = draw.normal(size=DIMENSION), np.zeros(DIMENSION)
    goals = np.vstack([*(common + 0.3 * draw.normal(size=(6, DIMENSION))), -common])
    for _ in range(6):
        step = rule.aggregate(theta - goals)  # the last client is honest, and wants the contrary
        theta = theta - 0.02 * step.direction
        assert list(step.certificate.left_out) == [6]
    assert float(rule.guard.memory["records"][6]) > 3


def test_copies_have_their_full_weight_once_they_have_answered_well():
    federation, rule = Federation(seed=6), guarded("average")
    federation.goals[1] = federation.goals[0]
    shares = []
    for _ in range(3):
        step = rule.aggregate(federation.updates())
        federation.theta = federation.theta - 0.3 * step.direction
        shares.append(step.shares[0])
    assert shares[0] == pytest.approx(1 / 10)
    assert shares[-1] == pytest.approx(1 / 6)


@pytest.mark.parametrize("rule", ["average", "craft", "config"])
def test_certified_products_are_those_of_the_updates(rule):
    federation = Federation(flipped=[2], seed=8)
    certified, measured = guarded(rule), guarded(rule, certify=False)
    for _ in range(5):
        rows = federation.updates()
        step = certified.aggregate(rows)
        federation.theta = federation.theta - 0.3 * step.direction
        measured.aggregate(rows)
        along = certified.guard.memory["along"]
        np.testing.assert_allclose(along, rows @ step.direction, atol=1e-12)
    assert list(step.certificate.left_out) == [2], "its product is in no certificate"
    for name in ("along", "records"):
        pair = (rule.guard.memory[name] for rule in (certified, measured))
        torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-12)


def test_the_products_are_those_with_the_step_that_a_wrapper_makes():
    wrapper = Halved(aggregator("craft")).guarded(guard("answers"))
    rows = Federation(seed=9).updates()
    step = wrapper.aggregate(rows)
    np.testing.assert_allclose(wrapper.guard.memory["along"], rows @ step.direction, atol=1e-12)


@pytest.mark.parametrize("certify", [True, False])
def test_files_remember_the_same_answers(tmp_path, certify):
    memory, disk = Federation(flipped=[2], seed=7), guarded("craft", certify=certify)
    expected = guarded("craft")
    for number in range(4):
        rows = memory.updates()
        files = [tmp_path / f"{number}-{row}.safetensors" for row in range(CLIENTS)]
        for file, row in zip(files, rows, strict=True):
            save_file({"w": torch.from_numpy(row)}, file)
        ids, out = list(range(CLIENTS)), tmp_path / f"step-{number}.safetensors"
        aggregate_files(disk, files, out, client_ids=ids)
        disk, again = guarded("craft", certify=certify), disk.state_dict()
        disk.load_state_dict(again)
        step = expected.aggregate(rows, client_ids=ids)
        memory.theta = memory.theta - 0.3 * step.direction
    assert list(step.certificate.left_out) == [2]
    for name in ("along", "records"):
        torch.testing.assert_close(*(rule.guard.memory[name] for rule in (disk, expected)))


def test_wrong_parameters_are_named():
    with pytest.raises(InputError, match="strong"):
        guard("answers", strong=-2)
    with pytest.raises(InputError, match="sure"):
        guard("answers", sure=-1)
