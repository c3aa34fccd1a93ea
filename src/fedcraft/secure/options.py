"""The options of secure aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, get_args

from fedcraft.errors import require
from fedcraft.registry import require_keys

Stage = Literal["keys", "shares", "sketch", "dots", "sum", "confirm", "unmask"]
STAGES: tuple[Stage, ...] = get_args(Stage)
Protocol = Literal["exact", "arithmetic", "complete"]
Concentrated = Literal["spread", "raise"]


@dataclass(frozen=True, kw_only=True)
class Secure:
    """How a round is aggregated without showing the server a single update.

    * ``sketch``: numbers k per layer from which the Gram matrix is estimated. A layer with at most
      k coordinates is rotated instead, and its Gram matrix is exact.
      0: the server sees sums and nothing else, which is enough for an average and for no other
      rule. Then ``bound`` is the largest coordinate of an update that a client may send.
    * ``fold``: longer layers are first folded to this length by random signs and shifts, because
      drawing k numbers per coordinate takes time. The error, 1 / sqrt(fold), is small beside that
      of the sketch.
    * ``refinements``: further masked sums after the first. Each corrects the error that the sketch
      leaves, and each is one more vector that the server sees.
    * ``most_share``: the largest share of the squared coefficients that one client may have in any
      vector that the server can form from a layer's sums. Clients refuse more.
    * ``concentrated``: what the server does with a layer whose coefficients exceed that: ``spread``
      them over all clients as far as needed, or ``raise``.
    * ``precision``: how much rounding to fixed point may change a layer, as a share of its length.
    * ``neighbours``: clients that each client shares masks and keys with; ``threshold``: the share
      of them that must answer before a secret can be recovered, at least one half.
    * ``attempts``: how often a round is tried that loses too many clients.
    * ``protocol``: what the simulator runs. ``arithmetic``: sketches, fixed point, refinement and
      drop-outs, but no keys and no masks, which change no bit of a sum; ``complete``: everything,
      with keys that no seed repeats, so that sketches and steps differ from run to run;
      ``exact``: like ``arithmetic``, with Gram matrices that have no error, to see what the limits
      alone do to a rule.
    * ``dropouts``: the simulator's probability that a client is lost, by stage.
    """

    enabled: bool = True
    sketch: int = 256
    bound: float | None = None
    fold: int = 65536
    refinements: int = 1
    most_share: float = 0.75
    concentrated: Concentrated = "spread"
    precision: float = 1e-3
    neighbours: int = 24
    threshold: float = 0.5
    attempts: int = 3
    protocol: Protocol = "arithmetic"
    dropouts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least, most in _WHOLE:
            value = getattr(self, name)
            fine = type(value) is int and least <= value <= most
            require(fine, f"secure.{name}", f"a whole number from {least} to {most}", value)
        for name, above, most_ in _NUMBERS:
            value = getattr(self, name)
            fine = is_number(value) and above <= value <= most_ and value > 0
            require(fine, f"secure.{name}", f"a number from {above} to {most_}", value)
        bounded = is_number(self.bound) and 0 < float(self.bound or 0) < inf
        fine = bounded if self.sketch == 0 and self.enabled else self.bound is None or bounded
        needed = "a finite number above 0, the largest coordinate of an update, where sketch is 0"
        require(fine, "secure.bound", needed, self.bound)
        require(isinstance(self.enabled, bool), "secure.enabled", "true or false", self.enabled)
        for name, choices in (("protocol", Protocol), ("concentrated", Concentrated)):
            value = getattr(self, name)
            kinds = get_args(choices)
            require(
                isinstance(value, str) and value in kinds,
                f"secure.{name}",
                f"one of {', '.join(kinds)}",
                value,
            )
        table = isinstance(self.dropouts, Mapping)
        require(table, "secure.dropouts", "a table such as {sum = 0.1}", self.dropouts)
        for stage, chance in self.dropouts.items():
            require(stage in STAGES, "secure.dropouts", f"stages among {STAGES}", stage)
            fine = is_number(chance) and 0 <= chance < 1
            require(fine, f"secure.dropouts.{stage}", "a number from 0 to below 1", chance)

    @property
    def sums(self) -> int:
        """How many masked sums a round may have."""
        return 1 if self.sums_only else 1 + self.refinements

    @property
    def sums_only(self) -> bool:
        """Whether the server sees nothing but sums."""
        return self.sketch == 0

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Secure | None:
        """Return the options that a configuration's table gives; None unless it enables them."""
        require_keys("secure", table, cls)
        found = cls(**{"enabled": False, **table})
        return found if found.enabled else None


def is_number(value: object) -> bool:
    """Tell whether a value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_WHOLE = (
    ("sketch", 0, 2**20),
    ("fold", 256, 2**40),
    ("refinements", 0, 8),
    ("neighbours", 2, 10_000),
    ("attempts", 1, 100),
)
_NUMBERS = (("most_share", 0.0, 1.0), ("precision", 0.0, 1.0), ("threshold", 0.5, 1.0))
