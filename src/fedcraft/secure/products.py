"""What the server knows of a round's updates, and how each masked sum makes it more exact.

Let K be the cosines between the clients of one layer and H its estimate from sketches. A sum with
coefficients s is a vector v = U^T s that the server sees, and the clients report U v = K s exactly.
With the known columns S and Y = K S the estimate becomes (block BFGS)

    H' = H - H S (S^T H S)^+ S^T H + Y (S^T Y)^+ Y^T,

which is positive semidefinite and satisfies H' S = K S. Its diagonal is no longer exactly one. A
rule that runs on H' asks for a combination of the known sums and of one more, smaller vector.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcraft.errors import FedcraftError, InputError
from fedcraft.linalg import apply
from fedcraft.secure.agreement import largest_share
from fedcraft.secure.fixed_point import FixedPoint
from fedcraft.secure.options import Secure
from fedcraft.secure.primitives import digest
from fedcraft.secure.server import RoundFailed, SecretRound, SumGivenUp
from fedcraft.updates import ClientId

_LEAST_CLIENTS = 2
_HALVINGS = 40
_NEGLIGIBLE = 1e-5  # of a layer's length: not worth one more sum
_STRETCH = 2.0  # the longest multiple of what comes closest: a poor direction must not count more


class ClientsLost(FedcraftError, RuntimeError):
    """Clients were lost before a sum holds their updates: the rule must run without them."""

    def __init__(self, rows: Collection[int]) -> None:
        super().__init__(f"{len(rows)} client(s) were lost in the middle of a secure round")
        self.rows = frozenset(rows)


@dataclass(frozen=True)
class KnownSum:
    """A vector that the server has seen, and what is known about it."""

    coefficients: Tensor  # (Q, m): s, on unit updates
    vector: Tensor  # (d,): v = U^T s
    dots: Tensor  # (Q, m): K s, estimated for clients that were lost afterwards


class SecretProducts:
    """The products of one round. ``spread`` names layers whose coefficients had to be spread."""

    def __init__(self, round: SecretRound, options: Secure) -> None:
        self._round, self._options = round, options
        self.norms = round.norms
        self.known: list[KnownSum] = []
        self.spent = 0
        self.spread: set[int] = set()
        self.lost: set[int] = set()
        self._dots: dict[bytes, Tensor] = {}

    @property
    def left(self) -> int:
        """How many sums may still be asked for."""
        return self._options.sums - self.spent

    def cosines(self, rows: Sequence[int]) -> Tensor:
        """The present estimate of K for some clients, (Q, m, m)."""
        at = torch.tensor(rows)
        estimate = self._round.cosines[:, at][:, :, at].clone()
        if self._options.sums_only:
            return estimate
        for layer in range(len(estimate)):
            sums = [known for known in self.known if bool(known.coefficients[layer].any())]
            if sums:
                columns = torch.stack([known.coefficients[layer, at] for known in sums], dim=1)
                measured = torch.stack([known.dots[layer, at] for known in sums], dim=1)
                estimate[layer] = _updated(estimate[layer], columns, measured)
        return estimate

    def summed(self) -> set[ClientId]:
        """The clients whose updates are in some sum."""
        if not self.known:
            return set()
        counted = torch.stack([known.coefficients for known in self.known]).any(0).any(0)
        pairs = zip(self._round.clients, counted.tolist(), strict=True)
        return {client for client, inside in pairs if inside}

    @property
    def sums_only(self) -> bool:
        """Whether there is neither a Gram matrix nor a product."""
        return self._options.sums_only

    def dots(self, vector: Tensor, rows: Sequence[int]) -> Tensor:
        """<u_i^q, v^q>, (Q, m): the clients are asked once about a vector."""
        key = digest(vector.detach().cpu().contiguous().numpy().tobytes())
        if key not in self._dots:
            self._dots[key] = self._measured(vector, rows)
        found = self._dots[key][:, list(rows)]
        missing = torch.isnan(found).any(0)
        if bool(missing.any()):
            raise ClientsLost([row for row, gone in zip(rows, missing, strict=True) if gone])
        return found

    def combine(self, wanted: Tensor, rows: Sequence[int]) -> Tensor:
        """Return sum_i c[q, i] u_i^q for ``wanted`` = c (Q, m), with at most one more sum."""
        estimate = self.cosines(rows)
        lengths = _lengths(estimate, wanted)
        split = [self._parts(wanted[q], rows, q, estimate[q]) for q in range(len(wanted))]
        shares, rest = [factors for factors, _ in split], torch.stack([more for _, more in split])
        before = list(self.known)
        longest = torch.maximum(lengths, _lengths(estimate, rest))
        if bool(rest.any()) and not self._sum(rest, rows, longest):
            for q in range(len(wanted)):
                shares[q] = _closest(self._columns(q, rows), wanted[q], estimate[q])
        total = torch.zeros(sum(self._round.sizes))
        parts = torch.split_with_sizes(total, list(self._round.sizes))
        for layer, (part, share) in enumerate(zip(parts, shares, strict=True)):
            for known, factor in zip(before, share.tolist(), strict=True):
                part += factor * self._layer(known.vector, layer)
            if len(self.known) > len(before):
                part += self._layer(self.known[-1].vector, layer)
        return total

    def _layer(self, vector: Tensor, layer: int) -> Tensor:
        return torch.split_with_sizes(vector, list(self._round.sizes))[layer]

    def _parts(
        self, wanted: Tensor, rows: Sequence[int], layer: int, estimate: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return factors on the known sums, and the coefficients of one more for the rest.

        The rest is zero if it is negligible, if a new sum would reveal too much, or if clients were
        lost in the last sum that is allowed. Then the known sums alone come as close as they can.
        """
        columns = self._columns(layer, rows)
        factors: Tensor = torch.linalg.pinv(columns, rtol=1e-10) @ wanted
        rest = wanted - columns @ factors
        length = float(_lengths(estimate, wanted))
        if float(_lengths(estimate, rest)) <= _NEGLIGIBLE * length:
            return factors, torch.zeros_like(rest)
        if self.lost and self.left == 0:
            return _closest(columns, wanted, estimate), torch.zeros_like(rest)
        share = largest_share(torch.cat([columns, rest.unsqueeze(1)], 1).T.numpy())
        most = self._options.most_share * (1 - 1e-9)  # clients may round it differently
        if self._options.most_share == 1 or share <= most:
            return factors, rest
        if self._options.concentrated == "raise":
            raise InputError(
                f"secure.most_share: one client makes up {share:.2f} of layer {layer}, more than "
                f"{self._options.most_share:g}; raise it, lower secure.refinements, or set "
                "secure.concentrated = 'spread'"
            )
        if self.lost and most * len(rest) < 1:
            raise RoundFailed(f"stage sum: {len(rest)} clients are left, too few to hide one")
        self.spread.add(layer)
        if bool(columns.any()):
            return _closest(columns, wanted, estimate), torch.zeros_like(rest)
        return factors, spread_evenly(rest, most, estimate)

    def _columns(self, layer: int, rows: Sequence[int]) -> Tensor:
        """The coefficients of the known sums in a layer, one column each."""
        earlier = [known.coefficients[layer, list(rows)] for known in self.known]
        empty = torch.zeros(len(rows), 0, dtype=torch.float64)
        return torch.stack(earlier, 1) if earlier else empty

    def _fair(self, coefficients: Tensor, rows: Collection[int]) -> bool:
        """Whether clients will agree to one more sum over ``rows`` alone."""
        if self._options.most_share == 1:
            return True
        kept = torch.zeros_like(coefficients)
        kept[:, list(rows)] = coefficients[:, list(rows)]
        sums = torch.stack([*(known.coefficients for known in self.known), kept])
        share = max(largest_share(sums[:, layer].numpy()) for layer in range(sums.shape[1]))
        return share <= self._options.most_share * (1 - 1e-10)

    def _sum(self, rest: Tensor, rows: Sequence[int], lengths: Tensor) -> bool:
        """Ask for one more sum; False if too few are left to hide every client in it."""
        if self.left == 0:
            raise InputError(
                f"secure.refinements: the rule asks for more than {self._options.sums} sums of a "
                "round; raise secure.refinements"
            )
        asked = [row for row in rows if row not in self.lost]
        wide = torch.zeros(len(rest), len(self._round.clients), dtype=torch.float64)
        wide[:, list(rows)] = rest
        point = FixedPoint.choose(
            self._round.sizes, wide[:, asked], lengths, self._options.precision
        )
        first = not self.known
        if not first and not self._fair(wide, asked):
            return False
        self.spent += 1
        vector, arrived = self._summed(wide, asked, point)
        gone = set(asked) - set(arrived)
        self.lost |= gone
        if vector is not None:
            wide[:, [row for row in range(wide.shape[1]) if row not in arrived]] = 0
            self._learn(wide, vector)
        elif first and self.left == 0:
            raise RoundFailed(
                "stage sum: the clients that are left are too few to hide one, and no further sum "
                "is allowed; the round must be repeated"
            )
        if first and gone:
            raise ClientsLost(gone)
        return vector is not None

    def _summed(
        self, wide: Tensor, asked: list[int], point: FixedPoint
    ) -> tuple[Tensor | None, Collection[int]]:
        """Return the vector, None if it was given up, and whose vectors have arrived."""
        try:
            return self._round.sum(wide, asked, point, lambda rows: self._fair(wide, rows))
        except SumGivenUp as up:
            return None, up.arrived

    def _learn(self, coefficients: Tensor, vector: Tensor) -> None:
        everyone = range(coefficients.shape[1])
        if self._options.sums_only:
            nothing = torch.full_like(coefficients, torch.nan)
            self.known.append(KnownSum(coefficients, vector, nothing))
            return
        estimate = apply(self.cosines(everyone), coefficients)
        dots = self._measured(vector, [row for row in everyone if row not in self.lost])
        known = torch.where(torch.isnan(dots), estimate, dots)
        self.known.append(KnownSum(coefficients, vector, known))

    def _measured(self, vector: Tensor, rows: Sequence[int]) -> Tensor:
        """Ask clients for their products with a vector; NaN for those that do not answer."""
        asked = [row for row in rows if row not in self.lost]
        found = self._round.dots(vector, asked)
        if len(found) < _LEAST_CLIENTS:
            raise RoundFailed(f"stage dots: {len(found)} answers; the round must be repeated")
        self.lost |= set(asked) - set(found)
        layers, clients = len(self._round.sizes), len(self._round.clients)
        dots = torch.full((layers, clients), torch.nan, dtype=torch.float64)
        for row, values in found.items():
            dots[:, row] = values
        return dots


def _updated(estimate: Tensor, columns: Tensor, measured: Tensor) -> Tensor:
    """Return H' with H' S = Y, as the module's text says; H where Y is not consistent."""
    curvature = columns.T @ measured
    curvature = (curvature + curvature.T) / 2
    values = torch.linalg.eigvalsh(curvature)
    if float(values[-1]) <= 0 or float(values[0]) < -1e-6 * float(values[-1]):
        return estimate
    images = estimate @ columns
    inner = torch.linalg.pinv(columns.T @ images, hermitian=True, rtol=1e-12)
    outer = torch.linalg.pinv(curvature, hermitian=True, rtol=1e-12)
    found: Tensor = estimate - images @ inner @ images.T + measured @ outer @ measured.T
    return (found + found.T) / 2


def _lengths(estimate: Tensor, coefficients: Tensor) -> Tensor:
    """||U^T c|| by layer, from the estimate."""
    square = torch.einsum("...i,...ij,...j->...", coefficients, estimate, coefficients)
    return square.clamp(min=0).sqrt()


def _closest(columns: Tensor, wanted: Tensor, estimate: Tensor) -> Tensor:
    """Factors f on known sums S so that U^T S f is closest to U^T c, and as long along it as that.

    The products of known sums are exact, and so is the progress of a single client that falls short
    of its target: f makes it what the rule asks for.
    """
    images = estimate @ columns
    factors: Tensor = torch.linalg.pinv(columns.T @ images, hermitian=True) @ (images.T @ wanted)
    progress, asked = float(wanted @ images @ factors), float(wanted @ estimate @ wanted)
    return factors * (min(asked / progress, _STRETCH) if progress > 0 else 1.0)


def spread_evenly(coefficients: Tensor, most: float, estimate: Tensor) -> Tensor:
    """Add the least multiple of equal coefficients that lets no client exceed its share.

    The sum c + t 1 is then shortened, as far as its product with U^T c stays that of U^T c itself:
    what all clients add in the direction of the rule's answer need not come from the one client.
    For CRAFT this keeps the mean progress of the clients that the answer corrects.
    """
    equal = torch.ones_like(coefficients) * coefficients.abs().max()
    low, high = 0.0, 1.0
    while largest_share((coefficients + high * equal).numpy()) > most:
        high *= 2
        if high > 1e9:
            raise InputError(
                f"secure.most_share: {len(coefficients)} clients cannot have shares of at most "
                f"{most:.2g}; raise it or ask more clients"
            )
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fine = largest_share((coefficients + middle * equal).numpy()) <= most
        low, high = (low, middle) if fine else (middle, high)
    found = coefficients + high * equal
    along = estimate @ coefficients
    wanted, progress = float(coefficients @ along), float(found @ along)
    return found * (wanted / progress if progress > wanted else 1.0)
