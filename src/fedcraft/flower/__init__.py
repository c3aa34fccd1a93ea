"""fedcraft on Flower: every method as a strategy, and a matching client app.

>>> from fedcraft.flower import Strategy
>>> Strategy(fraction_train=0.5).method.title
'CRAFT-auto'
"""

from fedcraft.errors import MissingExtraError

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:
    raise MissingExtraError("flwr", "flower") from error

from fedcraft.flower.client.clientapp import client_app
from fedcraft.flower.client.secure_mod import SecureAnswers
from fedcraft.flower.server.strategy import Strategy

__all__ = ["SecureAnswers", "Strategy", "client_app"]
