"""What the server receives shows no update. Every test has a control that it catches."""

from __future__ import annotations

import numpy as np
import torch
from parties import CLIENTS, SIZES, secret, secure_round, units, updates
from scipy import stats

from fedcraft.aggregators import aggregator
from fedcraft.secure import Secure
from fedcraft.secure.cohort import aggregate_secretly
from fedcraft.secure.fixed_point import FixedPoint
from fedcraft.secure.primitives import derive
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


def _guess(seen: torch.Tensor, seed: bytes) -> torch.Tensor:
    """P^+ s for the P of a seed."""
    identity = torch.eye(SIZES[0])
    projection = sketch(identity, [SIZES[0]], seed, count=8, fold=10**6)[0].T
    return torch.linalg.pinv(projection) @ seen


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))
