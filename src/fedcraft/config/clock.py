"""The options of the virtual clock: when clients are there, and how long they take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedcraft.errors import InputError, require
from fedcraft.registry import require_keys

ClockMode = Literal["synchronous", "buffered"]
_USUAL: dict[str, float] = {"synchronous": 1.3, "buffered": 3.0}


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Who reports when. The unit of time is a round of an average client on a middling device.

    A client takes (its samples / the average) times spread^(u - 1/2), with u uniform in [0, 1).
    At time t it is there with probability swing^((cos(2 pi (t / day - phase)) - 1) / 2).

    * ``mode``: ``synchronous`` rounds take the first ``clients_per_round`` updates and discard
      later ones; a ``buffered`` server keeps them, and steps whenever so many have arrived.
    * ``concurrency``: clients that train at once. Left out: 1.3 times ``clients_per_round`` in
      synchronous rounds (over-selection to 130 %), 3 times for a buffer.
    * ``deadline``: a synchronous round counts no update that takes longer.
    * ``speed_spread``: how many times slower the slowest device is than the fastest.
    * ``availability_swing``: how many times likelier a client is there at its peak than at its
      trough, half a ``day`` later.
    * ``label_correlation``: share of the clients whose peak follows from their most frequent label
      (label c of C peaks at c / C of the day); that of the others is uniform.
    * ``until``: the run stops after the first round that ends later.
    * ``staleness_power``: an update that started tau steps ago counts (1 + tau)^-power times its
      samples; FedBuff's 1 / sqrt(1 + tau) by default.
    """

    mode: ClockMode = "synchronous"
    concurrency: int | None = None
    deadline: float | None = None
    speed_spread: float = 1.0
    availability_swing: float = 1.0
    label_correlation: float = 0.0
    day: float = 100.0
    until: float | None = None
    staleness_power: float = 0.5

    def __post_init__(self) -> None:
        modes = get_args(ClockMode)
        require(self.mode in modes, "clock.mode", f"one of {', '.join(modes)}", self.mode)
        fine = self.concurrency is None or (type(self.concurrency) is int and self.concurrency > 0)
        require(fine, "clock.concurrency", "a whole number above 0", self.concurrency)
        for name, least, most in _NUMBERS:
            value = getattr(self, name)
            real = isinstance(value, int | float) and not isinstance(value, bool)
            fine = (real and least <= value <= most) or (value is None and name in _OPTIONAL)
            require(fine, f"clock.{name}", f"a number from {least:g} to {most:g}", value)
        if self.mode == "buffered" and self.deadline is not None:
            raise InputError(
                f"clock.deadline: expected none, because a buffer waits for every client, found "
                f'{self.deadline!r}. Leave it out, or set clock.mode = "synchronous".'
            )

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Clock | None:
        """Return the options that a configuration's table gives; None for an empty one."""
        if not table:
            return None
        require_keys("clock", table, cls)
        return cls(**table)

    def at_once(self, clients_per_round: int) -> int:
        """Return how many clients train at once."""
        if self.concurrency is not None:
            return self.concurrency
        return math.ceil(round(_USUAL[self.mode] * clients_per_round, 6))


_NUMBERS = (
    ("deadline", 1e-6, 1e9),
    ("speed_spread", 1, 1e6),
    ("availability_swing", 1, 1e6),
    ("label_correlation", 0, 1),
    ("day", 1e-6, 1e9),
    ("until", 1e-6, 1e9),
    ("staleness_power", 0, 10),
)
_OPTIONAL = ("deadline", "until")


def check_clock(settings: Any) -> None:
    """Raise ``InputError`` if the clock's keys are wrong or contradict other keys."""
    clock = Clock.from_table(settings.clock)
    if clock is None:
        return
    wanted, found = settings.clients_per_round, clock.at_once(settings.clients_per_round)
    require(found >= wanted, "clock.concurrency", f"clients_per_round = {wanted} or more", found)
    if settings.privacy:
        raise InputError(
            "clock: the account of differential privacy assumes clients that are drawn uniformly "
            "and updates of this round. Leave out either clock or privacy."
        )
    if settings.secure.get("enabled") and clock.mode == "buffered":
        raise InputError(
            "clock.mode: secure aggregation needs clients that answer together, found 'buffered'. "
            'Set clock.mode = "synchronous", or leave out secure.'
        )
