"""The server's side of a secure round: relays, sums under masks, and recovers from drop-outs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.errors import FedcraftError
from fedcraft.secure.agreement import Message, Transcript, name_of, needed_shares, neighbours
from fedcraft.secure.answers import by_client, counts, numbers, octets
from fedcraft.secure.client import pair_mask, self_mask
from fedcraft.secure.fixed_point import FixedPoint, Words
from fedcraft.secure.options import Secure, Stage
from fedcraft.secure.primitives import (
    KEY,
    SHARE,
    agree,
    as_array,
    is_usable,
    public_key,
    recover,
)
from fedcraft.secure.sketch import gram_from, sketch_sizes
from fedcraft.updates import ClientId

Private = Mapping[ClientId, Message]
Fair = Callable[[Collection[int]], bool]
"""Whether a sum over some clients shows no client more than the others agreed to."""


class Exchange(Protocol):
    """The way to the clients: asks some of them, and passes on the answers that come.

    ``said`` goes to all, ``private`` to one each. A client that does not answer, or that refuses,
    is missing from the result.
    """

    def ask(
        self, stage: Stage, said: Message, private: Private
    ) -> Iterable[tuple[ClientId, Message]]:
        """Return clients and their answers one by one: together they may not fit into memory."""
        ...


class RoundFailed(FedcraftError, RuntimeError):
    """Too many clients were lost to finish a secure round; it must be repeated with new keys."""


class SumGivenUp(FedcraftError, RuntimeError):
    """Clients were lost in a sum, and over the others it would show too much of one."""

    def __init__(self, arrived: Collection[int]) -> None:
        super().__init__("a sum was given up: without the lost clients it is mostly one update")
        self.arrived = frozenset(arrived)


class SecretRound(Protocol):
    """What a cohort needs of a round: sketches and lengths, products, and masked sums.

    Clients are numbered 0..m-1 in the order of ``clients``.
    """

    clients: list[ClientId]
    sizes: tuple[int, ...]
    norms: Tensor  # (Q, m) float64: ||x_i^q||
    cosines: Tensor  # (Q, m, m) float64: the estimate of U U^T

    def dots(self, vector: Tensor, rows: Sequence[int]) -> dict[int, Tensor]:
        """<u_i^q, v^q> for those of ``rows`` that answer, (Q,) float64 each."""
        ...

    def sum(
        self,
        coefficients: Tensor,
        rows: Sequence[int],
        point: FixedPoint,
        fair: Fair | None = None,
    ) -> tuple[Tensor, list[int]]:
        """Return sum_i c[q, i] u_i^q over those of ``rows`` whose vectors arrive, and those.

        Raises ``SumGivenUp`` if the sum over those is not ``fair``.
        """
        ...


class MaskedRound:
    """A round by the protocol; the constructor runs it up to the sketches.

    ``occasion`` names the round in its run, ``request`` is a hash of what clients train with. An
    answer that is not what the stage asks for counts as none.
    """

    def __init__(
        self,
        exchange: Exchange,
        clients: Sequence[ClientId],
        sizes: Sequence[int],
        options: Secure,
        *,
        occasion: bytes,
        request: bytes,
    ) -> None:
        self.sizes, self._options, self._exchange = tuple(sizes), options, exchange
        self._heard, self._done = Transcript(), 0
        keys = self._keys(clients, occasion)
        self._roster = list(keys)
        self._public = np.stack(list(keys.values()))
        self._sketch(self._shares(), request)

    def dots(self, vector: Tensor, rows: Sequence[int]) -> dict[int, Tensor]:
        """See ``SecretRound``."""
        said = {"vector": vector.to("cpu", torch.float32).numpy()}
        at = {place: row for row, place in enumerate(self._members)}
        most = self._largest_products(vector)
        found = {}
        for place, reply in self._ask("dots", said, [self._members[row] for row in rows]):
            dots = numbers(reply, "dots", most.shape)
            if dots is not None and (np.abs(dots) <= most).all():
                found[at[place]] = torch.from_numpy(dots)
        return found

    def _largest_products(self, vector: Tensor) -> NDArray[np.float64]:
        """The lengths of a vector by layer, with room for rounding: those of updates are one."""
        parts = torch.split_with_sizes(vector.to("cpu", torch.float64), list(self.sizes))
        return np.array([float(torch.linalg.vector_norm(part)) for part in parts]) * (1 + 1e-5)

    def sum(
        self,
        coefficients: Tensor,
        rows: Sequence[int],
        point: FixedPoint,
        fair: Fair | None = None,
    ) -> tuple[Tensor, list[int]]:
        """See ``SecretRound``."""
        members = sorted(self._members[row] for row in rows)
        index, at = self._done, {place: row for row, place in enumerate(self._members)}
        columns = [at[place] for place in members]
        said = {
            "index": np.array(index),
            "members": np.array(members),
            "coefficients": coefficients[:, columns].numpy(),
            "steps": np.array(point.steps),
            "width": np.array(point.width),
            "said": as_array(self._heard.value),
        }
        self._done += 1
        total, survivors = np.zeros(point.count, np.uint32), []
        for place, reply in self._ask("sum", said, members):
            masked = octets(reply, "masked", (point.count * point.width,))
            if masked is not None:
                total += point.unpack(masked)
                survivors.append(place)
        survivors.sort()
        _require(len(survivors), 2, "sum")
        masks, arrived = Transcript(self._heard.value), [at[place] for place in survivors]
        if fair is not None and not fair(arrived):
            self._shares_from(index, survivors, [])  # clients do not count what was given up
            raise SumGivenUp(arrived)
        self._unmask(point, total, index, members, survivors, masks)
        return point.decode(total), arrived

    def _keys(
        self, clients: Sequence[ClientId], occasion: bytes
    ) -> dict[ClientId, NDArray[np.uint8]]:
        options = self._options
        said = {
            "occasion": as_array(occasion),
            "nonce": as_array(secrets.token_bytes(16)),
            "sums": np.array(options.sums),
            "sketch": np.array(options.sketch),
            "fold": np.array(options.fold),
            "bound": np.array(options.bound if options.sums_only else 0.0),
        }
        self._heard.add("keys", said)
        replies = dict(self._exchange.ask("keys", said, {client: {} for client in clients}))
        shape = (1 + 2 * options.sums, 32)
        keys = {}
        for client in clients:
            public = octets(replies.get(client, {}), "public", shape)
            if public is not None and all(is_usable(key.tobytes()) for key in public):
                keys[client] = public
        _require(len(keys), 2, "keys")
        return keys

    def _shares(self) -> dict[int, list[bytes]]:
        """Collect what every client has sealed for every other."""
        said: Message = {
            "public": self._public,
            "names": np.array([name_of(client) for client in self._roster], np.uint64),
            "neighbours": np.array(self._options.neighbours),
            "threshold": np.array(self._options.threshold),
        }
        places = range(len(self._roster))
        private = {place: {"me": np.array(place)} for place in places}
        found = {}
        for place, reply in self._ask("shares", said, places, private):
            lengths = counts(reply, "lengths", (len(places),))
            sealed = None if lengths is None else octets(reply, "sealed", (sum(lengths),))
            if lengths is not None and sealed is not None:
                content, ends = sealed.tobytes(), np.cumsum(lengths)
                found[place] = [content[e - n : e] for e, n in zip(ends, lengths, strict=True)]
        _require(len(found), 2, "shares")
        return found

    def _sketch(self, sealed: dict[int, list[bytes]], request: bytes) -> None:
        members = sorted(sealed)
        private: dict[int, Message] = {}
        for place in members:
            parts = [sealed[sender][place] for sender in members]
            sizes = np.array([len(part) for part in parts])
            private[place] = {"sealed": as_array(b"".join(parts)), "lengths": sizes}
        said = {
            "members": np.array(members),
            "request": as_array(request),
            "sizes": np.array(self.sizes),
        }
        widths = list(sketch_sizes(self.sizes, self._options.sketch))
        rows, norms = {}, {}
        for place, reply in self._ask("sketch", said, members, private):
            row, lengths = numbers(reply, "sketch", (sum(widths),)), self._norms(reply)
            if row is not None and lengths is not None:
                rows[place], norms[place] = row.astype(np.float32), lengths
        _require(len(rows), 2, "sketch")
        self._members = sorted(rows)
        self.clients = [self._roster[place] for place in self._members]
        table = torch.from_numpy(np.stack([rows[place] for place in self._members]))
        self.cosines = gram_from(torch.split_with_sizes(table, widths, dim=1))
        columns = [norms[place] for place in self._members]
        self.norms = torch.from_numpy(np.stack(columns, axis=1))

    def _norms(self, reply: Message) -> NDArray[np.float64] | None:
        """Return a client's lengths by layer if they can be those of an update.

        With sums only they are the bound: a client may not choose its weight in the sum.
        """
        norms = numbers(reply, "norms", (len(self.sizes),))
        if norms is None or (norms < 0).any():
            return None
        alike = not self._options.sums_only or (norms == self._options.bound).all()
        return norms if alike else None

    def _ask(
        self,
        stage: Stage,
        said: Message,
        places: Iterable[int],
        private: Mapping[int, Message] | None = None,
    ) -> Iterator[tuple[int, Message]]:
        """Ask clients by their place on the roster."""
        self._heard.add(stage, said)
        asked = {self._roster[place]: place for place in places}
        mine = {client: (private or {}).get(place, {}) for client, place in asked.items()}
        replies = self._exchange.ask(stage, said, mine)
        return ((asked[client], reply) for client, reply in replies if client in asked)

    def _unmask(
        self,
        point: FixedPoint,
        total: Words,
        index: int,
        members: list[int],
        survivors: list[int],
        masks: Transcript,
    ) -> None:
        """Take the survivors' own masks out, and those that they share with lost clients."""
        shares = self._shares_from(index, survivors, survivors)
        for place in members:
            near = neighbours(self._public, place, self._options.neighbours)
            affected = [j for j in near if j in survivors]
            if place not in survivors and not affected:
                continue
            least = needed_shares(len(near) + 1, self._options.threshold)
            found = shares.get(place, [])
            _require(len(found), least, "unmask")
            kind = index + (self._options.sums if place in survivors else 0)
            secret = self._recovered(place, kind, found[:least])
            if place in survivors:
                point.add_mask(total, self_mask(secret, masks), -1)
                continue
            for j in affected:
                shared = agree(secret, self._public[j, 1 + index].tobytes())
                # The survivor j added this mask if j < place and subtracted it otherwise.
                point.add_mask(total, pair_mask(shared, masks), -1 if j < place else 1)

    def _shares_from(
        self, index: int, asked: list[int], survivors: list[int]
    ) -> dict[int, list[bytes]]:
        """Let clients confirm the survivors to each other; return shares by whom they are about."""
        said = {"index": np.array(index), "said": as_array(self._heard.value)}
        said["survivors"] = np.array(survivors, np.int64)
        proofs: dict[int, dict[int, bytes]] = {}
        for sender, reply in self._ask("confirm", said, asked):
            proofs[sender] = by_client(reply, "proofs", KEY)
        private: dict[int, Message] = {}
        for place in proofs:
            given = {j: found[place] for j, found in proofs.items() if place in found}
            content = as_array(b"".join(given.values())).reshape(-1, KEY)
            private[place] = {"about": np.array(list(given), np.int64), "proofs": content}
        said = {"index": np.array(index), "said": as_array(self._heard.value)}
        shares: dict[int, list[bytes]] = {}
        for _, reply in self._ask("unmask", said, list(proofs), private):
            for about, share in by_client(reply, "shares", SHARE).items():
                shares.setdefault(about, []).append(share)
        return shares

    def _recovered(self, place: int, kind: int, shares: list[bytes]) -> bytes:
        """Return a client's secret; wrong shares must not spoil the sum."""
        try:
            secret = recover(shares)
        except ValueError:  # two shares of one number
            secret = b""
        if public_key(secret) != self._public[place, 1 + kind].tobytes():
            raise RoundFailed(
                f"stage unmask: shares of a secret of client {self._roster[place]} do not fit its "
                "public key; the round must be repeated with new keys"
            )
        return secret


def _require(found: int, needed: int, stage: Stage) -> None:
    if found < needed:
        raise RoundFailed(
            f"stage {stage}: {found} good answers, and {needed} are needed; the round must be "
            "repeated with new keys"
        )
