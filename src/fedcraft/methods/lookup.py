"""Methods by name: a row of the table in methods.toml, or a mixture of its parts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any, Unpack

from fedcraft.aggregators import RULES
from fedcraft.errors import InputError
from fedcraft.methods.method import PARTS, Changes, Method, Part
from fedcraft.registry import did_you_mean
from fedcraft.server_optimizers import OPTIMIZERS


def _row_of(name: str, row: dict[str, Any]) -> Method:
    parts = {part: Part(row[part].pop("name"), row[part]) for part in PARTS if part in row}
    return Method(name=name, **row | parts)


_TEXT = files(__package__).joinpath("methods.toml").read_text(encoding="utf-8")
_TABLE = {name: _row_of(name, row) for name, row in tomllib.loads(_TEXT).items()}
_ALIASES = {"fedmgda": "fedmgda+", "fedmgdaplus": "fedmgda+", "q-fedavg": "qfedavg"}
_MIXTURE: dict[str, Any] = {
    "summary": "a mixture",
    "reference": "fedcraft's own",
    "in_paper": False,
}


def methods() -> tuple[Method, ...]:
    """Return all methods, in the order of the table."""
    return tuple(_TABLE.values())


def markdown_table() -> str:
    """Return the table of methods as Markdown, for README and documentation."""
    head = ("method", "clients", "aggregation", "server", "in the paper", "in one line", "source")
    lines = [_line(head), _line(["---"] * len(head))]
    for row in methods():
        rule = row.aggregator if row.guard.name == "none" else f"{row.guard}, {row.aggregator}"
        parts = (f"`{part}`" for part in (row.local, rule, row.server))
        shown = "yes" if row.in_paper else ""
        lines.append(_line([f"`{row.name}`", *parts, shown, row.summary, row.reference]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def method(name: str, **changes: Unpack[Changes]) -> Method:
    """Return a method by name, with any of its parts changed or exchanged.

    A name may also be a mixture ``clients+server``: ``"fedprox+craft"`` has FedProx's clients and
    all of CRAFT's server, ``"craft+adam"`` CRAFT's direction through Adam. The server is a method,
    an aggregation rule or a server optimiser; ``package.module:Class`` is a custom rule, and alone
    it has FedAvg's clients.

    A mapping of parameters overrides a part; a mapping with another ``"name"``, a plain name, a
    class or an object exchanges it. Every combination is built once here, so that mistakes show
    immediately.

    >>> method("fedprox", local={"mu": 0.1}, aggregator="craft").aggregator.name
    'craft'
    >>> method("fedprox+craft").title
    'FedProx + CRAFT'
    >>> print(method("craft", server={"name": "adam", "tau": 0.001}).server)
    adam(tau=0.001)
    """
    found = _find(name)
    if found is None:
        near = did_you_mean(name, _TABLE)
        known = f"{near} There are also" if near else f" Known: {', '.join(_TABLE)}, and"
        raise InputError(
            f"method: unknown name {name!r}.{known} mixtures of clients and a server, such as "
            "fedprox+craft."
        )
    return found.overridden(**changes)


def method_title(name: str) -> str:
    """Return the title of a method, or the name itself if it is not a method's."""
    found = None if ":" in name else _find(name)  # a path stays a label
    return name if found is None else found.title


def clock_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of the virtual clock for a method by name; unknown names add nothing."""
    found = _find(name)
    return dict(given) if found is None else found.clock(given)


def mixture_name(name: str, config: Mapping[str, Any]) -> str:
    """Return the name of a run of a method, parts of which its tables may exchange.

    A rule's name alone would imply its method's server: where the run keeps another one, that is
    named too (FedAvgM with CRAFT's rule is ``fedavgm+craft+momentum``). A guard that can leave
    clients out follows in brackets.
    """
    row = _find(name)
    if row is None:
        return name
    local, rule, optimizer, guard = (
        _exchanged(getattr(row, part).name, config.get(part)) for part in PARTS
    )
    mixed = _mixed(row, rule) if rule else None
    if mixed is not None and optimizer is None and mixed.server.name != row.server.name:
        optimizer = row.server.name
    mixture = "+".join(filter(None, (local, row.name, rule, optimizer)))
    return f"{mixture} (guard {guard})" if guard not in (None, "size_cap") else mixture


def _exchanged(own: str, table: object) -> str | None:
    """Return the part that a configuration's table puts in place of the method's part."""
    chosen = table.get("name", own) if isinstance(table, Mapping) else own
    return None if chosen == own else str(chosen)


def _find(name: str) -> Method | None:
    known = _listed(name)
    if known is not None:
        return known
    if ":" in name and "+" not in name:
        return replace(_TABLE["fedavg"], **_MIXTURE, name=name, title=name, aggregator=Part(name))
    for place in reversed([place for place, letter in enumerate(name) if letter == "+"]):
        clients = _find(name[:place])
        mixed = None if clients is None else _mixed(clients, name[place + 1 :])
        if mixed is not None:
            return mixed
    return None


def _listed(name: str) -> Method | None:
    return _TABLE.get(_ALIASES.get(name.lower(), name.lower()))


def _mixed(clients: Method, server: str) -> Method | None:
    """Put a server (a method, a rule, an optimiser) behind a method's clients."""
    other = _listed(server)
    ahead, guard, buffered = clients.look_ahead, clients.guard, clients.buffered
    if other is not None:
        buffered |= other.buffered
        rule, optimizer, rate = other.aggregator, other.server, other.server_lr
        ahead, guard = other.look_ahead, _one_guard(clients, other)
        server, title = other.name, other.title
    elif server in RULES or ":" in server:
        rule, optimizer, rate = Part(server), clients.server, clients.server_lr
        title = server
    elif server in OPTIMIZERS:
        rule, optimizer, rate = clients.aggregator, Part(server), clients.server_lr
        title = f"{server.capitalize()} on the server"
    else:
        return None
    return replace(
        clients,
        **_MIXTURE,
        name=f"{clients.name}+{server}",
        title=f"{clients.title} + {title}",
        aggregator=rule,
        server=optimizer,
        guard=guard,
        server_lr=rate,
        look_ahead=ahead,
        buffered=buffered,
    )


def _one_guard(clients: Method, other: Method) -> Part:
    """Return the guard of whichever of the two methods has one."""
    guards = [row.guard for row in (clients, other) if row.guard.name != "none"]
    if len(guards) > 1:
        raise InputError(
            f"method: {clients.name} and {other.name} each have a guard, and a rule takes one; "
            f"expected one of the two, such as {clients.name}, or a rule and guard.name"
        )
    return guards[0] if guards else Part("none")
