"""Each of these objectives follows an independent loop over torch modules, round after round."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedcraft.errors import InputError
from fedcraft.local import LocalTask, local_objective
from fedcraft.models import FlatModel

Lab = Any  # the fixture of conftest.py
Reference = Callable[[nn.Module, LocalTask, dict[str, Any]], Tensor]
ROUNDS = 3


def module_at(lab: Lab, vector: Tensor, **options: Any) -> nn.Module:
    module: nn.Module = copy.deepcopy(lab.network(**options))
    vector_to_parameters(vector, module.parameters())
    return module


def gradient(module: nn.Module, value: Tensor) -> Tensor:
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, [*module.parameters()])])


def flat(module: nn.Module) -> Tensor:
    return parameters_to_vector(module.parameters()).detach()


def move(module: nn.Module, by: Tensor) -> None:
    vector_to_parameters(flat(module) - by, module.parameters())


def scaffold(module: nn.Module, task: LocalTask, kept: dict[str, Any]) -> Tensor:
    own = kept.get("own", torch.zeros_like(task.theta))
    server = task.sent.get("control", torch.zeros_like(task.theta))
    steps = 0
    for x, y in task.batches():
        move(module, task.lr * (gradient(module, cross_entropy(module(x), y)) - own + server))
        steps += 1
    kept["own"] = own - server + (task.theta - flat(module)) / (steps * task.lr)
    return flat(module)


def feddyn(module: nn.Module, task: LocalTask, kept: dict[str, Any]) -> Tensor:
    """Acar et al. write the objective out: f - <h, theta> + alpha / 2 ||theta - theta_t||^2."""
    linear = kept.get("linear", torch.zeros_like(task.theta))
    for x, y in task.batches():
        vector = parameters_to_vector(module.parameters())
        pull = 0.05 * (vector - task.theta).square().sum()  # alpha = 0.1
        value = cross_entropy(module(x), y) - linear @ vector + pull
        move(module, task.lr * gradient(module, value))
    kept["linear"] = linear - 0.1 * (flat(module) - task.theta)
    return flat(module)


def propfair(module: nn.Module, task: LocalTask, kept: dict[str, Any]) -> Tensor:
    for x, y in task.batches():
        loss = cross_entropy(module(x), y)
        weight = 1 / max(2.4 - float(loss), 0.2)
        move(module, task.lr * weight * gradient(module, loss))
    return flat(module)


def moon(module: nn.Module, task: LocalTask, kept: dict[str, Any]) -> Tensor:
    fixed = [copy.deepcopy(module).eval() for _ in range(2)]
    vector_to_parameters(kept.get("previous", task.theta), fixed[1].parameters())
    body = slice(0, -1)
    for x, y in task.batches():
        assert isinstance(module, nn.Sequential)
        own, theirs, last = (net[body](x) for net in (module, *fixed))  # type: ignore[index]
        near, far = (torch.exp(cosine_similarity(own, z.detach()) / 0.5) for z in (theirs, last))
        value = cross_entropy(module[-1](own), y) - 2.0 * torch.log(near / (near + far)).mean()
        move(module, task.lr * gradient(module, value))
    kept["previous"] = flat(module)
    return flat(module)


def apfl(module: nn.Module, task: LocalTask, kept: dict[str, Any]) -> Tensor:
    own, share = kept.get("own", task.start()), kept.get("share", 0.3)
    mixed = copy.deepcopy(module)
    for number, (x, y) in enumerate(task.batches()):
        shared = flat(module)
        vector_to_parameters(share * own + (1 - share) * shared, mixed.parameters())
        at_mixed = gradient(mixed, cross_entropy(mixed(x), y))
        move(module, task.lr * gradient(module, cross_entropy(module(x), y)))
        if number == 0:
            share = min(max(share - task.lr * float(at_mixed @ (own - shared)), 0), 1)
        own = own - task.lr * share * at_mixed
    kept.update(own=own, share=share)
    kept["evaluated"] = lambda theta: share * own + (1 - share) * theta
    return flat(module)


def pfedme(module: nn.Module, task: LocalTask, kept: dict[str, Any]) -> Tensor:
    shared = task.theta
    for x, y in task.batches():
        vector_to_parameters(shared.clone(), module.parameters())
        for _ in range(4):
            pull = 2.0 * (flat(module) - shared)
            move(module, 0.05 * (gradient(module, cross_entropy(module(x), y)) + pull))
        own = flat(module)
        shared = shared - task.lr * 2.0 * (shared - own)
    kept["evaluated"] = lambda theta: own
    return shared


CASES: dict[str, tuple[dict[str, Any], Reference]] = {
    "scaffold": ({}, scaffold),
    "feddyn": ({"alpha": 0.1}, feddyn),
    "propfair": ({"baseline": 2.4, "eps": 0.2}, propfair),
    "moon": ({"mu": 2.0, "temperature": 0.5}, moon),
    "apfl": ({"alpha": 0.3, "adaptive": True}, apfl),
    "pfedme": ({"lam": 2.0, "inner_steps": 4, "personal_lr": 0.05}, pfedme),
}


@pytest.mark.parametrize("name", CASES)
def test_objective_follows_its_reference_over_several_rounds(name: str, lab: Lab) -> None:
    params, reference = CASES[name]
    objective = local_objective(name, **params)
    asked = lab.task(lab.network(), lab.client(), epochs=2)
    theta, state, kept = asked.theta, None, {}
    for number in range(ROUNDS):
        sent = {"control": 0.01 * torch.ones_like(theta)} if number else {}
        task = replace(asked, theta=theta, state=state, initial=asked.theta, sent=sent)
        row = torch.empty_like(theta)
        result = objective.train(FlatModel(lab.network()), task, row)
        expected = reference(module_at(lab, theta), task, kept)
        torch.testing.assert_close(theta - row, expected, rtol=1e-4, atol=2e-5)
        state = result.state
        theta = theta - 0.7 * row  # what a server might do
        if objective.personal:
            after = replace(task, theta=theta, state=state)
            evaluated = objective.personal_vector(FlatModel(lab.network()), after)
            torch.testing.assert_close(evaluated, kept["evaluated"](theta), rtol=1e-4, atol=2e-5)


def test_propfair_goes_on_linearly_beyond_its_baseline(lab: Lab) -> None:
    """With M - f below eps everywhere, every gradient has the weight 1 / eps."""
    asked = lab.task(lab.network(), lab.client(), epochs=1)
    row, _ = lab.train("propfair", lab.network(), asked, baseline=0.6, eps=0.5)
    faster = replace(asked, lr=asked.lr / 0.5)
    expected, _ = lab.train("plain", lab.network(), faster)
    torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-6)


def test_moon_without_contrast_is_plain_sgd(lab: Lab) -> None:
    asked = lab.task(lab.network(), lab.client(), epochs=2)
    row, _ = lab.train("moon", lab.network(), asked, mu=0.0)
    torch.testing.assert_close(row, lab.train("plain", lab.network(), asked)[0])


def test_fedbn_keeps_its_norm_layers_and_their_statistics(lab: Lab) -> None:
    module = lab.network(norm=True)
    asked = lab.task(module, lab.client(32), epochs=2)
    norm = slice(64 * 16 + 16, 64 * 16 + 16 + 32)
    row, first = lab.train("fedbn", lab.network(norm=True), asked)
    plain, _ = lab.train("plain", lab.network(norm=True), asked)
    assert not row[norm].any(), "the server learns nothing about norm layers"
    rest = torch.ones_like(row, dtype=torch.bool)
    rest[norm] = False
    torch.testing.assert_close(row[rest], plain[rest])
    again = replace(asked, state=first.state, theta=asked.theta + 1, initial=asked.theta)
    objective = local_objective("fedbn")
    model = FlatModel(lab.network(norm=True))
    vector = objective.personal_vector(model, again)
    torch.testing.assert_close(vector[norm], (asked.theta - plain)[norm])
    assert torch.equal(vector[rest], again.theta[rest])
    statistics = dict(model.module.named_buffers())["1.running_mean"]
    assert torch.equal(statistics, first.state["buffer.1.running_mean"])
    assert statistics.abs().max() > 0


def test_fedbn_refuses_a_model_without_norm_layers(lab: Lab) -> None:
    with pytest.raises(InputError, match="no norm layers with parameters"):
        local_objective("fedbn").check(lab.network())
    with pytest.raises(InputError, match="there is only one"):
        local_objective("moon").check(_Bare())


class _Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
