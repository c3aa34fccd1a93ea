"""The protocol: right sums with and without drop-outs, and refusals of what reveals too much."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from parties import CLIENTS, REQUEST, SIZES, FaultyExchange, secret, secure_round, units, updates

from fedcraft.aggregators import aggregator
from fedcraft.secure import Secure
from fedcraft.secure.agreement import RefusedError, largest_share, neighbours
from fedcraft.secure.client import SecureClient
from fedcraft.secure.cohort import aggregate_secretly
from fedcraft.secure.fixed_point import FixedPoint
from fedcraft.secure.limits import Limits
from fedcraft.secure.primitives import as_array
from fedcraft.secure.server import MaskedRound, RoundFailed

OPTIONS = Secure(most_share=0.9, refinements=1)


def summed(round: Any, coefficients: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    rows = list(range(len(round.clients)))
    point = FixedPoint.choose(SIZES, coefficients, torch.ones(len(SIZES)), 1e-5)
    return round.sum(coefficients, rows, point)


def equal(clients: int = len(CLIENTS)) -> torch.Tensor:
    return torch.full((len(SIZES), clients), 1 / clients, dtype=torch.float64)


def test_the_sum_is_that_of_the_updates_and_the_sketch_shows_their_angles():
    rows = updates()
    round, _ = secure_round(rows)
    found, arrived = summed(round, equal())
    assert arrived == list(CLIENTS)
    assert torch.allclose(found, units(rows).mean(0), atol=1e-6)
    part = units(rows)[:, -6:].double()
    assert torch.allclose(round.cosines[2], part @ part.T, atol=1e-5)  # a short layer is exact


@pytest.mark.parametrize("lost", [set(), {1}], ids=["own masks", "masks with a lost client"])
@pytest.mark.parametrize("byte", [0, 10], ids=["number", "content"])
def test_wrong_shares_fail_the_round_and_do_not_spoil_the_sum(lost, byte):
    def wrong(stage: str, reply: dict[str, Any]) -> dict[str, Any]:
        if stage == "unmask":
            reply["shares"] = reply["shares"].copy()
            reply["shares"][:, byte] ^= 1
        return reply

    round, exchange = secure_round(updates(), losses={"sum": lost})
    exchange.forge = {0: wrong}
    with pytest.raises(RoundFailed, match="do not fit its public key"):
        summed(round, equal())


def test_a_vector_of_the_wrong_size_counts_as_lost():
    def short(stage: str, reply: dict[str, Any]) -> dict[str, Any]:
        return {"masked": reply["masked"][:-1]} if stage == "sum" else reply

    rows = updates()
    round, exchange = secure_round(rows)
    exchange.forge = {2: short}
    found, arrived = summed(round, equal())
    assert arrived == [0, 1, 3, 4, 5]
    assert torch.allclose(found, units(rows)[arrived].sum(0) / len(CLIENTS), atol=1e-6)


@pytest.mark.parametrize("stage", ["keys", "shares", "sketch", "dots", "sum", "confirm", "unmask"])
@pytest.mark.parametrize("lost", [{1}, {0, 4}], ids=["one", "two"])
def test_clients_lost_at_any_stage_do_not_spoil_the_round(stage, lost):
    """The result is that of the clients that remain, or of all if their vectors had arrived."""
    rows, options = updates(), Secure(most_share=1.0, refinements=1)
    round, exchange = secure_round(rows, options, losses={stage: lost})
    secure_rule, plain_rule = aggregator("craft"), aggregator("craft")
    secure_rule.memory = plain_rule.memory = {"reference": updates(1)[0]}
    step = aggregate_secretly(secure_rule, secret(round, options))
    kept = [i for i in CLIENTS if i not in lost]
    before = stage not in ("confirm", "unmask")
    assert sorted(step.certificate.client_ids) == (kept if before else list(CLIENTS))
    ids = list(step.certificate.client_ids)
    plain = plain_rule.aggregate(
        rows[ids], weights=[1.0 + i for i in ids], layers=list(SIZES), client_ids=ids
    )
    cosine = torch.nn.functional.cosine_similarity(plain.direction, step.direction, dim=0)
    assert cosine > 0.999
    assert exchange.gone == lost


def test_a_client_lost_in_the_only_sum_does_not_shorten_the_step():
    """Weights count over the clients that remain."""
    rows, options = updates(), Secure(most_share=1.0, sketch=0, bound=20.0, precision=1e-5)
    round, _ = secure_round(rows, options, losses={"sum": {1}})
    step = aggregate_secretly(aggregator("average"), secret(round, options))
    kept = [i for i in CLIENTS if i != 1]
    weights = [1.0 + i for i in kept]
    plain = aggregator("average").aggregate(rows[kept], weights=weights, layers=list(SIZES))
    assert torch.allclose(step.direction, plain.direction, atol=1e-4)


def test_masks_of_lost_clients_are_taken_out_exactly():
    rows = updates()
    round, _ = secure_round(rows, losses={"sum": {2, 5}})
    found, arrived = summed(round, equal())
    assert arrived == [0, 1, 3, 4]
    assert torch.allclose(found, units(rows)[arrived].sum(0) / 6, atol=1e-6)


def test_too_many_lost_clients_fail_the_round_instead_of_giving_a_wrong_sum():
    round, _ = secure_round(updates(), losses={"unmask": {0, 1, 2}})
    with pytest.raises(RoundFailed, match="stage unmask: 3 good answers, and 4 are needed"):
        summed(round, equal())


def test_a_ring_of_neighbours_gives_the_same_sum_with_fewer_keys():
    rows = updates(clients=12)
    round, exchange = secure_round(rows, Secure(neighbours=4), losses={"sum": {3}})
    found, arrived = summed(round, equal(12))
    assert torch.allclose(found, units(rows)[arrived].sum(0) / 12, atol=1e-6)
    public = exchange.clients[0].memory["public"]
    near = {i: neighbours(public, i, 4) for i in range(12)}
    assert all(len(js) == 4 and all(i in near[j] for j in js) for i, js in near.items())


def test_coefficients_that_differ_between_clients_give_an_error():
    def lie(stage: str, client: int, said: dict[str, Any]) -> dict[str, Any]:
        if stage == "sum" and client == 3:
            said["coefficients"] = said["coefficients"] * 0.5
        return said

    round, exchange = secure_round(updates(), lie=lie)
    found, _ = summed(round, equal())
    assert exchange.gone == {3}  # it finds out when it is asked to unmask
    truth = units(updates()).mean(0)
    assert abs(float(torch.nn.functional.cosine_similarity(found, truth, dim=0))) < 0.3  # noise


def test_a_request_that_differs_between_clients_gives_an_error():
    """The hash of the request is part of what is said: the client with another one refuses."""
    options = OPTIONS
    exchange = FaultyExchange(updates(), options)
    honest = exchange.answer

    def answer(stage: Any, client: Any, said: Any, mine: Any) -> Any:
        exchange._request = b"other" * 8 if client == 2 else REQUEST
        return honest(stage, client, said, mine)

    exchange.answer = answer  # type: ignore[method-assign]
    round = MaskedRound(exchange, list(CLIENTS), SIZES, options, occasion=b"1", request=REQUEST)
    _, arrived = summed(round, equal())
    assert arrived == [0, 1, 3, 4, 5]
    assert exchange.gone == {2}


def test_a_server_that_swaps_keys_is_found_out():
    def lie(stage: str, client: int, said: dict[str, Any]) -> dict[str, Any]:
        if stage == "shares" and client == 1:
            said["public"] = said["public"].copy()
            said["public"][2, 0] = said["public"][4, 0]
        return said

    with pytest.raises(RoundFailed, match="stage sketch"):
        secure_round(updates(), lie=lie)


def test_concentrated_coefficients_are_refused_by_clients():
    round, exchange = secure_round(updates())
    peaked = equal()
    peaked[1, 0] = 50.0
    with pytest.raises(RoundFailed):
        summed(round, peaked)
    assert exchange.gone == set(CLIENTS)


def test_sums_that_single_out_a_client_by_their_difference_are_refused():
    """Each of the two sums is harmless; their difference is one client's update."""
    round, exchange = secure_round(updates())
    summed(round, equal())
    other = equal()
    other[:, 3] *= 1.5
    assert largest_share(other.numpy()) < 0.32
    with pytest.raises(RoundFailed):
        summed(round, other)
    assert exchange.gone == set(CLIENTS)


def test_a_repeated_round_counts_with_the_first_one():
    """A server that starts a round again cannot get a second sum that singles out a client."""
    rows, options = updates(), OPTIONS
    round, exchange = secure_round(rows, options)
    summed(round, equal())
    again = MaskedRound(exchange, list(CLIENTS), SIZES, options, occasion=b"1", request=REQUEST)
    summed(again, 2 * equal())  # a multiple reveals nothing new
    last = MaskedRound(exchange, list(CLIENTS), SIZES, options, occasion=b"1", request=REQUEST)
    other = equal()
    other[:, 3] *= 1.5
    with pytest.raises(RoundFailed):  # this attempt has no sum but this one
        summed(last, other)


def test_a_client_answers_every_sum_once_and_gives_one_secret_of_each_client():
    round, exchange = secure_round(updates())
    summed(round, equal())
    client = exchange.clients[0]
    heard = as_array(client.transcript.value)
    said = {"index": np.array(0), "survivors": np.arange(5), "said": heard}
    with pytest.raises(RefusedError, match="has confirmed its survivors"):
        client.confirm(said)
    with pytest.raises(RefusedError, match="has unmasked it"):
        client.unmask(said, {})
    request = {"index": np.array(0), "said": heard}
    with pytest.raises(RefusedError, match="answered already"):
        client.sum({**request, "members": np.arange(6), "coefficients": equal().numpy()})


def test_a_format_in_which_the_sum_could_overflow_is_refused():
    round, exchange = secure_round(updates())
    point = FixedPoint(SIZES, (1e-9,) * 3, 2)
    with pytest.raises(RoundFailed):
        round.sum(equal(), list(CLIENTS), point)
    assert exchange.gone == set(CLIENTS)


def test_clients_limit_products_sums_and_the_size_of_the_crowd():
    limits = Limits(most_sums=1, least_clients=5)
    client = SecureClient(limits)
    said = {"occasion": as_array(b"1"), "sketch": np.array(8), "fold": np.array(256)}
    said["bound"] = np.array(0.0)
    with pytest.raises(RefusedError, match="agreed to at most 1, asked for 2"):
        client.keys({**said, "sums": np.array(2)})
    public = client.keys({**said, "sums": np.array(1)})["public"]
    roster = {"public": np.stack([public] * 2), "names": np.arange(2, dtype=np.uint64)}
    with pytest.raises(RefusedError, match="expected 5 or more, found 2"):
        client.shares(roster, {"me": np.array(0)})
    round, _ = secure_round(updates())
    for index in range(7):
        found = round.dots(torch.full((sum(SIZES),), float(index)), list(CLIENTS))
        assert bool(found) == (index < 6)


def test_a_client_can_be_stored_between_any_two_messages():
    """Everything it needs is in its memory of arrays."""
    rows = updates()
    exchange = FaultyExchange(rows, OPTIONS)
    honest = exchange.answer

    def answer(stage: Any, client: Any, said: Any, mine: Any) -> Any:
        old = exchange.clients[client]
        stored = {name: np.array(value) for name, value in old.memory.items()}
        exchange.clients[client] = SecureClient(old.limits, memory=stored)
        return honest(stage, client, said, mine)

    exchange.answer = answer  # type: ignore[method-assign]
    round = MaskedRound(exchange, list(CLIENTS), SIZES, OPTIONS, occasion=b"1", request=REQUEST)
    found, _ = summed(round, equal())
    assert torch.allclose(found, units(rows).mean(0), atol=1e-6)


def test_a_pre_shared_key_locks_out_clients_that_do_not_have_it():
    exchange = FaultyExchange(updates(), OPTIONS)
    for client, known in exchange.clients.items():
        known._psk = b"ours" if client != 2 else b"theirs"
    with pytest.raises(RoundFailed, match="stage sketch"):
        MaskedRound(exchange, list(CLIENTS), SIZES, OPTIONS, occasion=b"1", request=b"")


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([[1, 1, 1, 1]], 0.25),
        ([[1, 0, 0, 0]], 1.0),
        ([[1, 1, 1, 1], [1, 1, 1, 2]], 1.0),
        ([[1, 1, 1, 1], [1, 1, 1, 1 + 1e-8]], 1.0),  # four bytes show their difference
        ([[1e200, 1, 1, 1]], 1.0),  # its squares are Inf
        ([[1e-200, 1e-200, 0, 0]], 0.5),  # and these are zero
        ([[0, 0, 0, 0]], 0.0),
    ],
)
def test_the_largest_share_of_a_client_in_any_combination(rows, share):
    assert largest_share(np.array(rows, dtype=float)) == pytest.approx(share)
