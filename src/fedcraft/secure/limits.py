"""What a client agrees to in a secure round, whatever the server's options are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedcraft.errors import require
from fedcraft.secure.agreement import Message, RefusedError, largest_share
from fedcraft.secure.fixed_point import WIDTHS, FixedPoint, coarsest_steps
from fedcraft.secure.options import is_number

_LEAST_NEIGHBOURS = 2
_LEAST_THRESHOLD = 0.5
_LARGEST = 1e100  # sums of squares are finite
_SLACK = 1 + 1e-9  # for the rounding of what server and client compute alike


@dataclass(frozen=True)
class Limits:
    """A client refuses requests beyond these.

    ``equal_sums``: only rounds of one sum, in which all clients count alike, and no sketch. The
    noise of the mode ``distributed`` of differential privacy hides an update in nothing else.
    """

    most_share: float = 0.75
    most_sums: int = 3
    least_clients: int = 3
    equal_sums: bool = False

    def __post_init__(self) -> None:
        share, alone = self.most_share, self.equal_sums
        fine = is_number(share) and 0 < share <= 1
        require(fine, "Limits.most_share", "a number above 0 and at most 1", share)
        for name, least in (("most_sums", 1), ("least_clients", 2)):
            value = getattr(self, name)
            fine = type(value) is int and value >= least
            require(fine, f"Limits.{name}", f"a whole number >= {least}", value)
        require(isinstance(alone, bool), "Limits.equal_sums", "True or False", alone)

    @property
    def most_products(self) -> int:
        """How many products with vectors a round may ask for."""
        return 2 * self.most_sums + 2

    def check_settings(self, said: Message) -> None:
        """Refuse a round that may reveal more than was agreed."""
        sums, alone = int(said["sums"]), float(said["bound"]) != 0
        if not 1 <= sums <= self.most_sums:
            raise RefusedError(f"sums: agreed to at most {self.most_sums}, asked for {sums}")
        if alone and (sums > 1 or int(said["sketch"])):
            raise RefusedError("bound: a round of sums only has one sum and no sketch")
        if self.equal_sums and not alone:
            raise RefusedError("bound: this client takes part in rounds of sums only")

    def check_roster(self, said: Message, me: int, own_keys: Any) -> None:
        """Refuse a round whose shares or whose names of clients would protect nobody."""
        public = said["public"]
        if len(public) < self.least_clients:
            raise RefusedError(
                f"clients: expected {self.least_clients} or more, found {len(public)}"
            )
        if not 0 <= me < len(public) or not np.array_equal(public[me], own_keys):
            raise RefusedError("public: the server gave this client's keys away as another's")
        if len(np.unique(said["names"])) != len(public):
            raise RefusedError("names: two clients have the same one")
        if int(said["neighbours"]) < _LEAST_NEIGHBOURS:
            raise RefusedError(f"neighbours: expected {_LEAST_NEIGHBOURS} or more")
        # Every client gives away one of another's two secrets. Below one half the server could get
        # both, by telling some clients that the vector has arrived and others that it has not.
        if not _LEAST_THRESHOLD <= float(said["threshold"]) <= 1:
            raise RefusedError("threshold: expected at least one half of the neighbours")

    def members(self, said: Message, me: int, roster: int) -> list[int]:
        """Return the members of a sketch or a sum: this client and enough others, each once.

        A client that is listed twice would hide another's missing part of the seed or of the sum.
        """
        members = [int(j) for j in said["members"]]
        fine = len(set(members)) == len(members) and all(0 <= j < roster for j in members)
        if not fine or me not in members or len(members) < self.least_clients:
            raise RefusedError(
                f"members: expected {self.least_clients} or more different clients with this one, "
                f"found {members}"
            )
        return members

    def check_coefficients(self, coefficients: Any) -> None:
        """Refuse numbers too large to check, and all but means if only those were agreed to."""
        if not (np.abs(coefficients) < _LARGEST).all():
            raise RefusedError(f"coefficients: expected numbers below {_LARGEST:g}")
        if self.equal_sums and len(np.unique(coefficients)) != 1:
            raise RefusedError("coefficients: expected the same for all clients and layers")

    def check_share(self, sums: Any) -> None:
        """Refuse if some combination of sums (T, Q, m) would consist mostly of one client."""
        share = max(largest_share(sums[:, layer]) for layer in range(sums.shape[1]))
        if not share <= self.most_share:
            raise RefusedError(
                f"coefficients: one client makes up {share:.2f} of what the server could compute "
                f"from the sums of this round; agreed to {self.most_share:g}"
            )


def agreed_format(said: Message, sizes: Sequence[int], coefficients: Any) -> FixedPoint:
    """Return the numbers' format: no sum overflows in it, and no client is rounded away."""
    width, steps = int(said["width"]), [float(step) for step in said["steps"]]
    largest = np.abs(coefficients).sum(axis=1)
    room = [step * (2 ** (8 * width - 1) - coefficients.shape[1]) for step in steps]
    fits = all(t <= r * _SLACK for t, r in zip(largest, room, strict=True))
    if width not in WIDTHS or not fits:
        raise RefusedError("steps: the sum could overflow in this fixed-point format")
    coarsest = coarsest_steps(sizes, torch.from_numpy(coefficients)).tolist()
    if not all(step <= most * _SLACK for step, most in zip(steps, coarsest, strict=True)):
        raise RefusedError("steps: coarser than what a client adds to a coordinate")
    return FixedPoint(tuple(sizes), tuple(steps), width)


def check_layers(sizes: Sequence[int], tensors: Sequence[int]) -> None:
    """Refuse layers that cut a tensor: the lengths of pieces of an update would show it."""
    ends = set(np.cumsum(tensors).tolist())
    if min(sizes) < 1 or not set(np.cumsum(sizes).tolist()) <= ends:
        raise RefusedError(f"sizes: expected layers of whole tensors, found {list(sizes)}")
