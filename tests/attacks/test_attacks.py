"""What every attack sends, from its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcraft.attacks import ATTACKS, Attackers, attack
from fedcraft.attacks.collusion import largest_z
from fedcraft.data import federate, load
from fedcraft.errors import ConfigError, InputError
from fedcraft.seeds import torch_generator


@pytest.fixture(scope="module")
def rows():
    draw = np.random.default_rng(0)
    return torch.from_numpy(draw.normal(size=(9, 30)) + 0.5)


@pytest.fixture(scope="module")
def federation():
    return federate(load("digits"), "iid", clients=10, seed=1)


def sent(name, rows, hostile=3, **params):
    own, honest = rows[:hostile], rows[hostile:]
    return attack(name, **params).updates(own, honest, torch_generator(1, "attack", 0))


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_seeded_and_leave_the_honest_alone(name, rows):
    both = []
    for _ in range(2):
        attackers = Attackers.of(attack(name, share=0.3), 9, seed=5)
        updates = rows.clone()
        touched = attackers.forge(np.arange(9), updates, round_index=4)
        assert touched == attackers.clients.tolist()
        honest = [row for row in range(9) if row not in touched]
        assert torch.equal(updates[honest], rows[honest])
        assert bool(torch.isfinite(updates).all())
        both.append(updates)
    assert torch.equal(*both)


def test_which_clients_are_hostile_depends_on_the_seed_only():
    first = attack("sign_flip", share=0.2).hostile(100, seed=1)
    assert first.size == 20
    np.testing.assert_array_equal(first, attack("alie", share=0.2).hostile(100, seed=1))
    assert set(first.tolist()) != set(attack("alie", share=0.2).hostile(100, seed=2).tolist())
    assert attack("sign_flip", share=0.01).hostile(10, seed=1).size == 1


def test_single_clients_flip_scale_and_send_noise(rows):
    assert torch.equal(sent("sign_flip", rows, factor=2), -2 * rows[:3])
    assert torch.equal(sent("scaling", rows, factor=7), 7 * rows[:3])
    noise = sent("gaussian", rows, factor=2)
    np.testing.assert_allclose(noise.norm(dim=1), 2 * rows[:3].norm(dim=1))
    assert not torch.allclose(noise[0], noise[1])


def test_colluders_send_one_vector(rows):
    honest = rows[3:]
    mean, std = honest.mean(0), honest.std(0, correction=0)
    np.testing.assert_allclose(sent("veto", rows), (-mean).expand(3, -1))
    np.testing.assert_allclose(sent("ipm", rows, epsilon=0.2), (-0.2 * mean).expand(3, -1))
    np.testing.assert_allclose(sent("alie", rows, z=1.5), (mean - 1.5 * std).expand(3, -1))
    np.testing.assert_allclose(sent("copies", rows), (-rows[0]).expand(3, -1))


def test_the_z_of_alie_is_the_papers():
    # 50 workers, 24 hostile: s = 2, so the share (26 - 2) / 26 of the honest must be nearer.
    assert largest_z(26, 24) == pytest.approx(1.4260769, abs=1e-6)
    assert largest_z(1, 0) == 0


@pytest.mark.parametrize("perturbation", ["std", "unit", "sign"])
def test_min_max_and_min_sum_go_exactly_as_far_as_allowed(rows, perturbation):
    honest = rows[3:]
    apart = torch.cdist(honest, honest)
    farthest = sent("min_max", rows, perturbation=perturbation)[0]
    assert float((honest - farthest).norm(dim=1).max()) == pytest.approx(float(apart.max()))
    summed = sent("min_sum", rows, perturbation=perturbation)[0]
    expected = float(apart.square().sum(1).max())
    assert float((honest - summed).square().sum()) == pytest.approx(expected)


def test_flipped_labels_are_those_of_hostile_training_samples_only(federation):
    honest = federation.tensors()
    attackers = Attackers.of(attack("label_flip", share=0.2), 10, seed=3)
    labels = attackers.poisoned(honest, federation).labels
    theirs = np.concatenate([federation.rows(client) for client in attackers.clients.tolist()])
    changed = torch.nonzero(labels != honest.labels).flatten().numpy()
    assert set(changed) <= set(theirs)
    np.testing.assert_array_equal(labels[theirs], 9 - honest.labels[theirs])


def test_a_backdoor_patches_images_and_is_measured(federation):
    door = attack("backdoor", target=3, patch=2, poison=0.5, share=0.1)
    honest = federation.tensors()
    rows = federation.rows(0)
    poisoned = door.poisoned(honest, rows, classes=10)
    assert bool((poisoned.labels[rows[::2]] == 3).all())
    assert bool((poisoned.inputs[rows[::2]][..., :2] == honest.inputs.max()).all())
    assert torch.equal(poisoned.inputs[rows[1::2]], honest.inputs[rows[1::2]])

    def fooled(inputs):
        return torch.nn.functional.one_hot(torch.full((len(inputs),), 3), 10)

    def immune(inputs):
        return torch.nn.functional.one_hot(torch.full((len(inputs),), 4), 10)

    tests = federation.test.indices
    assert door.success(fooled, honest, tests) == 1
    assert door.success(immune, honest, tests) == 0


@pytest.mark.parametrize("poison", [0.1, 0.25, 0.5, 0.7, 1.0])
def test_a_backdoor_poisons_the_share_that_it_says(federation, poison):
    honest, rows = federation.tensors(), federation.rows(0)
    poisoned = attack("backdoor", poison=poison).poisoned(honest, rows, classes=10)
    changed = (poisoned.inputs[rows] != honest.inputs[rows]).flatten(1).any(1)
    assert int(changed.sum()) == pytest.approx(poison * len(rows), abs=1)


def test_wrong_attacks_are_named(federation):
    with pytest.raises(InputError, match="Did you mean 'sign_flip'"):
        attack("signflip")
    with pytest.raises(InputError, match="share"):
        attack("sign_flip", share=1.5)
    with pytest.raises(ConfigError, match=r"attack\.target.*10 classes"):
        attack("backdoor", target=10).poisoned(federation.tensors(), federation.rows(0), 10)
    with pytest.raises(InputError, match=r"target: expected a whole number, found 1\.5"):
        attack("backdoor", target=1.5)
    with pytest.raises(ConfigError, match=r"attack\.patch: expected less than"):
        attack("backdoor", patch=100).poisoned(federation.tensors(), federation.rows(0), 10)
