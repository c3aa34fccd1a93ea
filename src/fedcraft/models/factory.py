"""Models by name or import path, initialised from their own random stream."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedcraft.errors import ConfigError, InputError
from fedcraft.models.norms import has_batchnorm
from fedcraft.registry import find, require_known
from fedcraft.seeds import torch_generator

Factory = Callable[..., nn.Module]

_FACTORIES = {
    "cnn": "fedcraft.models.cnn:cnn",
    "mlp": "fedcraft.models.mlp:mlp",
    "resnet20": "fedcraft.models.resnet:resnet20",
    "resnet56": "fedcraft.models.resnet:resnet56",
    "resnet110": "fedcraft.models.resnet:resnet110",
}


def models() -> tuple[str, ...]:
    """Return the names that :func:`build` knows."""
    return tuple(_FACTORIES)


def build(
    name: str | Factory, *, input_shape: Sequence[int], classes: int, seed: int = 0, **params: Any
) -> nn.Module:
    """Return a freshly initialised model; the same seed gives the same bits.

    ``name`` is one of :func:`models`, or ``"package.module:Name"``: a custom module class or
    factory, called with ``params`` and with ``input_shape`` and ``classes`` if it takes them. The
    global random state is restored.

    >>> sum(p.numel() for p in build("mlp", input_shape=(784,), classes=62).parameters())
    209662
    """
    if classes < 1 or not input_shape or min(input_shape) < 1:
        raise InputError(
            "classes and every side of input_shape must be at least 1, but they are "
            f"{classes} and {tuple(input_shape)}"
        )
    if isinstance(name, str):
        factory = find_model(name)
    else:
        factory, name = name, getattr(name, "__name__", type(name).__name__)
    parameters = inspect.signature(factory).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    given = {"input_shape": tuple(input_shape), "classes": classes}
    accepted = {key: value for key, value in given.items() if takes_any or key in parameters}
    arguments = accepted | params
    if not takes_any:
        taken = set(parameters) - set(given)
        require_known(f"model_options: the model {name!r}", params, taken, ConfigError)
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"model {name!r} cannot be called with {sorted(arguments)}: {error}; its signature is "
            f"{inspect.signature(factory)}"
        ) from error
    with seeded(torch_generator(seed, "model").initial_seed()):
        return _checked(name, factory(**arguments))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generators inside the block and restore them after.

    For code that cannot take a generator: initialisation and dropout. Those of GPUs are touched
    only in processes that use one.
    """
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = list(range(torch.cuda.device_count())) if used else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed_all(seed)
        yield


def find_model(name: str) -> Factory:
    """Return the factory of the model ``name``: of :func:`models`, or ``package.module:Name``."""
    found: Factory = find("model", _FACTORIES, name)
    if not callable(found) or isinstance(found, nn.Module):  # every module can be called
        raise ConfigError(
            f"model: {name!r} must be a class or function that makes a module, but it is an object "
            f"of {type(found).__name__}"
        )
    return found


def _checked(name: str, module: object) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {name!r} must give an nn.Module, but gave {type(module)}")
    if has_batchnorm(module):
        warnings.warn(
            f"model {name!r} has BatchNorm, whose running statistics mix the clients' data; "
            "fedcraft.models.replace_batchnorm(module) swaps it for GroupNorm",
            stacklevel=3,
        )
    return module
