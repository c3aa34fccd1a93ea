"""Differential privacy in the round loop: what clients and server add, and the account of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedcraft.aggregators import Aggregator
from fedcraft.config.settings import Settings
from fedcraft.errors import ConfigError, FedcraftError
from fedcraft.privacy import Accountant, Privacy
from fedcraft.privacy.mechanism import server_noise, simulated_noise
from fedcraft.secure import Secure
from fedcraft.seeds import torch_generator


class BudgetSpent(FedcraftError, RuntimeError):
    """The next round would exceed the limit on epsilon."""


class PrivateRounds:
    """The mechanism of a run's rounds. Noise follows from the run's seed: this is a simulation."""

    def __init__(
        self, privacy: Privacy, settings: Settings, rule: Aggregator, population: int | None
    ) -> None:
        secure = Secure.from_table(settings.secure)
        privacy.check(rule, sums_only=secure is not None and secure.sums_only)
        if population is None:
            raise ConfigError(
                "privacy: only the simulator accounts for it so far; in a federation, add noise on "
                "the clients with fedcraft.privacy.mechanism.privatised"
            )
        self.privacy, self._settings = privacy, settings
        self.accountant = Accountant(privacy, population)

    def leaving(self, updates: Tensor, clients: Sequence[int], index: int) -> Tensor:
        """Return the updates as they leave the clients; refuse a round beyond the budget."""
        limit = self.privacy.epsilon
        if limit is not None and self.accountant.after(clients) > limit:
            raise BudgetSpent(
                f"privacy budget: one more round would exceed epsilon {limit:g} at delta "
                f"{self.privacy.delta:g}"
            )
        seed, least = self._settings.seed, self._settings.min_clients
        return simulated_noise(
            updates, self.privacy, least, seed=seed, index=index, clients=clients
        )

    def require_noise(self, contributors: int) -> None:
        """Raise an error if a sum holds the noise of fewer clients than the account assumes."""
        least = self._settings.min_clients
        if self.privacy.mode == "distributed" and contributors < least:
            raise ConfigError(
                f"min_clients: a sum holds the noise of {contributors} clients, and the account "
                f"assumes {least}; the sum is not used. Lower min_clients."
            )

    def released(self, direction: Tensor, clients: int, index: int) -> Tensor:
        """Return the direction with the server's noise, if the mode has any."""
        if self.privacy.mode != "central":
            return direction
        random = torch_generator(self._settings.seed, "server noise", index)
        return server_noise(direction, self.privacy, clients, random)

    def row(self, number: int) -> dict[str, Any]:
        """The budget after a round, in the rows of evaluations: counting it takes a moment."""
        due = self._settings.evaluates(number) or self.privacy.epsilon is not None
        return {"privacy": self.accountant.row()} if due else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the account."""
        return self.accountant.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continue the account."""
        self.accountant.load_state_dict(state)
