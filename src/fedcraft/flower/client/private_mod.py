"""Differential privacy on the client: a Flower mod that clips an update and adds noise to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedcraft.errors import InputError
from fedcraft.flower.client.secure_mod import SecureAnswers, update_of
from fedcraft.flower.messages import keys
from fedcraft.privacy import Privacy
from fedcraft.privacy.mechanism import client_noise, privatised


class PrivateUpdates:
    """Lets only a noisy update leave, with a statement of its clipping and noise.

    Number of samples, number of steps and losses stay here: they carry no noise.
    """

    def __init__(self, privacy: Privacy, secure: SecureAnswers | None = None) -> None:
        if privacy.mode == "central":
            raise InputError(
                "privacy: central noise is added by the server; leave out privacy on the client"
            )
        if privacy.mode == "distributed" and secure is None:
            raise InputError(
                "privacy: distributed noise hides an update in a secure sum only; add "
                "secure=SecureAnswers(...)"
            )
        self.privacy = privacy
        # A client lets no smaller sum be unmasked, so the sum holds at least this much noise.
        self._least = 1 if secure is None else secure.limits.least_clients

    def train(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Flower's mod."""
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        update = torch.from_numpy(update_of(reply.content))
        noisy = privatised(update, self.privacy, self._least)
        (metrics,) = reply.content.metric_records.values()
        kept = {name: metrics[name] for name in (keys.CLIENT, keys.STATE_LOST) if name in metrics}
        stated = {
            keys.EXAMPLES: 1,  # all clients count alike
            keys.CLIP: float(self.privacy.clip),
            keys.NOISE: client_noise(self.privacy, self._least),
        }
        reply.content = RecordDict(
            {
                keys.UPDATE: ArrayRecord({keys.ROW: Array(noisy.numpy())}),
                keys.METRICS: MetricRecord({**kept, **stated}),
            }
        )
        return reply
