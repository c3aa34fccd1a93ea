"""What the server receives shows no update. Every test has a control that it catches."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from parties import CLIENTS, REQUEST, SIZES, FaultyExchange, secret, secure_round, units, updates
from scipy import stats

from fedcraft.aggregators import aggregator
from fedcraft.secure import Secure
from fedcraft.secure import client as client_side
from fedcraft.secure import server as server_side
from fedcraft.secure.cohort import aggregate_secretly
from fedcraft.secure.fixed_point import FixedPoint
from fedcraft.secure.primitives import agree, derive, private_key, public_key
from fedcraft.secure.server import MaskedRound
from fedcraft.secure.sketch import sketch

OPTIONS = Secure(sketch=8, most_share=0.95, refinements=1)


def finished_round(seed: int = 0):
    rows = updates(seed)
    round, exchange = secure_round(rows, OPTIONS)
    step = aggregate_secretly(aggregator("craft"), secret(round, OPTIONS))
    return rows, exchange, step


def uniform_pvalue(content: np.ndarray) -> float:
    counts = np.bincount(content, minlength=256)
    return float(stats.chisquare(counts).pvalue)


def test_single_masked_vectors_look_uniform_and_unmasked_ones_do_not():
    _, exchange, _ = finished_round()
    masked = [reply["masked"] for stage, _, reply in exchange.received if stage == "sum"]
    assert len(masked) >= len(CLIENTS)
    for vector in masked:
        assert uniform_pvalue(np.asarray(vector)) > 1e-5
    point = FixedPoint(SIZES, (1e-4,) * 3, 2)
    bare = point.pack(point.encode(units(updates())[0], [0.2] * 3))
    assert uniform_pvalue(bare) < 1e-5


def test_masked_vectors_of_the_same_client_do_not_depend_on_its_update():
    """The masked vectors of opposite updates cannot be told apart; the bare ones can."""
    shown, bare = [], []
    for sign in (1, -1):
        rows = updates()
        rows[0] *= sign
        round, exchange = secure_round(rows, OPTIONS)
        c = torch.full((3, 6), 1 / 6, dtype=torch.float64)
        point = FixedPoint.choose(SIZES, c, torch.ones(3), 1e-3)
        round.sum(c, list(CLIENTS), point)
        first = next(r for stage, client, r in exchange.received if stage == "sum" and client == 0)
        shown.append(point.unpack(np.asarray(first["masked"])).astype(float))
        bare.append(point.encode(units(rows)[0], [1 / 6] * 3).astype(np.int16).astype(float))
    assert abs(np.corrcoef(*shown)[0, 1]) < 4 / np.sqrt(sum(SIZES))
    assert np.corrcoef(*bare)[0, 1] < -0.99


def test_nothing_that_leaves_a_client_is_parallel_to_its_update():
    """Every array of at least d numbers in the log is compared with the update, entry by entry."""
    rows, exchange, _ = finished_round()
    large = 0
    for _, client, reply in exchange.received:
        for array in reply.values():
            for kind in (np.uint8, np.uint16, np.float32):
                raw = np.asarray(array).tobytes()
                with np.errstate(all="ignore"):
                    values = np.frombuffer(raw[: len(raw) // 4 * 4], kind).astype(np.float64)
                    for start in range(0, len(values) - sum(SIZES) + 1, sum(SIZES)):
                        part = values[start : start + sum(SIZES)]
                        if np.isfinite(part).all() and part.std() > 0 and part.max() < 1e30:
                            large += 1
                            assert abs(np.corrcoef(part, rows[client])[0, 1]) < 0.5
    assert large > 10


def test_reconstruction_from_what_the_server_holds_is_no_better_than_chance():
    """The best linear guess of u_i from its sketch needs P. With the wrong P it is a random guess.

    A client that colludes knows P: then k of d numbers are known, and the guess is better.
    """
    guesses, colluding, chance = [], [], []
    random = torch.Generator().manual_seed(5)
    for trial in range(30):
        rows = updates(trial, clients=3)
        _, exchange = secure_round(rows, OPTIONS)
        unit = units(rows)[0][: SIZES[0]]
        reply = next(r for s, c, r in exchange.received if s == "sketch" and c == 0)
        seen = torch.from_numpy(np.asarray(reply["sketch"]))[: OPTIONS.sketch]
        wrong = derive(trial.to_bytes(2, "little"), "guess")
        guesses.append(_cosine(_guess(seen, wrong), unit))
        chance.append(_cosine(torch.randn(SIZES[0], generator=random), unit))
    known = bytes(32)
    for trial in range(30):
        rows = units(updates(trial))
        seen = sketch(rows[:1, : SIZES[0]], [SIZES[0]], known, count=8, fold=10**6)[0][0]
        colluding.append(_cosine(_guess(seen, known), rows[0, : SIZES[0]]))
    assert stats.ks_2samp(np.abs(guesses), np.abs(chance)).pvalue > 1e-3
    assert stats.ks_2samp(np.abs(colluding), np.abs(chance)).pvalue < 1e-6
    assert np.mean(colluding) > 0.25  # sqrt(8 / 60) = .37 of its length


def test_the_sums_and_products_do_not_determine_any_client():
    """From all sums the server's best estimate of u_i stays as far as the shares promise."""
    rows, exchange, _ = finished_round()
    spent = exchange.clients[0].memory["spent"]
    exact = units(rows)
    for layer, block in enumerate(torch.split_with_sizes(exact, list(SIZES), dim=1)):
        vectors = torch.from_numpy(spent[:, layer]) @ block.double()  # what the server has seen
        basis = torch.linalg.svd(vectors, full_matrices=False)[2]
        for row in block.double():
            assert float((basis @ row).norm()) < 0.999


class Drawn:
    """Clients and server that draw the same secrets in every round, but for one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: list[bytes] = []
        self.changed: int | None = None
        monkeypatch.setattr(secrets, "token_bytes", self._draw)

    def _draw(self, size: int) -> bytes:
        number, index = len(self.drawn), len([d for d in self.drawn if len(d) == 32])
        other = size == 32 and index == self.changed
        found = np.random.default_rng([number, int(other)]).bytes(size)
        self.drawn.append(found)
        return found

    def round(self, changed: int | None = None, occasion: bytes = b"1") -> FaultyExchange:
        """Run a round with one sum; ``changed`` counts among the secrets of 32 bytes."""
        self.drawn, self.changed = [], changed
        exchange = FaultyExchange(updates(), OPTIONS)
        clients = list(CLIENTS)
        round = MaskedRound(exchange, clients, SIZES, OPTIONS, occasion=occasion, request=REQUEST)
        c = torch.full((3, 6), 1 / 6, dtype=torch.float64)
        round.sum(c, clients, FixedPoint.choose(SIZES, c, torch.ones(3), 1e-3))
        return exchange


def answers_of(exchange: FaultyExchange, stage: str, field: str) -> np.ndarray:
    found = [np.asarray(reply[field]) for asked, _, reply in exchange.received if asked == stage]
    return np.stack(found)


def test_the_sketch_depends_on_a_secret_of_every_client_that_the_server_never_sees(monkeypatch):
    """All that the server relays in the open is alike, and still it gets another sketch."""
    drawn = Drawn(monkeypatch)
    first = answers_of(drawn.round(), "sketch", "sketch")
    assert np.array_equal(first, answers_of(drawn.round(), "sketch", "sketch"))  # the control
    for place in CLIENTS:
        exchange = drawn.round(changed=place)
        assert not np.allclose(first, answers_of(exchange, "sketch", "sketch"), atol=0.1)


def test_no_secret_that_a_client_draws_can_be_read_in_what_the_server_receives(monkeypatch):
    drawn = Drawn(monkeypatch)
    exchange = drawn.round()
    received = [
        (stage, name, np.asarray(array).tobytes())
        for stage, _, reply in exchange.received
        for name, array in reply.items()
    ]
    kept = [d[at : at + 16] for d in drawn.drawn for at in range(0, len(d), 16) if len(d) > 16]
    assert len(kept) == len(CLIENTS) * (2 + 1 + 2 * OPTIONS.sums)
    for stage, name, content in received:
        assert not any(part in content for part in kept), (stage, name)
    lengths = sum(len(content) for stage, name, content in received if name == "sealed")
    assert lengths > len(CLIENTS) * (len(CLIENTS) - 1) * 32


def test_what_clients_seal_looks_uniform():
    _, exchange = secure_round(updates(), OPTIONS)
    sealed = answers_of(exchange, "shares", "sealed")
    assert uniform_pvalue(sealed.reshape(-1)) > 1e-5


def test_the_secret_of_two_clients_is_that_of_x25519():
    """It must not follow from the public keys, which the server has."""
    mine, other = b"a" * 16, public_key(b"b" * 16)
    shared = private_key(mine).exchange(X25519PublicKey.from_public_bytes(other))
    assert agree(mine, other, b"psk") == derive(shared + b"psk", "agreement")


@pytest.mark.parametrize("removed", ["self_mask", "pair_mask"])
def test_each_kind_of_mask_depends_on_everything_that_the_server_has_said(removed, monkeypatch):
    """With the other kind taken away, a server that says something else sees another vector."""
    drawn = Drawn(monkeypatch)
    monkeypatch.setattr(client_side, removed, lambda secret, heard: bytes(32))
    monkeypatch.setattr(server_side, removed, lambda secret, heard: bytes(32))
    first = answers_of(drawn.round(), "sum", "masked")
    assert np.array_equal(first, answers_of(drawn.round(), "sum", "masked"))  # the control
    other = answers_of(drawn.round(occasion=b"2"), "sum", "masked")
    for one, two in zip(first, other, strict=True):
        assert (one == two).mean() < 0.1


def _guess(seen: torch.Tensor, seed: bytes) -> torch.Tensor:
    """P^+ s for the P of a seed."""
    identity = torch.eye(SIZES[0])
    projection = sketch(identity, [SIZES[0]], seed, count=8, fold=10**6)[0].T
    return torch.linalg.pinv(projection) @ seen


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))
