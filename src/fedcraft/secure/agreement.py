"""What server and clients must agree on: the transcript, the ring of neighbours, fair shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcraft.errors import FedcraftError
from fedcraft.secure.primitives import digest
from fedcraft.updates import ClientId

Message = Mapping[str, NDArray[Any]]
"""What is sent: named arrays."""

Floats = NDArray[np.float64]
_RANK = 2.0**-32  # smaller combinations are lost in rounding, even with the widest numbers


class RefusedError(FedcraftError, RuntimeError):
    """A client refuses a request that would reveal too much, or that was not said to all alike."""


class Transcript:
    """A hash of everything that the server has said to all clients this round, in order.

    Masks are derived from it. If the server says different things to different clients, their masks
    do not cancel, and the sum is noise.
    """

    def __init__(self, value: bytes = bytes(32)) -> None:
        self.value = value

    def add(self, stage: str, said: Message) -> None:
        """Append a message to all clients."""
        fields = []
        for name in sorted(said):
            array = np.ascontiguousarray(said[name])
            shape = f"{array.dtype.str}{array.shape}".encode()
            fields += [name.encode(), shape, array.tobytes()]
        self.value = digest(self.value, stage.encode(), *fields)


def name_of(client: ClientId) -> int:
    """A number of 64 bits that stands for a client's id in messages."""
    return int.from_bytes(digest(repr(client).encode())[:8], "little")


def neighbours(public: NDArray[np.uint8], me: int, degree: int) -> list[int]:
    """Return the clients next to ``me`` on a ring whose order nobody can choose.

    The order is that of the hashes of all public keys. With few clients all are neighbours.
    """
    count = len(public)
    if count - 1 <= degree:
        return [j for j in range(count) if j != me]
    ring = _ring(public)
    place = ring.index(me)
    near = range(-(degree // 2), degree // 2 + 1)
    return sorted(ring[(place + step) % count] for step in near if step)


def in_one_piece(public: NDArray[np.uint8], places: Collection[int], degree: int) -> bool:
    """Tell whether clients share masks as one group, and not as two that are separate.

    Only the sum of a whole group is hidden. Groups are separate where the ring has gaps, wider than
    the reach of a client, in two places.
    """
    if len(public) - 1 <= degree:
        return True
    ring = _ring(public)
    at = [place for place, client in enumerate(ring) if client in places]
    steps = np.diff([*at, at[0] + len(ring)])
    return int((steps > degree // 2).sum()) <= 1


def _ring(public: NDArray[np.uint8]) -> list[int]:
    salt = digest(public.tobytes())
    return sorted(range(len(public)), key=lambda i: digest(salt, public[i].tobytes()))


def needed_shares(holders: int, threshold: float) -> int:
    """How many of ``holders`` shares recover a secret: always more than half.

    A client gives away only one of another's two secrets per sum. So the server, which must find
    more than half of the holders for each, never gets both. As many must also have confirmed the
    same list of survivors: two lists cannot both find more than half.
    """
    return min(int(threshold * holders) + 1, holders)


def largest_share(sums: Sequence[Floats] | Floats) -> float:
    """Return the largest v_i^2 / ||v||^2 over clients i and combinations v of the rows of ``sums``.

    That is the largest diagonal entry of the projector onto their span. At 1 somebody who knows all
    the sums can compute one client's update. It bounds the participation of a single row c from
    below: (sum |c|)^2 / sum c^2 >= 1 / share.
    """
    rows = np.atleast_2d(np.asarray(sums, dtype=np.float64))
    largest = np.abs(rows).max(axis=1, initial=0)
    rows = rows[largest > 0] / largest[largest > 0, None]  # squares of 1e200 or 1e-200 are lost
    if not len(rows):
        return 0.0
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    basis = right[values > _RANK * values[0]]
    return min(float(np.square(basis).sum(axis=0).max()), 1.0)
