"""A check that a model turns samples into logits, made once before anything is trained."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedcraft.errors import ConfigError
from fedcraft.models.factory import seeded

_SAMPLES = 2  # BatchNorm cannot train on one


def require_logits(
    name: str, module: nn.Module, *, input_shape: Sequence[int], classes: int
) -> None:
    """Raise ``ConfigError`` unless the model gives one row of logits per sample.

    A copy is called, in training and in evaluation mode: the model, its buffers and the random
    streams stay as they are.
    """
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


def _found(module: nn.Module, inputs: Tensor, classes: int) -> str:
    """Return what comes out instead of logits; nothing if logits do."""
    try:
        with torch.no_grad(), seeded(0):
            outputs = module(inputs)
    except Exception as error:  # the user's own code may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    if not isinstance(outputs, Tensor):
        return f"a {type(outputs).__name__}"
    fits = outputs.ndim == 2 and len(outputs) == len(inputs) and outputs.shape[1] >= classes
    return "" if fits else f"one of shape {tuple(outputs.shape)}"
