"""A server that does not keep to the protocol gets a refusal and not an update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from parties import REQUEST, SIZES, FaultyExchange, secure_round, updates
from test_protocol import summed

from fedcraft.secure import Secure
from fedcraft.secure.agreement import RefusedError
from fedcraft.secure.client import SecureClient
from fedcraft.secure.fixed_point import FixedPoint
from fedcraft.secure.limits import Limits, agreed_format
from fedcraft.secure.primitives import as_array
from fedcraft.secure.server import MaskedRound, RoundFailed

CLIENTS = 4
SETTINGS = {
    "occasion": as_array(b"1"),
    "sums": np.array(1),
    "sketch": np.array(8),
    "fold": np.array(256),
    "bound": np.array(0.0),
}


class Party:
    """Clients that a test asks by hand, up to their sealed shares."""

    def __init__(self, limits: Limits | None = None, **said: Any) -> None:
        self.clients = [SecureClient(limits or Limits()) for _ in range(CLIENTS)]
        public = np.stack([c.keys(SETTINGS)["public"] for c in self.clients])
        self.said = {
            "public": public,
            "names": np.arange(CLIENTS, dtype=np.uint64),
            "neighbours": np.array(24),
            "threshold": np.array(0.5),
            **said,
        }
        self.sealed = [
            client.shares(self.said, {"me": np.array(me)}) for me, client in enumerate(self.clients)
        ]

    def sketch(self, members: list[int], sizes: tuple[int, ...] = SIZES, **options: Any) -> None:
        """Ask every client for its sketch."""
        said = {"members": np.array(members, np.int64), "sizes": np.array(sizes)}
        for me, client in enumerate(self.clients):
            parts = [_part(self.sealed[j], me) for j in members]
            mine = {"sealed": as_array(b"".join(parts)), "lengths": np.array(list(map(len, parts)))}
            client.sketch(said, mine, updates()[me], REQUEST, **options)

    def sum_request(self, members: list[int], coefficients: list[float]) -> dict[str, Any]:
        """The request for a sum, the same coefficients in every layer."""
        table = np.tile(np.array(coefficients), (len(SIZES), 1))
        steps = np.abs(table).sum(1) * (1 + 1e-6) / (2**15 - len(members))
        return {
            "index": np.array(0),
            "members": np.array(members),
            "coefficients": table,
            "steps": steps,
            "width": np.array(2),
            "said": as_array(self.clients[0].transcript.value),
        }


def _part(answer: dict[str, Any], place: int) -> bytes:
    ends = np.cumsum(answer["lengths"])
    end = int(ends[place])
    return bytes(answer["sealed"].tobytes()[end - int(answer["lengths"][place]) : end])


@pytest.mark.parametrize("members", [[], [1, 2, 3], [0, 1, 1, 1], [0, 1, -2, -3]])
def test_a_sketch_needs_the_own_part_of_the_seed_and_those_of_enough_others(members):
    """Without any part the server would know the seed, and could undo the sketch."""
    with pytest.raises(RefusedError, match="members: expected 3 or more different"):
        Party().sketch(members)


def test_a_client_that_is_listed_twice_does_not_hide_its_coefficient():
    """Otherwise the second, small coefficient is checked and the first, large one is used."""
    party = Party()
    party.sketch([0, 1, 2, 3])
    for members in ([0, 1, 2, 3, 0], [0, 1, 2, 3, -4]):
        request = party.sum_request(members, [1.0, 0.01, 0.01, 0.01, 0.01])
        with pytest.raises(RefusedError, match="different clients"):
            party.clients[0].sum(request)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"names": np.array([7, 7, 1, 2], np.uint64)}, "two clients have the same"),
        ({"neighbours": np.array(0)}, "neighbours: expected 2"),
        ({"neighbours": np.array(1)}, "neighbours: expected 2"),
        ({"threshold": np.array(0.0)}, "threshold: expected at least one half"),
        ({"threshold": np.array(np.nan)}, "threshold: expected at least one half"),
    ],
    ids=["one name for two", "no neighbours", "one", "one share is enough", "NaN"],
)
def test_a_roster_that_protects_nobody_is_refused(said, reason):
    with pytest.raises(RefusedError, match=reason):
        Party(**said)


@pytest.mark.parametrize(("scale", "reason"), [(1.0, "coarser than"), (1e200, "below 1e.100")])
def test_steps_that_round_small_coefficients_away_are_refused(scale, reason):
    party = Party()
    party.sketch([0, 1, 2, 3])
    request = party.sum_request([0, 1, 2, 3], [scale, 0.7 * scale, 0.7 * scale, 0.7 * scale])
    request["steps"] = request["steps"] * 1e5
    with pytest.raises(RefusedError, match=reason):
        party.clients[0].sum(request)


def test_steps_that_round_most_clients_of_a_long_layer_away_are_refused():
    """They overflow nowhere, and are the finest of two bytes: the server must take three."""
    clients, sizes = 200, (1_000_000,)
    coefficients = torch.ones(1, clients, dtype=torch.float64)
    coefficients[0, 0] = 10.0
    step = float(coefficients.sum()) * (1 + 1e-6) / (2**15 - clients)
    said = {"width": np.array(2), "steps": np.array([step])}
    with pytest.raises(RefusedError, match="coarser than"):
        agreed_format(said, sizes, coefficients.numpy())
    chosen = FixedPoint.choose(sizes, coefficients, torch.full((1,), torch.inf), 1.0)
    assert chosen.width == 3
    said = {"width": np.array(3), "steps": np.array(chosen.steps)}
    assert agreed_format(said, sizes, coefficients.numpy()) == chosen


@pytest.mark.parametrize(
    "coefficients",
    [[1e200, 1, 1, 1], [1e-200, 0, 0, 0], [1e-170, 1e-180, 1e-180, 1e-180], [np.nan, 1, 1, 1]],
)
def test_coefficients_whose_squares_are_no_numbers_do_not_pass_as_fair_shares(coefficients):
    """The sum would be the first client's update, whatever its share of Inf or of zero is."""
    party = Party()
    party.sketch([0, 1, 2, 3])
    with pytest.raises(RefusedError):
        party.clients[0].sum(party.sum_request([0, 1, 2, 3], coefficients))


def test_coefficients_for_another_number_of_clients_are_refused():
    party = Party()
    party.sketch([0, 1, 2, 3])
    request = party.sum_request([0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0])
    request["coefficients"] = request["coefficients"][:, :1]
    with pytest.raises(RefusedError, match="coefficients: found the shape"):
        party.clients[0].sum(request)


@pytest.mark.parametrize("sizes", [(1,) * 96, (59, 31, 6), (0, 60, 36)])
def test_layers_that_cut_a_tensor_are_refused(sizes):
    """The length of a layer of one coordinate is that coordinate."""
    with pytest.raises(RefusedError, match="layers of whole tensors"):
        Party().sketch([0, 1, 2, 3], sizes, tensors=[60, 20, 10, 6])


@pytest.mark.parametrize(
    "changed",
    [{"sketch": np.array(0)}, {"bound": np.array(2.0)}, {"sketch": np.array(0), "sums": 2}],
    ids=["lengths", "sketch", "two sums"],
)
def test_distributed_noise_answers_rounds_of_one_sum_only(changed):
    client = SecureClient(Limits(equal_sums=True))
    with pytest.raises(RefusedError, match="bound"):
        client.keys({**SETTINGS, **changed})


def test_distributed_noise_answers_means_only():
    """A sum with the noise of few clients hides them less than the account assumes."""
    few = torch.zeros(len(SIZES), 6, dtype=torch.float64)
    few[:, :2] = 0.5
    round, exchange = _round_of_means()
    with pytest.raises(RoundFailed):
        summed(round, few)
    assert exchange.gone == set(range(6))
    assert summed(_round_of_means()[0], torch.full_like(few, 1 / 6))[1] == list(range(6))


def _round_of_means() -> tuple[MaskedRound, FaultyExchange]:
    options = Secure(sketch=0, bound=20.0, most_share=1.0)
    exchange = FaultyExchange(updates(), options)
    for client in exchange.clients.values():
        client.limits = Limits(1.0, 1, 2, equal_sums=True)
    round = MaskedRound(exchange, range(6), SIZES, options, occasion=b"1", request=REQUEST)
    return round, exchange


def test_an_honest_server_is_answered():
    party = Party()
    party.sketch([0, 1, 2, 3], tensors=[60, 20, 10, 6])
    request = party.sum_request([0, 1, 2, 3], [1.0, -0.5, 0.5, 0.5])
    for client in party.clients:
        assert "masked" in client.sum(request)
    assert secure_round(updates())[1].gone == set()
