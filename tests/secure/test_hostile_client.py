"""A client that answers with anything at all is left out, and never stops the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from parties import REQUEST, SIZES, FaultyExchange, secret, updates

from fedcraft.aggregators import aggregator
from fedcraft.secure import Secure
from fedcraft.secure.cohort import aggregate_secretly
from fedcraft.secure.server import MaskedRound

OPTIONS = Secure(most_share=1.0, refinements=1)
SUMS = Secure(sketch=0, bound=20.0, most_share=1.0)
LIAR = 1
FIELDS = {
    "keys": ["public"],
    "shares": ["sealed", "lengths"],
    "sketch": ["sketch", "norms"],
    "dots": ["dots"],
    "sum": ["masked"],
    "confirm": ["about", "proofs"],
    "unmask": ["about", "shares"],
}


def run(forge: Any, options: Secure = OPTIONS, rule: str = "craft") -> tuple[Any, FaultyExchange]:
    exchange = FaultyExchange(updates(), options)
    exchange.forge = {LIAR: forge}
    round = MaskedRound(exchange, range(6), SIZES, options, occasion=b"1", request=REQUEST)
    chosen = aggregator(rule)
    if rule == "craft":
        chosen.memory = {"reference": updates(1)[0]}
    return aggregate_secretly(chosen, secret(round, options)), exchange


def forging(stage: str, field: str, value: Any) -> Any:
    def forge(asked: str, reply: dict[str, Any]) -> dict[str, Any]:
        if asked != stage:
            return reply
        changed = {name: array for name, array in reply.items() if name != field}
        return changed if value is None else {**changed, field: value(np.asarray(reply[field]))}

    return forge


@pytest.mark.parametrize(
    "value",
    [
        None,
        lambda array: array.astype("U3"),
        lambda array: array[..., None],
        lambda array: np.array(3.0),
        lambda array: array[:0],
        lambda array: array.astype(complex),
        lambda array: np.full(array.shape, np.nan),
        lambda array: -array.astype(np.int64) - 1,
        lambda array: np.full(array.shape, 1e200),
    ],
    ids=["missing", "text", "shape", "number", "empty", "complex", "NaN", "negative", "huge"],
)
@pytest.mark.parametrize(("stage", "field"), [(s, f) for s, fs in FIELDS.items() for f in fs])
def test_an_answer_of_the_wrong_kind_counts_as_none(stage, field, value):
    step, _ = run(forging(stage, field, value))
    counted = LIAR in step.certificate.client_ids
    assert counted == (stage in ("confirm", "unmask"))  # by then its vector is in the sum
    assert torch.isfinite(step.direction).all()


def test_a_key_that_gives_no_secret_does_not_stop_the_other_clients():
    step, exchange = run(forging("keys", "public", np.zeros_like))
    assert sorted(step.certificate.client_ids) == [0, 2, 3, 4, 5]
    assert not exchange.gone - {LIAR}


def test_a_product_that_no_unit_vector_has_counts_as_none():
    step, _ = run(forging("dots", "dots", lambda dots: dots + 1e6))
    assert LIAR not in step.certificate.client_ids


def test_with_sums_only_a_client_cannot_choose_its_weight():
    """The lengths are the bound, and scale what a client contributes to the sum."""
    step, _ = run(forging("sketch", "norms", lambda norms: 1e6 * norms), SUMS, "average")
    honest = [i for i in range(6) if i != LIAR]
    weights = torch.tensor([1.0 + i for i in honest]).unsqueeze(1)
    mean = (updates()[honest] * weights).sum(0) / weights.sum()
    assert torch.allclose(step.direction.float(), mean, atol=1e-2)


def test_a_client_gives_one_share_about_each_other():
    def flood(stage: str, reply: dict[str, Any]) -> dict[str, Any]:
        if stage != "unmask":
            return reply
        about = np.concatenate([np.full(50, 3), reply["about"]])
        false = np.zeros((50, reply["shares"].shape[1]), np.uint8)
        return {"about": about, "shares": np.concatenate([false, reply["shares"]])}

    step, _ = run(flood)
    assert torch.isfinite(step.direction).all()
