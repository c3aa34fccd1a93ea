"""When clients are there and how long they take: pure functions of the run's seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcraft.config.clock import Clock
from fedcraft.data import Federation
from fedcraft.engine.sampling import SampledClients, after_dropout
from fedcraft.seeds import generator

Floats = NDArray[np.float64]
Clients = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Devices:
    """All clients' ``durations`` of a round, and the time of day at which each is there most."""

    clock: Clock
    seed: int
    durations: Floats
    phases: Floats

    @classmethod
    def of(cls, clock: Clock, federation: Federation, seed: int) -> Devices:
        """Draw the devices of a federation; they do not change during a run."""
        clients = len(federation)
        speeds = clock.speed_spread ** (generator(seed, "speed").random(clients) - 0.5)
        sizes = federation.sizes()
        phases = generator(seed, "phase").random(clients)
        follow = generator(seed, "label phase").random(clients) < clock.label_correlation
        if follow.any():
            labels = federation.label_counts().argmax(axis=1) / federation.dataset.classes
            phases = np.where(follow, labels, phases)
        return cls(clock, seed, speeds * sizes / sizes.mean(), phases)

    def availability(self, time: float) -> Floats:
        """Return every client's probability to be there: swing^((cos(...) - 1) / 2)."""
        angle = 2 * np.pi * (time / self.clock.day - self.phases)
        chance: Floats = self.clock.availability_swing ** ((np.cos(angle) - 1) / 2)
        return chance

    def draw(
        self, count: int, time: float, index: int, dropout: float, busy: Clients | None = None
    ) -> SampledClients:
        """Draw ``count`` clients, or all, among those that are there at ``time`` and not ``busy``.

        Where all clients are there and idle, these are the draws of ``draw_clients``. Cost O(N).
        """
        free = np.ones(len(self.durations), bool)
        if self.clock.availability_swing > 1:
            lot = generator(self.seed, "availability", index).random(free.size)
            free = lot < self.availability(time)
        if busy is not None:
            free[busy] = False
        idle = np.flatnonzero(free)
        draw = generator(self.seed, "cohort", index)
        chosen = np.sort(idle[draw.choice(idle.size, min(count, idle.size), replace=False)])
        return after_dropout(chosen, dropout, self.seed, index)

    def first(self, clients: Clients, count: int) -> tuple[Clients, float]:
        """Return the ``count`` fastest clients within the deadline, by id, and when they are done.

        A round with fewer of them lasts until its deadline.
        """
        deadline = np.inf if self.clock.deadline is None else self.clock.deadline
        order = clients[np.lexsort((clients, self.durations[clients]))]
        taken = order[self.durations[order] <= deadline][:count]
        short = len(taken) < count and self.clock.deadline is not None
        waited = deadline if short else float(self.durations[taken].max(initial=0.0))
        return np.sort(taken), waited
