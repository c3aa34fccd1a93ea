"""Who reports in a round: the clients drawn for it, the fastest of them, or a buffer of late ones.

A participation never changes in place what it remembers: ``collect`` returns it, and the loop keeps
it once the round counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.config.clock import Clock
from fedcraft.config.settings import Settings
from fedcraft.data import Federation
from fedcraft.engine.client_manager import CohortUpdates
from fedcraft.engine.clocked_sampling import Devices
from fedcraft.engine.executors.job import REPORT
from fedcraft.engine.sampling import Sampler, draw_clients
from fedcraft.errors import ConfigError
from fedcraft.local import ClientState

Train = Callable[[NDArray[np.int64]], CohortUpdates]
Memory = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Reports:
    """The updates that arrived in a round, whose did not, and what to remember after it.

    ``row`` goes to metrics.jsonl: ``virtual_time`` at the end of the round, and ``late`` clients or
    the ``staleness`` of updates (in steps, in the order of the clients).
    """

    trained: CohortUpdates
    lost: list[int]
    memory: Memory = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)


class Participation:
    """Rounds without a clock: the sampled clients that do not drop out."""

    def __init__(self, settings: Settings, federation: Federation, sampler: Sampler) -> None:
        self.settings, self.federation, self._sampler = settings, federation, sampler
        self.memory: Memory = {}

    @property
    def uniform(self) -> bool:
        """Whether every client is drawn with the same probability, as privacy accounts assume."""
        return self._sampler is draw_clients

    @property
    def at_once(self) -> int:
        """The most clients that train at the same time."""
        return self.settings.clients_per_round

    def over(self) -> str | None:
        """Return why the run should end now, or None."""
        return None

    def collect(self, index: int, train: Train) -> Reports:
        """Let clients train, and return whose updates the server gets in round ``index``."""
        drawn = self._sampler(self.settings, len(self.federation), index)
        return Reports(train(drawn.present), drawn.absent.tolist())


class Clocked(Participation):
    """Rounds by the virtual clock, on devices that are drawn once."""

    def __init__(self, settings: Settings, federation: Federation, clock: Clock) -> None:
        super().__init__(settings, federation, draw_clients)
        self.clock, self.devices = clock, Devices.of(clock, federation, settings.seed)
        self.concurrency = clock.at_once(settings.clients_per_round)
        self.memory = {"time": 0.0}

    @property
    def uniform(self) -> bool:
        return False  # who is there depends on the time of day

    def over(self) -> str | None:
        limit, time = self.clock.until, self.memory["time"]
        return None if limit is None or time < limit else f"virtual time: {time:.6g} of {limit:g}"


class Synchronous(Clocked):
    """More clients than needed train, and the first ``clients_per_round`` updates count."""

    def collect(self, index: int, train: Train) -> Reports:
        started, dropout = self.memory["time"], self.settings.dropout
        drawn = self.devices.draw(self.concurrency, started, index, dropout)
        taken, waited = self.devices.first(drawn.present, self.settings.clients_per_round)
        late = np.setdiff1d(drawn.present, taken).tolist()
        row = {"virtual_time": started + waited, "late": late}
        # Nobody sees what late clients have computed, so they need not compute it.
        return Reports(train(taken), drawn.absent.tolist(), {"time": started + waited}, row)


@dataclass(frozen=True, eq=False)
class Flight:
    """A finished update on its way: it started at step ``version`` and arrives at ``arrival``."""

    client: int
    version: int
    arrival: float
    update: Tensor
    report: NDArray[np.float64]
    state: ClientState | None
    buffers: dict[str, Tensor] | None
    with_loss: bool


class Buffered(Clocked):
    """FedBuff (Nguyen et al., AISTATS 2022): a server step for every full buffer, however stale.

    The server sends its model to clients until ``concurrency`` of them train, waits for
    ``clients_per_round`` updates, and aggregates them with weights n_i (1 + tau_i)^-power, tau_i
    being the steps since client i started. If fewer are on their way, it takes them all.

    A client is trained when it starts, and its update is kept until it arrives: memory for
    ``concurrency`` updates. Deviations: places are filled after a step and not at every arrival; a
    lost client is replaced after the next step; weights are normalised (FedBuff divides by their
    number, which is a constant factor on the server rate if staleness does not change).
    """

    @property
    def at_once(self) -> int:
        return self.concurrency

    def collect(self, index: int, train: Train) -> Reports:
        time: float = self.memory["time"]
        flights = [Flight(**flight) for flight in self.memory.get("flights", ())]
        busy = np.array([flight.client for flight in flights], np.int64)
        places = self.concurrency - len(flights)
        drawn = self.devices.draw(places, time, index, self.settings.dropout, busy)
        if len(drawn.present):
            flights += self._sent_off(train(drawn.present), index, time)
        flights.sort(key=lambda flight: (flight.arrival, flight.client))
        count = self.settings.clients_per_round
        arrived, rest = flights[:count], flights[count:]
        time = max([time, *(flight.arrival for flight in arrived)])
        memory = {"time": time, "flights": [vars(flight) for flight in rest]}
        arrived.sort(key=lambda flight: flight.client)
        stale = [index - flight.version for flight in arrived]
        trained = _discounted(arrived, (1.0 + np.array(stale)) ** -self.clock.staleness_power)
        row = {"virtual_time": time, "staleness": stale}
        return Reports(trained, drawn.absent.tolist(), memory, row)

    def _sent_off(self, trained: CohortUpdates, index: int, time: float) -> list[Flight]:
        ends = time + self.devices.durations[trained.clients]
        return [
            Flight(
                client=client,
                version=index,
                arrival=float(ends[row]),
                update=trained.updates[row].clone(),
                report=trained.report[row].copy(),
                state=trained.states[row],
                buffers=trained.buffers[row],
                with_loss=trained.with_losses,
            )
            for row, client in enumerate(trained.clients.tolist())
        ]


def _discounted(flights: Sequence[Flight], factors: NDArray[np.float64]) -> CohortUpdates:
    """Return updates that have arrived as a cohort, whose data sizes are multiplied by factors."""
    report = np.array([flight.report for flight in flights]).reshape(-1, len(REPORT))
    report[:, REPORT.index("samples")] *= factors
    return CohortUpdates(
        np.array([flight.client for flight in flights], np.int64),
        torch.stack([flight.update for flight in flights]) if flights else torch.empty(0, 0),
        report,
        [flight.state for flight in flights],
        [flight.buffers for flight in flights],
        any(flight.with_loss for flight in flights),
    )


def participation(settings: Settings, federation: Federation, sampler: Sampler) -> Participation:
    """Return who takes part in a run's rounds; ``sampler`` draws them where there is no clock."""
    clock = Clock.from_table(settings.clock)
    if clock is None:
        return Participation(settings, federation, sampler)
    if sampler is not draw_clients:
        raise ConfigError("sampler: expected none, because clock draws the clients; leave out one")
    kind = Buffered if clock.mode == "buffered" else Synchronous
    return kind(settings, federation, clock)
