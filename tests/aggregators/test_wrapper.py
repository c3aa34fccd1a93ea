"""A rule around a rule: state, certificate and failures pass through."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import fedcraft
from fedcraft.aggregators import Wrapper


class Halved(Wrapper):
    """Half the inner step."""

    def after(self, cohort, step):
        self.memory = {**self.memory, "rounds": self.memory.get("rounds", 0) + 1}
        return replace(step, direction=step.direction / 2)


class Failing(Wrapper):
    """Fails after the inner rule has moved on."""

    def after(self, cohort, step):
        raise RuntimeError("no step today")


def updates(seed: int) -> torch.Tensor:
    return torch.randn(4, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_inner_step_and_its_certificate_pass_through():
    inner, wrapped = fedcraft.aggregator("craft"), Halved(fedcraft.aggregator("craft"))
    for seed in range(3):
        expected, step = inner.aggregate(updates(seed)), wrapped.aggregate(updates(seed))
        torch.testing.assert_close(step.direction, expected.direction / 2)
        assert step.certificate.whole.residual == expected.certificate.whole.residual


def test_a_saved_wrapper_continues_with_the_same_bits():
    first, second = (Halved(fedcraft.aggregator("craft")) for _ in range(2))
    first.aggregate(updates(0))
    second.load_state_dict(first.state_dict())
    assert second.memory == {"rounds": 1}
    one, two = first.aggregate(updates(1)), second.aggregate(updates(1))
    assert torch.equal(one.direction, two.direction)


def test_a_round_that_fails_outside_leaves_the_inner_rule_as_it_was():
    rule = Failing(fedcraft.aggregator("craft"))
    with pytest.raises(RuntimeError, match="no step"):
        rule.aggregate(updates(0))
    assert rule.inner.memory == {}


def test_a_wrapper_needs_what_its_inner_rule_needs():
    assert Halved(fedcraft.aggregator("afl")).needs == {"losses"}


def test_what_only_some_rules_offer_passes_through():
    assert Halved(fedcraft.aggregator("afl")).evaluate_average
    searching = Halved(fedcraft.aggregator("fedmdfg"))
    assert searching.wants_line_search == searching.inner.wants_line_search
    assert not hasattr(Halved(fedcraft.aggregator("craft")), "evaluate_average")
    assert copy.deepcopy(searching).inner is not searching.inner


@pytest.mark.parametrize("method", ["fedmdfg", "afl"])
def test_a_wrapper_that_changes_nothing_trains_the_same_model(method, tmp_path):
    rule = fedcraft.method(method)
    plain, wrapped = (
        fedcraft.run(
            method=method,
            **({} if name == "plain" else {"aggregator": Wrapper(rule.build()[1])}),
            dataset="digits",
            clients=10,
            clients_per_round=3,
            rounds=3,
            executor="serial",
            out=tmp_path / name,
        )
        for name in ("plain", "wrapped")
    )
    assert plain.evaluation == wrapped.evaluation
