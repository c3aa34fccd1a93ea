"""Problems: the data, their split into clients, and the model.

Only runs of the same problem can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_KEYS = (
    *("dataset", "model", "clients", "clients_per_round", "partition", "alpha", "min_size"),
    *("shards_per_client", "max_samples", "samples", "train_fraction", "validation_fraction"),
    *("data_options", "model_options", "attack", "clock"),
)
_PAPER_NAMES = {
    "femnist": "FEMNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "Digits",
    "mlp": "MLP",
    "cnn": "CNN",
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "resnet110": "ResNet-110",
}


def problem_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration that define its problem, tables as dotted keys."""
    found = flatten({key: config[key] for key in _KEYS if config.get(key) is not None})
    return {"dataset": "data", "model": "model"} | found


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return a text that equal configurations share."""
    return json.dumps(config, sort_keys=True, default=str)


def title(problem: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Return data set and model in the paper's spelling, and the keys that differ from the others.

    >>> one, two = ({"dataset": "digits", "model": "mlp", "alpha": alpha} for alpha in (0.1, 1.0))
    >>> title(one, [one, two])
    'Digits & MLP, alpha 0.1'
    """
    same = [o for o in others if all(o[key] == problem[key] for key in ("dataset", "model"))]
    keys = {key: None for other in same for key in other}
    apart = [key for key in keys if any(o.get(key) != problem.get(key) for o in same)]
    names = f"{_paper_name(problem['dataset'])} & {_paper_name(problem['model'])}"
    return names + "".join(f", {key} {problem.get(key, 'none')}" for key in apart)


def _paper_name(part: object) -> str:
    text = str(part)
    return _PAPER_NAMES.get(text.lower().replace("-", "").replace("_", ""), text)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
