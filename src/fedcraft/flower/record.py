"""What a federation writes down of its settings: for config.toml, and to know the run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedcraft.engine.identity import stable
from fedcraft.flower import keys

if TYPE_CHECKING:
    from fedcraft.flower.rounds import Plan
    from fedcraft.flower.strategy import Strategy

__all__ = ["FEDERATION", "Plain", "recorded", "writable"]

Plain = dict[str, Any]
FEDERATION = "federation"  # in place of a data set's name: nobody here has seen the data
_NAMES = {
    keys.LR: "client_lr",
    keys.EPOCHS: "local_epochs",
    keys.BATCH: "batch_size",
    keys.SEED: "seed",
}


def recorded(strategy: Strategy, plan: Plan) -> Plain:
    """Return the settings of a run as its clients get them: what ``train_config`` says wins."""
    method, settings = strategy.method, strategy.settings
    parts = {"local": method.local, "aggregator": method.aggregator, "server": method.server}
    same = ("client_lr", "server_lr", "lr_decay", "local_epochs", "batch_size", "seed")
    config = {
        "method": method.name,
        "dataset": FEDERATION,
        "rounds": max(plan.rounds, 1),
        **{name: getattr(settings, name) for name in (*same, "layers", "buffers")},
        **_replaced(strategy, plan.train_config or {}),
        "weighted_by_key": strategy.weighted_by_key,
        "fraction_train": strategy.fraction_train,
        "min_train_nodes": strategy.min_train_nodes,
        "train_config": plan.train_config or {},
        **{name: {"name": part.name, **part.params} for name, part in parts.items()},
    }
    plain: Plain = writable(config)
    return plain


def _replaced(strategy: Strategy, said: Mapping[str, Any]) -> Plain:
    found = {_NAMES[name]: value for name, value in said.items() if name in _NAMES}
    if keys.LR in said:
        found["lr_decay"] = 1.0  # the same rate in every round
    if keys.SEED in said:
        found["cohort_seed"] = strategy.settings.seed  # still draws who takes part
    return found


def writable(value: Any) -> Any:
    """Return a setting as TOML and JSON can say it.

    Functions and objects become text, the same in every process; None and bytes are left out.
    """
    if isinstance(value, Mapping):
        return {str(name): writable(item) for name, item in value.items() if _sayable(item)}
    if isinstance(value, (list, tuple)):
        return [writable(item) for item in value if _sayable(item)]
    return value if isinstance(value, (bool, int, float, str)) else str(stable(value))


def _sayable(value: object) -> bool:
    return value is not None and not isinstance(value, bytes)
