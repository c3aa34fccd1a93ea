"""A method: a local objective, a guard, an aggregation rule, a server optimiser, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NoReturn, TypedDict, Unpack

from fedcraft.aggregators import Aggregator, Guard, aggregator, guard
from fedcraft.errors import InputError, require, require_types
from fedcraft.local import LocalObjective, local_objective
from fedcraft.server_optimizers import ServerOptimizer, server_optimizer

PARTS = ("local", "aggregator", "server", "guard")


class _ReadOnly(dict[str, Any]):
    """A read-only dictionary that JSON, pickle and ``asdict`` accept."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a part's parameters cannot be changed; overridden() gives a new part")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[_ReadOnly], tuple[dict[str, Any]]]:
        return _ReadOnly, (dict(self),)


@dataclass(frozen=True)
class Part:
    """One of a method's parts, with the parameters that differ from its defaults.

    ``name`` is the name of the part, its import path, its class, or an object that is copied
    whenever the part is built. The parameters are copied and read-only, because all users share a
    row of the table.
    """

    name: Any
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", _ReadOnly(self.params))

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.params)))  # the values may be dictionaries

    def overridden(self, given: Override) -> Part:
        """Return another part (``given`` names one) or this one with some parameters changed."""
        if given is None or isinstance(given, Part):
            return given or self
        changes = dict(given) if isinstance(given, Mapping) else {"name": given}
        name = changes.pop("name", self.name)
        return Part(name, changes if name != self.name else {**self.params, **changes})

    @property
    def signature(self) -> str:
        """The part as text, the same in every process: a resumed run compares it."""
        return str(replace(self, params={key: stable(item) for key, item in self.params.items()}))

    def __str__(self) -> str:
        params = ", ".join(f"{key}={value}" for key, value in self.params.items())
        return f"{stable(self.name)}({params})" if params else str(stable(self.name))


Override = str | Mapping[str, Any] | Part | type | LocalObjective | Aggregator | Guard | None


class Changes(TypedDict, total=False):
    """The parts and rates of a method that may be exchanged; None changes nothing."""

    local: Override
    aggregator: Override
    server: Override
    guard: Override
    client_lr: float | None
    server_lr: float | None


@dataclass(frozen=True)
class Method:
    """A federated method as a row of a table: only names and numbers.

    ``client_lr`` and ``server_lr`` are rates to start from, not tuned ones. ``look_ahead`` is how
    many steps ahead of the model clients start, ``"auto"`` as many as the rule advises. Methods
    that are ``buffered`` are asynchronous: ``clock.mode`` is ``"buffered"`` unless it is given.
    ``in_paper`` says whether the CRAFT paper's experiments show it.
    """

    name: str
    title: str
    summary: str
    reference: str
    local: Part = Part("plain")
    aggregator: Part = Part("average")
    server: Part = Part("sgd")
    guard: Part = Part("none")
    client_lr: float = 0.05
    server_lr: float = 1.0
    look_ahead: float | Literal["auto"] = 0.0
    buffered: bool = False
    in_paper: bool = True

    def build(
        self, server_lr: float | None = None
    ) -> tuple[LocalObjective, Aggregator, ServerOptimizer]:
        """Return fresh instances of the parts, the rule behind its guard.

        ``server_lr`` is the method's if left out.
        """
        if "lr" in self.server.params:
            raise InputError("server: expected no 'lr'; the server's rate is server_lr")
        require_types(Method, {"client_lr": self.client_lr})
        require(self.client_lr > 0, "client_lr", "a positive number", self.client_lr)
        rate = self.server_lr if server_lr is None else server_lr
        optimizer = server_optimizer(self.server.name, rate, **self.server.params)
        return self._objective(), self._rule(), optimizer

    def overridden(self, **changes: Unpack[Changes]) -> Method:
        """Return this method with parts or rates exchanged, after building it once to check it."""
        given: dict[str, Any] = {key: found for key, found in changes.items() if found is not None}
        for part in PARTS:
            given[part] = getattr(self, part).overridden(changes.get(part))
        self._require_own_guard(given["guard"])
        changed = replace(self, **given)
        changed.build()
        return changed

    def clock(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table of the virtual clock with the mode that the method needs."""
        return {"mode": "buffered", **given} if self.buffered else dict(given)

    @property
    def parts(self) -> dict[str, Part]:
        """The parts by name, the guard only if there is one."""
        named = {name: getattr(self, name) for name in PARTS}
        return {name: part for name, part in named.items() if part != Part("none")}

    @property
    def personal(self) -> bool:
        """Whether clients are evaluated with personal parameters."""
        return self._objective().personal

    @property
    def needs(self) -> frozenset[str]:
        """What the rule needs from the clients besides their updates."""
        return self._rule().needs

    def _require_own_guard(self, guard: Part) -> None:
        if self.guard.name not in ("none", guard.name):
            raise InputError(
                f"guard: expected {self.guard.name}, of which {self.name} consists, found "
                f"{guard.name}; for another guard take another method, such as fedavg"
            )

    def _objective(self) -> LocalObjective:
        return local_objective(self.local.name, **self.local.params)

    def _rule(self) -> Aggregator:
        rule = aggregator(self.aggregator.name, **self.aggregator.params)
        if "guard" not in self.parts:
            return rule
        return rule.guarded(guard(self.guard.name, **self.guard.params))


def stable(value: Any) -> Any:
    """Return a parameter as text, or as containers of text, that is the same in every process.

    Functions and objects print with their address, which no two processes share; here they are
    named by module and qualified name, objects with their attributes.
    """
    if isinstance(value, Mapping):
        return {key: stable(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(stable(item) for item in value)
    if isinstance(value, partial):
        return f"partial({stable([value.func, *value.args])}, {stable(value.keywords)})"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    if " at 0x" in str(value):
        return f"{stable(type(value))}({stable(getattr(value, '__dict__', {}))})"
    return value
