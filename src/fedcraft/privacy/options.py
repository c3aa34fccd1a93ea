"""The options of differential privacy, and the rules that they are sound for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedcraft.aggregators import Aggregator
from fedcraft.aggregators.average import Average
from fedcraft.errors import ConfigError, InputError, require
from fedcraft.registry import require_keys

Mode = Literal["local", "distributed", "central"]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """(epsilon, delta)-differential privacy of whole clients, who may be replaced by any other.

    Every update is clipped to length ``clip`` = C, so replacing a client moves a sum of updates by
    at most 2 C. ``noise`` = z is the noise multiplier: the standard deviation of the Gaussian noise
    as a multiple of that. All clients count alike, because data sizes are private too.

    * ``local``: each client adds noise of 2 C z to its update before it leaves. Whatever the server
      does afterwards costs nothing, so every rule may be used that needs only updates.
    * ``distributed``: each client adds noise of 2 C z / sqrt(``min_clients``), and the server sees
      the sum only (``secure.sketch = 0``). Only for the average.
    * ``central``: a trusted server adds noise of 2 C z / m to the mean of m clipped updates. Only
      for the average, and for those who see the models but not the updates.

    The budget is that of the models and of everything that the server receives, except the numbers
    of an evaluation. ``epsilon`` is a limit: a round that would exceed it is not started.
    """

    mode: Mode
    clip: float
    noise: float
    delta: float = 1e-5
    epsilon: float | None = None

    def __post_init__(self) -> None:
        modes = get_args(Mode)
        require(self.mode in modes, "privacy.mode", f"one of {', '.join(modes)}", self.mode)
        for name in ("clip", "noise"):
            value = getattr(self, name)
            fine = _is_number(value) and 0 < value < 1e6
            require(fine, f"privacy.{name}", "a number above 0 and below 1e6", value)
        fine = isinstance(self.delta, float) and 0 < self.delta < 1
        require(fine, "privacy.delta", "a number above 0 and below 1", self.delta)
        limited = self.epsilon is None or (_is_number(self.epsilon) and self.epsilon > 0)
        require(limited, "privacy.epsilon", "a number above 0", self.epsilon)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Privacy | None:
        """Return the options that a configuration's table gives; None for an empty one."""
        if not table:
            return None
        require_keys("privacy", table, cls)
        for key in ("mode", "clip", "noise"):
            if key not in table:
                raise InputError(f"privacy.{key}: expected a value, found none; all modes need it")
        return cls(**table)

    def check_secure(self, secure: object | None) -> None:
        """Raise ``ConfigError`` if this mode cannot run with secure rounds, and they are wanted."""
        if self.mode == "central" and secure is not None:
            raise ConfigError(
                "privacy.mode: with central noise the server clips every update, and with secure "
                'it sees none. Leave out secure, or set the mode to "distributed".'
            )

    def check(self, rule: Aggregator, *, sums_only: bool) -> None:
        """Raise ``ConfigError`` if this mode does not protect clients with a rule."""
        name = type(rule).__name__
        if rule.needs:
            raise ConfigError(
                f"privacy: {name} also needs {', '.join(sorted(rule.needs))} from the clients, "
                "which carry no noise; choose another method"
            )
        if self.mode == "local":
            return
        if not has_bounded_sensitivity(rule):
            raise ConfigError(
                f"privacy.mode: {self.mode} noise is calibrated for a mean, which one client moves "
                f"by at most 2 clip / m, but one client can move the step of {name} much further. "
                'Set privacy.mode = "local", or choose fedavg.'
            )
        if self.mode == "distributed" and not sums_only:
            raise ConfigError(
                "privacy.mode: distributed noise protects sums only, and here the server would "
                "also see single updates, their lengths or sketches. Set secure.enabled = true and "
                "secure.sketch = 0."
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_bounded_sensitivity(rule: Aggregator) -> bool:
    """Tell whether one clipped update moves the rule's direction by at most 2 clip / m.

    That is so if all clients weigh alike, which the caller sees to. With a guard it is not: one
    client can decide whether others are left out.
    """
    return type(rule) is Average and rule.length == "own" and rule.guard is None
