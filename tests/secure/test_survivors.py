"""Which clients a sum is unmasked for: one list, known to all, and never one client alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from parties import CLIENTS, REQUEST, SIZES, FaultyExchange, secret, secure_round, updates
from test_protocol import equal, summed

from fedcraft.aggregators import aggregator
from fedcraft.secure import Secure
from fedcraft.secure.agreement import in_one_piece, largest_share, neighbours
from fedcraft.secure.cohort import aggregate_secretly
from fedcraft.secure.fixed_point import FixedPoint
from fedcraft.secure.limits import Limits
from fedcraft.secure.primitives import as_array
from fedcraft.secure.server import MaskedRound, RoundFailed, SumGivenUp

OPTIONS = Secure()  # what a federation has that sets nothing
DEFAULTS = Limits()


def started(
    rows: torch.Tensor, limits: Limits = DEFAULTS, options: Secure = OPTIONS, **faults: Any
) -> tuple[MaskedRound, FaultyExchange]:
    exchange = FaultyExchange(rows, options, **faults)
    for client in exchange.clients.values():
        client.limits = limits
    return attempt(exchange, len(rows), options), exchange


def attempt(exchange: FaultyExchange, clients: int, options: Secure = OPTIONS) -> MaskedRound:
    return MaskedRound(
        exchange, list(range(clients)), SIZES, options, occasion=b"1", request=REQUEST
    )


def shares_given(exchange: FaultyExchange) -> int:
    found = [reply["about"] for stage, _, reply in exchange.received if stage == "unmask"]
    return sum(len(about) for about in found)


def test_the_same_sum_again_without_one_client_is_not_unmasked():
    """The difference of the two is the update of that client."""
    round, exchange = started(updates())
    summed(round, equal())
    before = shares_given(exchange)
    exchange.losses["sum"] = {3}
    with pytest.raises(RoundFailed, match="stage unmask: 0 good answers"):
        summed(round, equal())
    assert shares_given(exchange) == before


def test_a_repeated_round_without_one_client_is_not_unmasked():
    round, exchange = started(updates())
    summed(round, equal())
    again, before = attempt(exchange, len(CLIENTS)), shares_given(exchange)
    exchange.losses["sum"] = {3}
    with pytest.raises(RoundFailed, match="stage unmask: 0 good answers"):
        summed(again, equal())
    assert shares_given(exchange) == before


@pytest.mark.parametrize("lie", [{"sizes": (90, 6)}, {"options": Secure(sketch=0, bound=9.0)}])
def test_a_repeated_round_has_the_layers_and_the_scale_of_the_first(lie):
    """Coefficients of other layers, or of updates that are scaled otherwise, do not compare."""
    round, exchange = started(updates())
    summed(round, equal())
    chosen = {"sizes": SIZES, "options": OPTIONS, **lie}
    again = MaskedRound(
        exchange, list(CLIENTS), chosen["sizes"], chosen["options"],
        occasion=b"1", request=REQUEST,
    )  # fmt: skip
    layers = len(chosen["sizes"])
    same = equal()[:layers]
    point = FixedPoint.choose(chosen["sizes"], same, torch.ones(layers), 1e-3)
    with pytest.raises(RoundFailed, match="stage sum"):
        again.sum(same, list(CLIENTS), point)


def test_survivors_of_whom_one_makes_up_too_much_are_refused():
    """Over all 20 clients its share is harmless; over those that are said to be left it is not."""
    round, exchange = started(updates(clients=20), losses={"sum": set(range(11, 20))})
    peaked = torch.ones(len(SIZES), 20, dtype=torch.float64)
    peaked[:, 0] = 7.0
    assert largest_share(peaked.numpy()) < DEFAULTS.most_share
    assert largest_share(peaked[:, :11].numpy()) > DEFAULTS.most_share
    with pytest.raises(RoundFailed, match="stage unmask: 0 good answers"):
        summed(round, peaked)
    assert shares_given(exchange) == 0


def test_fewer_survivors_than_a_client_agrees_to_are_refused():
    limits = Limits(most_share=1.0, least_clients=5)
    round, exchange = started(updates(), limits, losses={"sum": {4, 5}})
    with pytest.raises(RoundFailed, match="stage unmask: 0 good answers"):
        summed(round, equal())
    assert shares_given(exchange) == 0


def two_faced(clients: int, change: Callable[[str, int, dict[str, Any]], None]) -> Any:
    """A round whose server tells a client something else, and then the hash that it expects."""

    def lie(stage: str, client: int, said: dict[str, Any]) -> dict[str, Any]:
        if stage in ("confirm", "unmask"):
            said["said"] = as_array(exchange.clients[client].transcript.value)
        change(stage, client, said)
        return said

    round, exchange = started(updates(clients=clients), Limits(most_share=1.0), lie=lie)
    return round, exchange


def test_a_server_that_names_everyone_other_survivors_gets_no_share():
    """Each list is harmless, and has its reader. All agree on client 0 and on nobody else."""

    def change(stage: str, client: int, said: dict[str, Any]) -> None:
        if stage == "confirm":
            near = [(client + step) % 12 for step in range(8)]
            said["survivors"] = np.array(sorted({0, *near}))

    round, exchange = two_faced(12, change)
    with pytest.raises(RoundFailed, match="stage unmask: 0 good answers"):
        summed(round, equal(12))
    assert len([stage for stage, _, _ in exchange.received if stage == "confirm"]) == 12
    assert shares_given(exchange) == 0


def test_a_client_that_was_told_other_members_shares_masks_with_more_than_half_its_holders():
    """Else the others, who are told that its few partners were lost, would uncover its vector."""

    def change(stage: str, client: int, said: dict[str, Any]) -> None:
        if stage == "sum" and client == 0:
            said["members"] = said["members"][:3]
            said["coefficients"] = said["coefficients"][:, :3]
            said["steps"] = said["steps"] / 4

    round, exchange = two_faced(12, change)
    summed(round, equal(12))
    assert 0 not in [client for stage, client, _ in exchange.received if stage == "sum"]


def test_a_client_that_is_said_to_be_lost_confirms_nothing():
    """Those who answer are thus never among those whose masks with others are given away."""

    def change(stage: str, client: int, said: dict[str, Any]) -> None:
        if stage == "confirm" and client == 2:
            said["survivors"] = np.array([0, 1, 3, 4, 5])

    round, exchange = two_faced(6, change)
    summed(round, equal())
    assert 2 not in [client for stage, client, _ in exchange.received if stage == "confirm"]


def test_a_ring_that_is_cut_in_two_places_is_not_one_group():
    """The sums of its two parts would be visible, not only the sum of both."""
    public = np.random.default_rng(0).integers(0, 256, (40, 3, 32), dtype=np.uint8)
    ring = [0]
    near = {i: set(neighbours(public, i, 2)) for i in range(40)}
    while len(ring) < 40:
        ring.append(next(j for j in sorted(near[ring[-1]]) if j not in ring))
    assert in_one_piece(public, ring, 6)
    assert in_one_piece(public, ring[3:], 6)
    assert in_one_piece(public, ring[3:20] + ring[22:], 6)
    assert not in_one_piece(public, ring[3:20] + ring[23:], 6)
    assert in_one_piece(public, [0, 1, 2], 39)


def test_a_client_answers_no_further_sum_before_it_knows_what_became_of_the_last_one():
    round, exchange = started(updates(), Limits(most_share=1.0), losses={"unmask": {0, 1, 2}})
    with pytest.raises(RoundFailed, match="stage unmask: 3 good answers"):
        summed(round, equal())
    exchange.gone.clear()
    exchange.losses.clear()
    round._heard.value = exchange.clients[0].transcript.value  # the server says what it expects
    with pytest.raises(RoundFailed, match="stage sum"):
        summed(round, equal())
    assert exchange.gone >= {0, 1, 2}


def test_a_sum_that_is_given_up_does_not_count():
    """An honest server that loses a client can ask again for the sum over the others."""
    round, exchange = started(updates(), losses={"sum": {3}})
    rows = list(CLIENTS)
    point = FixedPoint.choose(SIZES, equal(), torch.ones(3), 1e-3)
    with pytest.raises(SumGivenUp):
        round.sum(equal(), rows, point, lambda present: len(present) == 6)
    assert shares_given(exchange) == 0
    fewer = [0, 1, 2, 4, 5]
    vector, arrived = round.sum(equal(), fewer, point)
    assert arrived == fewer
    assert len(exchange.clients[0].memory["spent"]) == 1
    assert torch.isfinite(vector).all()


def losing(
    options: Secure, lost_sum: int, rows: torch.Tensor
) -> tuple[MaskedRound, FaultyExchange]:
    """A round that loses clients 4 and 5 in one of its sums."""
    round, exchange = secure_round(rows, options)
    asked = exchange.ask

    def ask(stage: Any, said: Any, private: Any) -> Any:
        if exchange.stages.count("sum") + (stage == "sum") == lost_sum:
            exchange.losses["sum"] = {4, 5}
        return asked(stage, said, private)

    exchange.ask = ask  # type: ignore[method-assign]
    return round, exchange


@pytest.mark.parametrize(("refinements", "lost_sum"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)])
def test_a_loss_that_would_uncover_a_client_leads_to_another_step_and_no_refusal(
    refinements, lost_sum
):
    """The server checks before it asks, so that honest clients have nothing to refuse."""
    options = Secure(sketch=4, most_share=0.6, refinements=refinements)
    round, exchange = losing(options, lost_sum, updates(3))
    cohort = secret(round, options)
    step = aggregate_secretly(aggregator("craft", constraint="at_least"), cohort)
    known = torch.stack([known.coefficients for known in cohort.products.known])
    shares = [largest_share(known[:, layer].numpy()) for layer in range(len(SIZES))]
    assert max(shares) <= options.most_share
    assert exchange.gone <= {4, 5}
    assert torch.isfinite(step.direction).all()


def test_a_round_whose_only_sum_is_given_up_is_repeated_without_the_lost_clients():
    options = Secure(sketch=4, most_share=0.6, refinements=0)
    rule = aggregator("craft", constraint="at_least")
    round, exchange = losing(options, 1, updates(3))
    with pytest.raises(RoundFailed, match="too few to hide one"):
        aggregate_secretly(rule, secret(round, options))
    again = attempt(exchange, len(CLIENTS), options)
    assert again.clients == [0, 1, 2, 3]
    step = aggregate_secretly(rule, secret(again, options))
    assert torch.isfinite(step.direction).all()
    assert exchange.gone == {4, 5}
