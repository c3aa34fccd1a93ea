"""The simulator's settings that a federation takes too."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from fedcraft.engine.settings import Settings
from fedcraft.errors import InputError
from fedcraft.methods import Method
from fedcraft.updates import BufferPolicy, Grouping

__all__ = ["Training", "settings_of"]


class Training(TypedDict, total=False):
    """Keys of the simulator's settings, with its defaults but for the four of ``_OWN_DEFAULTS``."""

    lr_decay: float
    local_epochs: int
    batch_size: int
    seed: int
    layers: Grouping
    buffers: BufferPolicy
    evaluate_every: int
    evaluate_train_loss: bool
    diagnostics_every: int
    checkpoint_every: int
    keep_checkpoints: int


# A round over a network is long and costs others something: look at and keep every one.
_OWN_DEFAULTS: Training = {
    "evaluate_every": 1,
    "evaluate_train_loss": False,
    "diagnostics_every": 1,
    "checkpoint_every": 1,
}


def settings_of(method: Method, clients_per_round: int, training: Training) -> Settings:
    """Return the settings of a federation, or name the key that is none of them."""
    known = list(Training.__annotations__)
    for name in training:
        if name not in known:
            raise InputError(f"{name}: expected one of {', '.join(known)}; there is no such key")
    keys = cast(dict[str, Any], {**_OWN_DEFAULTS, **training})
    return Settings(
        clients_per_round=clients_per_round,
        client_lr=method.client_lr,
        server_lr=method.server_lr,
        checkpoint_minutes=None,
        **keys,
    )
