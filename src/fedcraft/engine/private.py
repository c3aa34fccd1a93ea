"""Differential privacy in the round loop: what clients and server add, and the account of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators import Aggregator, Certificate
from fedcraft.config.settings import Settings
from fedcraft.errors import ConfigError, FedcraftError
from fedcraft.privacy import Accountant, Privacy
from fedcraft.privacy.mechanism import server_noise, simulated_noise
from fedcraft.secure import Secure
from fedcraft.seeds import torch_generator
from fedcraft.updates import ClientId


class BudgetSpent(FedcraftError, RuntimeError):
    """The next round would exceed the limit on epsilon."""


class PrivateRounds:
    """The mechanism of a run's rounds, and the account of what they release.

    ``least`` is the number of clients whose noise a sum of the mode ``distributed`` must hold.
    """

    def __init__(
        self, privacy: Privacy, rule: Aggregator, secure: Secure | None, least: int
    ) -> None:
        privacy.check_secure(secure)
        privacy.check(rule, sums_only=secure is not None and secure.sums_only)
        self.privacy, self.least = privacy, least
        self.accountant = Accountant(privacy, None)

    def claim_sampling(self, population: int) -> None:
        """Count on draws that are uniform among so many clients, which nobody sees."""
        self.accountant.population = population

    def leaving(self, updates: Tensor, clients: Sequence[int], index: int) -> Tensor:
        """Return the updates as they leave the clients."""
        raise NotImplementedError

    def random(self, index: int) -> torch.Generator | None:
        """Return the source of the server's noise in a round; None for one nobody can predict."""
        return None

    def count(self, clients: Iterable[ClientId]) -> None:
        """Enter a round that was aggregated into the account."""
        self.accountant.add(clients)

    def require_budget(self, clients: Iterable[ClientId]) -> None:
        """Raise ``BudgetSpent`` if a round with these clients would exceed the limit."""
        limit = self.privacy.epsilon
        if limit is not None and self.accountant.after(clients) > limit:
            raise BudgetSpent(
                f"privacy budget: one more round would exceed epsilon {limit:g} at delta "
                f"{self.privacy.delta:g}"
            )

    def require_noise(self, contributors: int) -> None:
        """Raise an error if a sum holds the noise of fewer clients than the account assumes."""
        if self.privacy.mode == "distributed" and contributors < self.least:
            raise ConfigError(
                f"min_clients: a sum holds the noise of {contributors} clients, and the account "
                f"assumes {self.least}; the sum is not used. Lower min_clients."
            )

    def released(self, direction: Tensor, clients: int, index: int) -> Tensor:
        """Return the direction with the server's noise, if the mode has any."""
        if self.privacy.mode != "central":
            return direction
        return server_noise(direction, self.privacy, clients, self.random(index))

    def shown(self, certificate: Certificate | None) -> Certificate | None:
        """Return what may be written of a certificate.

        In the mode ``central`` that is nothing: its numbers are about single updates, carry no
        noise, and are not in the account. (Elsewhere it only knows updates with noise.)
        """
        return None if self.privacy.mode == "central" else certificate

    def row(self, number: int) -> dict[str, Any]:
        """The budget after a round."""
        return {"privacy": self.accountant.row()}


class SimulatedPrivacy(PrivateRounds):
    """Rounds whose noise follows from the run's seed: a simulation."""

    def __init__(self, privacy: Privacy, settings: Settings, rule: Aggregator) -> None:
        super().__init__(privacy, rule, Secure.from_table(settings.secure), settings.min_clients)
        self._settings = settings

    def leaving(self, updates: Tensor, clients: Sequence[int], index: int) -> Tensor:
        self.require_budget(clients)
        seed = self._settings.seed
        return simulated_noise(
            updates, self.privacy, self.least, seed=seed, index=index, clients=clients
        )

    def random(self, index: int) -> torch.Generator:
        return torch_generator(self._settings.seed, "server noise", index)

    def row(self, number: int) -> dict[str, Any]:
        """In the rows of evaluations, or of all if there is a limit: counting takes a moment."""
        due = self._settings.evaluates(number) or self.privacy.epsilon is not None
        return super().row(number) if due else {}
