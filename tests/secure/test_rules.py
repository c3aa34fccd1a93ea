"""Every rule runs on a secret cohort as it does on rows, or says that it cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parties import SIZES, secure_round, updates

from fedcraft.aggregators import RULES, aggregator
from fedcraft.aggregators.guards import guard
from fedcraft.aggregators.inputs import RoundInput
from fedcraft.errors import InputError
from fedcraft.secure import Secure
from fedcraft.secure.agreement import largest_share
from fedcraft.secure.fixed_point import FixedPoint
from fedcraft.secure.limits import Limits
from fedcraft.secure.products import spread_evenly
from fedcraft.secure.simulation import ArithmeticRound, simulate_round
from fedcraft.updates import Layout

OPTIONS = Secure(most_share=1.0, refinements=3, precision=1e-5)
NEED_ROWS = {"bulyan", "coordinate_median", "fedmdfg", "trimmed_mean"}
LOSSES = [1.0, 0.7, 1.3, 0.9, 1.1, 0.8]


def given() -> RoundInput:
    weights = np.arange(1.0, 7.0)
    return RoundInput(weights, Layout.from_sizes(SIZES), list(range(6)), LOSSES, [3.0] * 6, 0.1)


def step_of(rule, options=OPTIONS, rows=None):
    rows = updates() if rows is None else rows
    layout = Layout.from_sizes(SIZES)
    return simulate_round(
        rule, rows, layout, given(), options, seed=1, index=0, model=torch.zeros(1)
    )


@pytest.mark.parametrize("name", sorted(set(RULES) - NEED_ROWS))
def test_a_rule_takes_the_same_step_as_on_rows(name):
    found = given()
    plain = aggregator(name).aggregate(
        updates(), weights=found.weights, layers=list(SIZES), losses=LOSSES, steps=[3.0] * 6,
        client_lr=0.1,
    )  # fmt: skip
    step, _ = step_of(aggregator(name))
    cosine = torch.nn.functional.cosine_similarity(plain.direction, step.direction, dim=0)
    assert cosine > 0.9999
    ratio = float(step.direction.norm() / plain.direction.norm())
    assert ratio == pytest.approx(1, rel=0.01)


def test_a_rule_may_take_the_model_as_one_layer():
    plain = aggregator("config", by_layer=False).aggregate(
        updates(), weights=given().weights, layers=list(SIZES)
    )
    step, _ = step_of(aggregator("config", by_layer=False))
    cosine = torch.nn.functional.cosine_similarity(plain.direction, step.direction, dim=0)
    assert cosine > 0.9999


@pytest.mark.parametrize("name", sorted(NEED_ROWS))
def test_a_rule_that_needs_rows_says_so_by_name(name):
    rule = aggregator(name)
    before = rule.state_dict()
    with pytest.raises(InputError, match=f"{type(rule).__name__}: secure: .*single updates"):
        step_of(rule)
    assert rule.state_dict() == before


def test_with_sums_only_the_guard_is_named_and_not_the_average_that_it_is_around():
    sums = Secure(sketch=0, bound=20.0)
    rule = aggregator("average").guarded(guard("cosine"))
    with pytest.raises(InputError, match=r"Average with the guard .*without a guard"):
        step_of(rule, sums)


BAD_OPTIONS = [
    ({"dropouts": 0.2}, "secure.dropouts: expected a table such as"),
    ({"dropouts": {"sum": True}}, "secure.dropouts.sum: expected a number"),
    ({"sketch": 0, "bound": float("inf")}, "secure.bound: expected a finite number"),
    ({"sketch": 0, "bound": True}, "secure.bound: expected a finite number"),
    ({"protocol": ["complete"]}, "secure.protocol: expected one of"),
    ({"most_share": True}, "secure.most_share: expected a number"),
]
BAD_LIMITS = [
    ({"most_share": "a"}, "Limits.most_share: expected a number above 0"),
    ({"most_share": True}, "Limits.most_share: expected a number above 0"),
    ({"most_sums": 1.5}, "Limits.most_sums: expected a whole number >= 1, found 1.5"),
    ({"least_clients": True}, "Limits.least_clients: expected a whole number >= 2"),
    ({"equal_sums": 1}, "Limits.equal_sums: expected True or False"),
]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [(Secure, *case) for case in BAD_OPTIONS] + [(Limits, *case) for case in BAD_LIMITS],
)
def test_options_and_limits_of_the_wrong_kind_are_errors_that_name_them(kind, given, message):
    with pytest.raises(InputError, match=message):
        kind(**given)


@pytest.mark.parametrize("constraint", ["equal", "at_least"])
def test_refinement_leads_to_the_exact_step(constraint):
    """Every further sum brings U g closer to the targets, whatever the sketch's error."""
    rows = _long_rows()
    plain = aggregator("craft", constraint=constraint)
    layout = Layout.from_sizes([2000])
    exact = plain.aggregate(rows, layers=[2000]).direction
    errors = []
    for refinements in range(4):
        options = Secure(sketch=128, most_share=1.0, refinements=refinements, precision=1e-4)
        step, report = simulate_round(
            aggregator("craft", constraint=constraint), rows, layout, RoundInput(layers=layout),
            options, seed=3, index=0, model=torch.zeros(1),
        )  # fmt: skip
        assert report.sums == 1 + refinements
        errors.append(float((step.direction - exact).norm() / exact.norm()))
    assert errors[1] < 0.5 * errors[0]
    assert errors[3] < 0.01 * errors[0] + 2e-4


def test_the_certificate_is_measured_and_not_estimated():
    rows, layout = _long_rows(), Layout.from_sizes([2000])
    options = Secure(sketch=32, most_share=1.0, refinements=0)
    step, _ = simulate_round(
        aggregator("craft"), rows, layout, RoundInput(layers=layout), options,
        seed=3, index=0, model=torch.zeros(1),
    )  # fmt: skip
    exact = torch.nn.functional.normalize(rows, dim=1) @ step.direction
    assert torch.allclose(step.certificate.alignment[0], exact.double(), atol=1e-4)
    assert step.certificate.whole.residual > 0.05  # a coarse sketch misses the targets, and shows


def _one_client_falls_short() -> tuple[torch.Tensor, torch.Tensor]:
    """Updates, and a last step that meets all targets but that of client 0 in the second layer."""
    rows = updates().abs()
    start, stop = SIZES[0], SIZES[0] + SIZES[1]
    rows[0, start:stop] = 0
    rows[0, start] = 1.0
    reference = rows[1:].mean(0)
    reference[start] = -1.0
    return rows, reference


def _one_sided_step(options: Secure):
    rows, reference = _one_client_falls_short()
    rule = aggregator("craft", constraint="at_least")
    rule.memory = {"reference": reference}
    return step_of(rule, options, rows)


def test_concentrated_steps_are_spread_or_refused():
    """A one-sided step that corrects one client alone would reveal it."""
    step, report = _one_sided_step(Secure(most_share=0.6, refinements=0))
    assert report.spread == ("layer1",)
    assert step.certificate.conflict_free
    with pytest.raises(InputError, match=r"secure\.most_share: one client makes up"):
        _one_sided_step(Secure(most_share=0.6, refinements=0, concentrated="raise"))


def test_without_a_limit_the_step_of_one_client_is_the_plain_one():
    rows, reference = _one_client_falls_short()
    plain = aggregator("craft", constraint="at_least")
    plain.memory = {"reference": reference}
    weights = given().weights
    exact = plain.aggregate(rows, weights=weights, layers=list(SIZES)).direction
    step, report = _one_sided_step(Secure(most_share=1.0, refinements=0, precision=1e-5))
    assert report.spread == ()
    assert torch.allclose(step.direction, exact, atol=1e-4)


def test_a_spread_sum_makes_the_progress_that_the_rule_asked_for():
    """The mean that hides a client also moves it forward, so less of its own update is needed."""
    rows, _ = _one_client_falls_short()
    units = torch.nn.functional.normalize(rows.double(), dim=1)
    kernel, asked = units @ units.T, torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)
    found = spread_evenly(asked, 0.6, kernel)
    assert largest_share(found.numpy()) == pytest.approx(0.6)
    assert float(kernel[0] @ found) == pytest.approx(1.0)
    opposed = -kernel + 2 * torch.eye(6, dtype=torch.float64)  # then the mean is no help
    assert float(spread_evenly(asked, 0.6, opposed)[0]) > 1


def test_a_layer_that_may_not_be_refined_still_meets_the_target_that_is_missed():
    """Products of the first sum are exact: its length is corrected, without another sum."""
    rows, layout = _long_rows(), Layout.from_sizes([2000])
    units = torch.nn.functional.normalize(rows.double(), dim=1)
    along = torch.tensor([-0.5] + [1.0] * (len(rows) - 1), dtype=torch.float64)
    reference = (torch.linalg.pinv(units) @ along).float()  # only client 0 falls short
    missed = []
    for refinements in (0, 1):
        rule = aggregator("craft", constraint="at_least")
        rule.memory = {"reference": reference}
        step, report = simulate_round(
            rule, rows, layout, RoundInput(layers=layout),
            Secure(sketch=32, most_share=0.6, refinements=refinements, precision=1e-5),
            seed=3, index=0, model=torch.zeros(1),
        )  # fmt: skip
        assert report.spread
        assert report.sums == 1
        missed.append(abs(float(units[0] @ step.direction.double()) - 1 / len(rows)))
    assert missed[1] < 0.01 * missed[0] + 1e-5


def test_exact_gram_matrices_give_the_plain_step_in_one_sum():
    rows, layout = _long_rows(), Layout.from_sizes([2000])
    exact = aggregator("craft").aggregate(rows, layers=[2000]).direction
    step, _ = simulate_round(
        aggregator("craft"), rows, layout, RoundInput(layers=layout),
        Secure(protocol="exact", sketch=8, most_share=1.0, refinements=0, precision=1e-5),
        seed=3, index=0, model=torch.zeros(1),
    )  # fmt: skip
    assert float((step.direction - exact).norm() / exact.norm()) < 1e-4


def test_the_arithmetic_alone_gives_the_bits_of_the_complete_protocol():
    """Masks cancel exactly: the same sketches and coefficients give the same sum."""

    rows = updates()
    round, _ = secure_round(rows)
    c = torch.rand(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    point = FixedPoint.choose(SIZES, c, torch.ones(3), 1e-3)
    masked, _ = round.sum(c, list(range(6)), point)
    random = np.random.default_rng(0)
    bare = ArithmeticRound(rows, list(range(6)), SIZES, OPTIONS, seed=bytes(32), random=random)
    plain, _ = bare.sum(c, list(range(6)), point)
    assert torch.equal(masked, plain)
    vector = rows[0]
    one, other = round.dots(vector, [2])[2], bare.dots(vector, [2])[2]
    assert torch.allclose(one, other, rtol=1e-12)


def _long_rows() -> torch.Tensor:
    random = torch.Generator().manual_seed(2)
    return torch.randn(8, 2000, generator=random) + 0.5 * torch.randn(2000, generator=random)
