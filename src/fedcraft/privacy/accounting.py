"""The account of the privacy budget, by ``dp-accounting``.

Neighbouring federations differ in one client, who is replaced by another. One round is a Gaussian
mechanism with the noise multiplier z.

* ``local``, ``distributed``: the server knows who takes part. So a client's loss is that of as many
  mechanisms as it took part in, and the account is about the client with the most rounds (exact).
* ``central``: who took part stays with the trusted server. The m clients of a round are drawn
  without replacement from N, which amplifies privacy (Renyi accounting). Where the draw is not
  known to be uniform and secret (``population`` None), it counts like the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, get_args

from fedcraft.errors import InputError, MissingExtraError, StateError, require
from fedcraft.privacy.options import Mode, Privacy
from fedcraft.updates import ClientId

_CLOSE = 1e-3
_ORDERS = (*range(2, 33), 40, 48, 64)  # of Renyi's divergence; fractions take long and gain little


class Accountant:
    """Counts what was released, and says what epsilon that amounts to.

    Fails closed: an account that cannot be read, or a round with an unknown client number, is an
    error and not a zero.
    """

    def __init__(self, privacy: Privacy, population: int | None) -> None:
        if population is not None and population < 1:
            raise InputError(f"population: expected a number of clients, found {population}")
        self.privacy, self.population = privacy, population
        self.rounds = 0
        self.sample = 0  # the largest cohort so far
        self.counts: dict[ClientId, int] = {}

    def epsilon(self) -> float:
        """The budget that is spent."""
        return self._epsilon(self.rounds, self.sample, max(self.counts.values(), default=0))

    def after(self, clients: Iterable[ClientId]) -> float:
        """The budget that would be spent after a round with these clients."""
        asked = list(clients)
        most = max((self.counts.get(client, 0) + 1 for client in asked), default=0)
        most = max(most, *self.counts.values(), 0)
        return self._epsilon(self.rounds + 1, max(self.sample, len(asked)), most)

    def add(self, clients: Iterable[ClientId]) -> None:
        """Count a round: every client that was asked, because it may have answered."""
        asked = list(clients)
        self.rounds, self.sample = self.rounds + 1, max(self.sample, len(asked))
        for client in asked:
            self.counts[client] = self.counts.get(client, 0) + 1

    def row(self) -> dict[str, Any]:
        """Return the entry of a round's row."""
        spent = {"epsilon": self.epsilon(), "delta": self.privacy.delta}
        return {**spent, "mode": self.privacy.mode, "noise": self.privacy.noise}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        pairs = [list(pair) for pair in self.counts.items()]
        counted = {"rounds": self.rounds, "sample": self.sample, "counts": pairs}
        return {**counted, "population": self.population}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continue an account; there must be one."""
        if not state or {"rounds", "sample", "counts"} - state.keys():
            raise StateError(
                "privacy: the checkpoint has no account of the budget that was spent; a run with "
                "differential privacy cannot continue from it"
            )
        self.rounds, self.sample = int(state["rounds"]), int(state["sample"])
        self.counts = {client: int(count) for client, count in state["counts"]}
        if state.get("population") != self.population:  # earlier rounds were drawn in another way
            self.population = None

    def _epsilon(self, rounds: int, sample: int, most: int) -> float:
        if rounds == 0:
            return 0.0
        if self.privacy.mode != "central" or self.population is None:
            return gaussian_epsilon(self.privacy.noise, most, self.privacy.delta)
        return sampled_epsilon(
            self.privacy.noise, rounds, sample, self.population, self.privacy.delta
        )


@cache
def gaussian_epsilon(noise: float, count: int, delta: float) -> float:
    """Epsilon of ``count`` Gaussian mechanisms."""
    # Gaussian mechanisms compose to one with a smaller multiplier, exactly.
    return float(_library().get_epsilon_gaussian(noise / count**0.5, delta))


@cache
def sampled_epsilon(noise: float, rounds: int, sample: int, population: int, delta: float) -> float:
    """Epsilon of ``rounds`` Gaussian mechanisms on ``sample`` of ``population`` clients each."""
    dp = _library()
    if sample >= population:
        return gaussian_epsilon(noise, rounds, delta)
    event = dp.SampledWithoutReplacementDpEvent(population, sample, dp.GaussianDpEvent(noise))
    relation = dp.NeighboringRelation.REPLACE_ONE
    accountant = dp.rdp.RdpAccountant(list(_ORDERS), relation)
    amplified = float(accountant.compose(event, rounds).get_epsilon(delta))
    return min(amplified, gaussian_epsilon(noise, rounds, delta))  # both bounds hold


def noise_for(
    epsilon: float,
    *,
    mode: Mode,
    rounds: int,
    clients_per_round: int,
    clients: int,
    delta: float = 1e-5,
    participations: int | None = None,
) -> float:
    """Return the noise multiplier with which a run spends at most ``epsilon``.

    ``participations`` is the most rounds that one client takes part in, for the modes ``local`` and
    ``distributed``; all rounds if left out.
    """
    most = rounds if participations is None else participations
    require(mode in get_args(Mode), "mode", f"one of {', '.join(get_args(Mode))}", mode)
    require(0 < epsilon < math.inf, "epsilon", "a number above 0", epsilon)
    require(0 < delta < 1, "delta", "a number above 0 and below 1", delta)
    counts = {"rounds": rounds, "participations": most}
    counts |= {"clients_per_round": clients_per_round, "clients": clients}
    for name, count in counts.items():
        require(isinstance(count, int) and count >= 1, name, "a whole number >= 1", count)

    def spent(noise: float) -> float:
        if mode != "central":
            return gaussian_epsilon(noise, most, delta)
        return sampled_epsilon(noise, rounds, clients_per_round, clients, delta)

    low, high = 0.0, 1.0
    while spent(high) > epsilon:
        low, high = high, 2 * high
        if high > 1e5:
            raise InputError(f"epsilon: {epsilon:g} needs more noise than any model survives")
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
    return high


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise MissingExtraError("dp-accounting", "privacy") from error
    return dp_accounting
