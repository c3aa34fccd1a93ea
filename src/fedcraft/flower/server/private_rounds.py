"""Differential privacy of a federation: what replies must state, and an account that is kept."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from torch import Tensor

from fedcraft.engine.private import PrivateRounds
from fedcraft.errors import InputError
from fedcraft.flower.messages import keys
from fedcraft.flower.server.clients import KnownClients
from fedcraft.flower.server.replies import within
from fedcraft.methods import Method
from fedcraft.privacy.mechanism import client_noise, clipped
from fedcraft.privacy.options import has_bounded_sensitivity
from fedcraft.server_optimizers.sgd import Sgd

_ANYONE = "a client that named no number"  # in the account: it may be any of them
_ROUNDING = 1e-9


class FederatedPrivacy(PrivateRounds):
    """Rounds whose noise nobody can predict.

    Every client that is asked counts, before it is asked and whether it answers or not. There is no
    amplification by sampling: clients know the seed of the draw, and who is online is not random.
    """

    def ask(self, nodes: Sequence[int], clients: KnownClients) -> None:
        """Enter a round into the account before its messages are sent, or refuse to start it."""
        asked = [clients.client(node) for node in nodes]
        known = self.accountant
        # The number from before a restart may be another one now.
        unnamed = any(clients.client(node) == node or not clients.knows(node) for node in nodes)
        if _ANYONE in known.counts or unnamed:
            known.counts.setdefault(_ANYONE, known.rounds)
            asked.append(_ANYONE)
        self.require_budget(asked)
        known.add(asked)

    def count(self, clients: object) -> None:
        """Nothing: :meth:`ask` has counted the round."""

    def check_reply(self, metrics: Mapping[str, Any]) -> None:
        """Raise an error if a reply does not state the clipping and noise of the account."""
        expected = client_noise(self.privacy, self.least)
        if expected:
            within(dict(metrics), keys.CLIP, 0, self.privacy.clip * (1 + _ROUNDING))
            within(dict(metrics), keys.NOISE, expected * (1 - _ROUNDING), float("inf"))

    def leaving(self, updates: Tensor, clients: Sequence[int], index: int) -> Tensor:
        """Clients have added their noise; in the mode ``central`` the server clips."""
        return clipped(updates, self.privacy.clip) if self.privacy.mode == "central" else updates


def refuse_void_privacy(method: Method, weight_key: str | None) -> None:
    """Raise ``InputError`` if one of Flower's differential-privacy strategies calls us in vain.

    They clip updates and add noise to the new model that would hide one client in a mean with equal
    weights. Where one client can move the model further, that noise does not make it private.
    """
    wrapper = _calling_wrapper()
    if wrapper is None:
        return
    _, rule, optimizer = method.build()
    if not has_bounded_sensitivity(rule):
        raise InputError(
            f"strategy: {wrapper} adds noise that hides one client in a mean, but one client can "
            f"move the step of {method.title} much further: this gives no privacy. Use fedavg "
            'inside it, or set privacy=Privacy(mode="local", ...) here and on the clients, without '
            "a wrapper"
        )
    if weight_key is not None and getattr(rule, "weighting", "data") != "uniform":
        raise InputError(
            f"weighted_by_key: expected None inside {wrapper}, found {weight_key!r}: its noise "
            "hides one client among equals, but a client that claims many examples moves the mean "
            "much further. Give the strategy weighted_by_key=None"
        )
    if type(optimizer) is not Sgd or optimizer.lr > 1:
        raise InputError(
            f"server: expected sgd with server_lr of at most 1 inside {wrapper}, whose noise is "
            f"for a mean and comes after the step, found {type(optimizer).__name__.lower()} with "
            f'{optimizer.lr:g}. Give the strategy server="sgd" and server_lr=1.0'
        )


def _calling_wrapper() -> str | None:
    """Return the class of the differential-privacy strategy that runs the rounds, if one does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = type(frame.f_locals.get("self"))
        if any(base.__name__.startswith("DifferentialPrivacy") for base in owner.__mro__):
            return owner.__name__
        frame = frame.f_back
    return None
