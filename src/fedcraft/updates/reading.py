"""Reads arguments as numbers; errors name the argument that is not."""

from __future__ import annotations

import reprlib
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedcraft.errors import InputError

_FLOATS = ("float32", "float64", "torch.float32", "torch.float64")
_NUMERIC = "biuf"


def numbers(name: str, values: object) -> Tensor:
    """Return the argument ``name`` as a float64 tensor on the CPU.

    >>> numbers("weights", [1, 2])
    tensor([1., 2.], dtype=torch.float64)
    """
    try:
        if isinstance(values, np.ndarray):
            return _from_numpy(values)
        return torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(f"{name}: expected numbers, found {reprlib.repr(values)}") from error


def _from_numpy(array: npt.NDArray[np.generic]) -> Tensor:
    if array.dtype.kind not in _NUMERIC:
        raise TypeError  # numpy would read None as NaN and text as numbers
    return torch.from_numpy(np.array(array, dtype=np.float64, order="C"))


def whole_number(name: str, value: object) -> int:
    """Return one of the argument's entries as an int; 2.0 is whole, 2.5 is an error."""
    single = isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1)
    plain = value.item() if single else value  # type: ignore[attr-defined]
    if isinstance(plain, float) and plain.is_integer():
        return int(plain)
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise InputError(f"{name}: expected whole numbers, found {plain!r}")
    return plain


def float_tensor(name: str, given: object) -> Tensor:
    """View a tensor or array of float32 or float64 as a tensor, to be read only."""
    if not isinstance(given, Tensor | np.ndarray):
        kind = type(given).__name__
        raise InputError(f"{name}: expected a torch tensor or a numpy array, found {kind}")
    if str(given.dtype) not in _FLOATS:  # another byte order has another name
        raise InputError(f"{name}: expected float32 or float64, found {given.dtype}; cast first")
    if not isinstance(given, Tensor):
        return array_view(given)
    if given.layout is not torch.strided:
        raise InputError(
            f"{name}: expected a dense tensor, found {given.layout}; call .to_dense() first"
        )
    if given.is_meta:
        raise InputError(f"{name}: expected numbers, found a meta tensor, which holds none")
    return given.detach()


def array_view(array: npt.NDArray[Any]) -> Tensor:
    """Wrap an array without a copy, to be read only: torch warns about read-only memory."""
    if any(stride < 0 for stride in array.strides):  # torch has no such views
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
