"""The client's side of a secure round: answers the server, and refuses what reveals too much."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcraft.errors import InputError
from fedcraft.secure.agreement import (
    Message,
    RefusedError,
    Transcript,
    in_one_piece,
    needed_shares,
    neighbours,
)
from fedcraft.secure.answers import by_client
from fedcraft.secure.limits import Limits, agreed_format, check_layers
from fedcraft.secure.primitives import (
    KEY,
    SECRET,
    SHARE,
    Bytes,
    InvalidTag,
    agree,
    as_array,
    derive,
    public_key,
    seal,
    split,
    unseal,
)
from fedcraft.secure.sketch import sketch


class SecureClient:
    """One client in one round after another.

    Everything it must remember between two requests is in ``memory``, a dictionary of arrays, so
    that it can be stored between messages. ``psk`` is a key that all clients and not the server
    have: with it not even a server that replaces public keys can read what clients seal.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        psk: bytes = b"",
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self.limits, self._psk = limits or Limits(), psk
        self.memory: dict[str, Any] = dict(memory or {})

    def keys(self, said: Message) -> Message:
        """Start a round: return fresh public keys, one to seal and two for each sum.

        The first of a sum is for masks with others. The second belongs to the secret of the own
        mask: it shows the server whether shares have recovered that secret.
        """
        self.limits.check_settings(said)
        sums, spent = int(said["sums"]), self._spent(said["occasion"])
        seeds = np.frombuffer(secrets.token_bytes((1 + 2 * sums) * SECRET), np.uint8)
        self.memory = {
            "seeds": seeds.reshape(-1, SECRET),
            "contribution": as_array(secrets.token_bytes(32)),
            "settings": np.array([sums, int(said["sketch"]), int(said["fold"])]),
            "bound": np.array(float(said["bound"])),
            "occasion": said["occasion"],
            "products": np.array(0),
            "next_sum": np.array(0),
            **spent,
        }
        self._hear("keys", said)
        return {"public": self._public_keys()}

    def shares(self, said: Message, mine: Message) -> Message:
        """Return, sealed for each other client, a part of the sketch's seed and secret shares."""
        public, me = np.asarray(said["public"], dtype=np.uint8), int(mine["me"])
        self.limits.check_roster(said, me, self._public_keys())
        self._hear("shares", said)
        degree = int(said["neighbours"])
        near = neighbours(public, me, degree)
        holders = sorted([*near, me])
        least = needed_shares(len(holders), float(said["threshold"]))
        pieces = [split(self._seed(i), least, len(holders)) for i in range(1, 1 + 2 * self._sums)]
        own_part = self.memory["contribution"].tobytes()
        sealed = []
        for j in range(len(public)):
            part = own_part
            if j in near:
                part += b"".join(piece[holders.index(j)] for piece in pieces)
            channel = self._channel(public, j, f"{me}-{j}")
            sealed.append(b"" if j == me else seal(channel, part))
        held = np.zeros((len(public), 2 * self._sums, SHARE), np.uint8)
        held[me] = [as_array(piece[holders.index(me)]) for piece in pieces]
        self.memory |= {"public": public, "me": np.array(me), "held": held}
        self.memory |= {"least": np.array(least), "degree": np.array(degree)}
        self.memory |= {"near": np.array(near), "names": np.array(said["names"], np.uint64)}
        return {"sealed": as_array(b"".join(sealed)), "lengths": np.array(list(map(len, sealed)))}

    def sketch(
        self,
        said: Message,
        mine: Message,
        update: Tensor,
        request: bytes,
        tensors: Sequence[int] | None = None,
    ) -> Message:
        """Open what the others sealed; return the sketch of the unit update and its lengths.

        ``request`` is a hash of all that this client was given to train with, such as the model: a
        server that gives clients different ones gets no sum. ``tensors`` are the sizes of the
        model's tensors, which no layer may cut.
        """
        if not bool(torch.isfinite(update).all()):
            raise InputError("update: expected finite numbers, found NaN or Inf")
        sizes = [int(size) for size in said["sizes"]]
        if sum(sizes) != update.numel():
            raise RefusedError(f"sizes: expected {update.numel()} in all, found {sum(sizes)}")
        check_layers(sizes, sizes if tensors is None else tensors)
        members = self._members(said)
        contributions = self._open(members, mine)
        self._hear("sketch", {**said, "request": as_array(request)})
        seed = derive(b"".join(contributions), "sketch seed", self.transcript.value)
        _, count, fold = (int(n) for n in self.memory["settings"])
        units, norms = scaled_rows(update.unsqueeze(0), sizes, float(self.memory["bound"]))
        self.memory |= {"units": units.squeeze(0).numpy(), "sizes": np.array(sizes)}
        found = sketch(units, sizes, seed, count=count, fold=fold)
        return {"sketch": torch.cat(found, 1).squeeze(0).numpy(), "norms": norms[:, 0].numpy()}

    def dots(self, said: Message) -> Message:
        """Return <u^q, v^q> for a vector v that all clients are asked about."""
        used = int(self.memory["products"])
        if float(self.memory["bound"]):
            raise RefusedError("products: this round was announced as one of sums only")
        if used >= self.limits.most_products:
            raise RefusedError(f"products: agreed to {used} a round, asked for one more")
        self._hear("dots", said)
        self.memory["products"] = np.array(used + 1)
        vector = torch.from_numpy(np.array(said["vector"], dtype=np.float32))
        pairs = zip(self._layers(self._units), self._layers(vector), strict=True)
        dots = [torch.dot(u.to(torch.float64), v.to(torch.float64)) for u, v in pairs]
        return {"dots": torch.stack(dots).numpy()}

    def sum(self, said: Message) -> Message:
        """Return c_i^q u_i^q in fixed point under masks that cancel in the sum of all clients."""
        index, me = int(said["index"]), int(self.memory["me"])
        self._check_transcript(said)
        if index != int(self.memory["next_sum"]) or index >= self._sums:
            raise RefusedError(f"index: sum {index} was not agreed, or has been answered already")
        if "members" in self.memory:
            raise RefusedError("index: the sum before this one was neither unmasked nor given up")
        members, sizes = self._members(said), self.memory["sizes"].tolist()
        coefficients = np.asarray(said["coefficients"], dtype=np.float64)
        if coefficients.shape != (len(sizes), len(members)):
            raise RefusedError(f"coefficients: found the shape {coefficients.shape}")
        self.limits.check_coefficients(coefficients)
        point = agreed_format(said, sizes, coefficients)
        self._check_crowd(members)
        self._check_shares(members, coefficients)
        self._hear("sum", said)
        self.memory |= {"next_sum": np.array(index + 1), "members": np.array(members)}
        mine = coefficients[:, members.index(me)]
        words = point.encode(self._units, mine.tolist())
        own = self._seed(1 + self._sums + index)
        point.add_mask(words, self_mask(own, self.transcript))
        for j in self._partners(members):
            point.add_mask(words, self._pair_mask(index, j), 1 if me < j else -1)
        return {"masked": point.pack(words)}

    def _partners(self, members: list[int]) -> list[int]:
        """The members with whom this client shares masks."""
        return [j for j in self.memory["near"].tolist() if j in members]

    def confirm(self, said: Message) -> Message:
        """Agree to the list of survivors, those whose vectors have arrived, once per sum.

        The list decides which vector the server can compute, so the shares are checked again on it.
        Returns a proof for each neighbour that this client has heard this list and no other. An
        empty list gives the sum up.
        """
        index, survivors = int(said["index"]), [int(j) for j in said["survivors"]]
        self._check_transcript(said)
        if self._state(index) != "answered":
            raise RefusedError(
                f"index: this client takes no part in sum {index}, or has confirmed its survivors"
            )
        if survivors:
            self._check_survivors(survivors)
        self._hear("confirm", said)
        self.memory["survivors"] = np.array(survivors, np.int64)
        near, me = self.memory["near"].tolist(), int(self.memory["me"])
        proofs = [as_array(self._proof(j, me, j)) for j in near]
        return {"about": np.array(near), "proofs": np.stack(proofs)}

    def unmask(self, said: Message, mine: Message) -> Message:
        """Return, for each neighbour in the last sum, a share of one of its two secrets.

        Of a client whose vector arrived: the secret of its own mask. Of one whose vector did not:
        the secret of its masks with others. Never both, because both would uncover its vector. And
        only if more than half of the holders of this client's secrets have confirmed the same list:
        a server that tells clients different lists could otherwise pick whose masks it removes.
        """
        index = int(said["index"])
        self._check_transcript(said)
        if self._state(index) != "confirmed":
            raise RefusedError(
                f"index: this client takes no part in sum {index}, or has unmasked it"
            )
        self._check_proofs(mine)
        members, survivors = self.memory["members"].tolist(), self.memory["survivors"].tolist()
        self._hear("unmask", said)
        del self.memory["members"], self.memory["survivors"]
        held = self.memory["held"]
        about = np.array([j for j in sorted(members) if held[j].any()], np.int64)
        if not survivors:  # given up: too few clients are left to unmask it
            self.memory["spent"], about = self.memory["spent"][:-1], about[:0]
        kinds = index + self._sums * np.isin(about, survivors)
        return {"about": about, "shares": held[about, kinds]}

    def answer(self, stage: str, said: Message, mine: Message) -> Message:
        """Answer any stage but the sketch, which needs the update."""
        private = {"shares": self.shares, "unmask": self.unmask}
        if stage in private:
            return private[stage](said, mine)
        answers = {"keys": self.keys, "dots": self.dots, "sum": self.sum, "confirm": self.confirm}
        if stage not in answers:
            raise RefusedError(f"stage: {stage!r} is not a stage of a secure round")
        return answers[stage](said)

    @property
    def transcript(self) -> Transcript:
        """The hash of what this client has heard this round."""
        return Transcript(self.memory["transcript"].tobytes())

    def _hear(self, stage: str, said: Message) -> None:
        heard = self.transcript if stage != "keys" else Transcript()
        heard.add(stage, said)
        self.memory["transcript"] = as_array(heard.value)

    def _members(self, said: Message) -> list[int]:
        return self.limits.members(said, int(self.memory["me"]), len(self.memory["public"]))

    def _check_transcript(self, said: Message) -> None:
        if np.asarray(said["said"], np.uint8).tobytes() != self.transcript.value:
            raise RefusedError("said: the server has said something else to the other clients")

    def _state(self, index: int) -> str:
        """How far this client is with a sum."""
        if index != int(self.memory["next_sum"]) - 1 or "members" not in self.memory:
            return "closed"
        return "confirmed" if "survivors" in self.memory else "answered"

    @property
    def _sums(self) -> int:
        return int(self.memory["settings"][0])

    def _seed(self, index: int) -> bytes:
        """The secret of key 0 (sealing), 1..T (masks with others), T+1..2T (own masks)."""
        return bytes(self.memory["seeds"][index].tobytes())

    def _public_keys(self) -> Bytes:
        seeds = range(len(self.memory["seeds"]))
        return np.stack([as_array(public_key(self._seed(index))) for index in seeds])

    @property
    def _units(self) -> Tensor:
        return torch.from_numpy(np.array(self.memory["units"], dtype=np.float32))

    def _layers(self, vector: Tensor) -> tuple[Tensor, ...]:
        sizes = [int(size) for size in self.memory["sizes"]]
        if vector.shape != (sum(sizes),):
            raise RefusedError(
                f"vector: expected {sum(sizes)} numbers, found {tuple(vector.shape)}"
            )
        return torch.split_with_sizes(vector, sizes)

    def _channel(self, public: Any, other: int, way: str) -> bytes:
        """The key of one direction between two clients, which must have heard the same keys."""
        shared = agree(self._seed(0), public[other, 0].tobytes(), self._psk)
        return derive(shared, f"channel {way}", self.transcript.value)

    def _open(self, members: list[int], mine: Message) -> list[bytes]:
        """Unseal what the members sent to this client; keep the shares, return the seed's parts."""
        public, me, held = self.memory["public"], int(self.memory["me"]), self.memory["held"].copy()
        sealed, lengths = np.asarray(mine["sealed"], np.uint8).tobytes(), list(mine["lengths"])
        parts, start = [], 0
        for j, length in zip(members, lengths, strict=True):
            content, start = sealed[start : start + int(length)], start + int(length)
            if j == me:
                parts.append(self.memory["contribution"].tobytes())
                continue
            try:
                found = unseal(self._channel(public, j, f"{j}-{me}"), content)
            except InvalidTag:
                raise RefusedError(
                    f"sealed: what client {j} has sealed cannot be opened: it was changed, or the "
                    "two clients were told different keys"
                ) from None
            parts.append(found[:32])
            if len(found) > 32:
                held[j] = np.frombuffer(found[32:], np.uint8).reshape(-1, SHARE)
        self.memory["held"] = held
        return parts

    def _pair_mask(self, index: int, other: int) -> bytes:
        public = self.memory["public"][other, 1 + index].tobytes()
        return pair_mask(agree(self._seed(1 + index), public), self.transcript)

    def _spent(self, occasion: Any) -> dict[str, Any]:
        """The sums that were answered earlier in the same round: a repeated round adds to them."""
        same = np.array_equal(self.memory.get("occasion", np.empty(0)), occasion)
        kept = ("spent", "spent_names", "spent_scale") if same and "spent" in self.memory else ()
        return {key: self.memory[key] for key in kept}

    def _check_shares(self, members: list[int], coefficients: Any) -> None:
        """Refuse if some combination of this round's sums would consist mostly of one client."""
        names = self.memory["names"][members]
        known = self.memory.get("spent_names", np.empty(0, np.uint64))
        all_names = np.union1d(known, names)
        earlier = self.memory.get("spent", np.empty((0, len(coefficients), 0)))
        scale = np.array([self.memory["bound"], *self.memory["sizes"]])
        if not np.array_equal(self.memory.get("spent_scale", scale), scale):
            raise RefusedError("sizes: the round is repeated with other layers or another bound")
        wide = np.zeros((len(earlier) + 1, len(coefficients), len(all_names)))
        wide[:-1][:, :, np.searchsorted(all_names, known)] = earlier
        wide[-1][:, np.searchsorted(all_names, names)] = coefficients
        self.limits.check_share(wide)
        self.memory |= {"spent": wide, "spent_names": all_names, "spent_scale": scale}

    def _check_survivors(self, survivors: list[int]) -> None:
        """Refuse survivors of whom the sum would show too much; count the sum with them alone."""
        members = set(self.memory["members"].tolist())
        known = len(set(survivors)) == len(survivors) and set(survivors) <= members
        mine = int(self.memory["me"]) in survivors
        if not known or not mine or len(survivors) < self.limits.least_clients:
            raise RefusedError(
                f"survivors: {len(survivors)}, too few, not of this sum, or without this client"
            )
        self._check_crowd(survivors)
        lost = self.memory["names"][sorted(members - set(survivors))]
        spent = self.memory["spent"].copy()
        spent[-1][:, np.isin(self.memory["spent_names"], lost)] = 0
        self.limits.check_share(spent)
        self.memory["spent"] = spent

    def _check_crowd(self, places: list[int]) -> None:
        """Refuse a sum in which this client would share masks with few others, or in two groups."""
        holders = {int(self.memory["me"]), *self.memory["near"].tolist()}
        enough = len(holders & set(places)) >= int(self.memory["least"])
        degree = int(self.memory["degree"])
        if not enough or not in_one_piece(self.memory["public"], set(places), degree):
            raise RefusedError("members: too few of this client's neighbours, or two groups")

    def _proof(self, other: int, sender: int, receiver: int) -> bytes:
        """What only two clients can compute, and only if they have heard the same."""
        return self._channel(self.memory["public"], other, f"proof {sender}-{receiver}")

    def _check_proofs(self, mine: Message) -> None:
        me, near = int(self.memory["me"]), self.memory["near"].tolist()
        given = by_client(mine, "proofs", KEY)
        agreed = [j for j in near if j in given and given[j] == self._proof(j, j, me)]
        if 1 + len(agreed) < int(self.memory["least"]):
            raise RefusedError(
                f"proofs: only {len(agreed)} neighbours have confirmed the same survivors; "
                f"expected {int(self.memory['least']) - 1} or more"
            )


def scaled_rows(updates: Tensor, sizes: Sequence[int], bound: float) -> tuple[Tensor, Tensor]:
    """Return rows whose coordinates are at most one, (m, d), and their scales (Q, m).

    The scales are the rows' lengths by layer. With a ``bound`` they are that, and show nothing.
    """
    layers = torch.split_with_sizes(updates.to(torch.float32), list(sizes), dim=1)
    if bound:
        norms = torch.full((len(sizes), len(updates)), bound, dtype=torch.float64)
    else:
        lengths = [torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in layers]
        norms = torch.stack(lengths)
    safe = torch.where(norms > 0, norms, 1).to(torch.float32)
    pairs = zip(layers, safe, strict=True)
    return torch.cat([x / n.unsqueeze(1) for x, n in pairs], dim=1), norms


def self_mask(seed: bytes, heard: Transcript) -> bytes:
    """The key of a client's own mask."""
    return derive(seed, "own mask", heard.value)


def pair_mask(shared: bytes, heard: Transcript) -> bytes:
    """The key of the mask that two clients share: one adds it, the other subtracts it."""
    return derive(shared, "pair mask", heard.value)
