"""What a problem is: the data, their split into clients, and the model.

Only runs of one problem compare: a number says as much about its problem as about its method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["fingerprint", "flatten", "problem_of", "tail"]

_KEYS = (
    *("dataset", "model", "clients", "clients_per_round", "partition", "alpha", "min_size"),
    *("shards_per_client", "max_samples", "samples", "train_fraction", "validation_fraction"),
    *("data_options", "model_options"),
)


def problem_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that make its problem, tables as dotted keys."""
    found = flatten({key: config[key] for key in _KEYS if config.get(key) is not None})
    return {"dataset": "data", "model": "model"} | found


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return a text that equal configurations share."""
    return json.dumps(config, sort_keys=True, default=str)


def tail(problem: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Return what tells a problem from others with its data set and model; nothing if none is.

    >>> one, two = ({"dataset": "digits", "model": "mlp", "alpha": alpha} for alpha in (0.1, 1.0))
    >>> tail(one, [one, two])
    ', alpha 0.1'
    """
    same = [o for o in others if all(o[key] == problem[key] for key in ("dataset", "model"))]
    keys = {key: None for other in same for key in other}
    apart = [key for key in keys if any(o.get(key) != problem.get(key) for o in same)]
    return "".join(f", {key} {problem.get(key, 'none')}" for key in apart)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
