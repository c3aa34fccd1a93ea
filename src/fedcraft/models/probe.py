"""Checks a model once before training: its outputs, and hidden state."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from fedcraft.errors import ConfigError
from fedcraft.models.factory import seeded
from fedcraft.updates import require_materialized

_SAMPLES = 2  # BatchNorm cannot train on one
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))  # parameters, buffers, hooks, training


def require_logits(
    name: str, module: nn.Module, *, input_shape: Sequence[int], classes: int
) -> None:
    """Raise ``ConfigError`` unless the model gives one row of logits per sample.

    A copy is called, in training and in evaluation mode: the model, its buffers and the random
    streams are not changed.
    """
    require_materialized(f"model {name!r}", module)
    _require_copyable(name, module)
    inputs = torch.zeros(_SAMPLES, *input_shape)
    tried = copy.deepcopy(module)
    expected = f"a tensor of shape ({_SAMPLES}, {classes}), a logit for each of {classes} classes"
    for training in (True, False):
        found = _found(tried.train(training), inputs, classes)
        if found:
            raise ConfigError(
                f"model {name!r}: given a batch of shape {tuple(inputs.shape)}, expected {expected}"
                f", found {found}"
            )


def _require_copyable(name: str, module: nn.Module) -> None:
    """Refuse tensors that a hook computes, as the old weight_norm and spectral_norm do."""
    for path, part in module.named_modules():
        for key, value in vars(part).items():
            if isinstance(value, Tensor) and not value.is_leaf:
                raise ConfigError(
                    f"model {name!r}: {f'{path}.{key}' if path else key} is computed from other "
                    "parameters and cannot be copied. Use the form of weight_norm or spectral_norm "
                    "in torch.nn.utils.parametrizations, which can"
                )


def _found(module: nn.Module, inputs: Tensor, classes: int) -> str:
    """Describe an output that is not logits; return nothing for logits."""
    try:
        with torch.no_grad(), seeded(0):
            outputs = module(inputs)
    except Exception as error:  # user code may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    if not isinstance(outputs, Tensor):
        return f"a {type(outputs).__name__}"
    fits = outputs.ndim == 2 and len(outputs) == len(inputs) and outputs.shape[1] >= classes
    return "" if fits else f"one of shape {tuple(outputs.shape)}"


def warn_of_python_state(module: nn.Module, inputs: Tensor) -> None:
    """Warn if calls of the model change Python attributes: a run neither saves nor shares them.

    A copy is called. The comparison covers numbers, texts, tensors, and lists, tuples and
    dictionaries of them, but not state in other objects or outside the module.
    """
    tried = None
    with suppress(Exception), torch.no_grad(), seeded(0):  # training raises the error itself
        tried = copy.deepcopy(module).train()
        for _ in range(2):
            tried(inputs)
    changed = [] if tried is None else sorted(_changed(module, tried))
    if changed:
        warnings.warn(
            f"model: calling it changes {', '.join(changed)}, which is not a parameter or a buffer."
            " A run neither saves it in checkpoints nor shares it between worker processes, so the "
            "result can depend on the number of workers and on interruptions. Keep it in a buffer "
            "(register_buffer) if later calls depend on it",
            stacklevel=2,
        )


def _changed(before: nn.Module, after: nn.Module) -> Iterator[str]:
    for (name, old), (_, new) in zip(before.named_modules(), after.named_modules(), strict=False):
        for key, value in vars(new).items():
            if key not in _OF_EVERY_MODULE and not _same(vars(old).get(key), value):
                yield f"{name}.{key}" if name else key


def _same(old: Any, new: Any) -> bool:
    if type(old) is not type(new):
        return False
    if isinstance(old, Tensor):
        return old.shape == new.shape and bool((old == new).all())
    if isinstance(old, Mapping):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    return not isinstance(old, (bool, int, float, str, bytes)) or old == new
