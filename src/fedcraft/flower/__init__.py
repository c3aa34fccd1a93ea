"""fedcraft on Flower: every method as a strategy, and a matching client app.

>>> from fedcraft.flower import Strategy
>>> Strategy(fraction_train=0.5).method.title
'CRAFT-auto'
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedcraft.errors import MissingExtraError

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:
    raise MissingExtraError("flwr", "flower") from error

if TYPE_CHECKING:
    from fedcraft.flower.client.clientapp import client_app, client_id_mod
    from fedcraft.flower.client.secure_mod import SecureAnswers
    from fedcraft.flower.server.strategy import Strategy

__all__ = ["SecureAnswers", "Strategy", "client_app", "client_id_mod"]

# Loaded when first used: a SuperNode starts a process for every message, and a client that waits
# for the server's modules waits in every one of them.
_LAZY = {
    "SecureAnswers": "client.secure_mod",
    "Strategy": "server.strategy",
    "client_app": "client.clientapp",
    "client_id_mod": "client.clientapp",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
