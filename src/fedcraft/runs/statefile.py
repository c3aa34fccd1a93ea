"""A nested state (tensors and plain values) as one safetensors and one JSON file. Never pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedcraft.atomic import sha256_of, sync
from fedcraft.errors import CheckpointError

_FORMAT = 1
_KIND = "fedcraft state"
_TENSORS = "state.safetensors"
_TREE = "state.json"


def write_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Write ``state`` into an existing directory and force it to the disk.

    Dictionaries (string or integer keys), lists, tuples, numbers, strings, None, tensors and numpy
    arrays are kept unchanged; anything else is a ``CheckpointError``. Cost: one pass to write and
    one to hash.
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors, "state")
    save_file(_separate(tensors), directory / _TENSORS)
    sync(directory / _TENSORS)
    body = {"kind": _KIND, "format": _FORMAT, "tree": tree, "tensors": _seal(directory / _TENSORS)}
    text = json.dumps({"checksum": _digest(body), "body": body})
    (directory / _TREE).write_text(text, encoding="utf-8")
    sync(directory / _TREE)


def read_state(directory: Path) -> dict[str, Any]:
    """Read what :func:`write_state` wrote; an error names a missing, damaged or other file."""
    body = _read_body(directory / _TREE)
    path = directory / _TENSORS
    try:
        found = _seal(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    if found != body["tensors"]:
        wanted = body["tensors"]
        raise CheckpointError(
            f"{path} is damaged: expected {wanted['bytes']} bytes of SHA-256 "
            f"{wanted['sha256'][:12]}, found {found['bytes']} of {found['sha256'][:12]}"
        )
    try:
        # Fresh memory, aligned as torch aligns its own: the bits of a dot product can depend on it.
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError, RuntimeError) as error:  # torch's, for a file just deleted
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    state: dict[str, Any] = _decode(body["tree"], tensors)
    return state


def _read_body(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        checksum, body = content["checksum"], content["body"]
        kind, version = body["kind"], body["format"]
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is truncated or not a fedcraft state") from error
    if kind != _KIND or version != _FORMAT:
        raise CheckpointError(
            f"{path}: expected a {_KIND!r} of format {_FORMAT}, found {kind!r} of {version!r}"
        )
    if _digest(body) != checksum:
        raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
    checked: dict[str, Any] = body
    return checked


def _encode(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor):
        return {"$tensor": _stash(value, tensors)}
    if isinstance(value, np.ndarray):
        return {"$array": _stash(torch.from_numpy(np.ascontiguousarray(value)), tensors)}
    if isinstance(value, Mapping):
        return {"$items": [_item(key, value[key], tensors, where) for key in value]}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    raise CheckpointError(f"{where}: a {type(value).__name__} cannot be saved in a state")


def _item(key: object, value: Any, tensors: dict[str, Tensor], where: str) -> list[Any]:
    return [_key(key, where), _encode(value, tensors, f"{where}[{key!r}]")]


def _key(key: object, where: str) -> str | int:
    if isinstance(key, (str, int)) and not isinstance(key, bool):
        return key
    raise CheckpointError(f"{where}: keys must be strings or integers, found {key!r}")


def _stash(tensor: Tensor, tensors: dict[str, Tensor]) -> str:
    name = f"t{len(tensors)}"
    tensors[name] = tensor.detach().cpu().contiguous()
    return name


def _decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    ((mark, content),) = node.items()
    if mark == "$tensor":
        return tensors[content]
    if mark == "$array":
        return tensors[content].numpy()
    if mark == "$tuple":
        return tuple(_decode(item, tensors) for item in content)
    return {key: _decode(value, tensors) for key, value in content}


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Clone what shares memory with another tensor: safetensors refuses to save it twice."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        partial = storage.nbytes() != tensor.numel() * tensor.element_size()
        shared = partial or storage.data_ptr() in seen
        separate[name] = tensor.clone() if shared else tensor
        seen.add(separate[name].untyped_storage().data_ptr())
    return separate


def _seal(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
