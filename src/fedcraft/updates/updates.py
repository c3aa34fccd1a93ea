"""The m x d matrix of a round's client updates, with its layers, clients and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedcraft.errors import InputError
from fedcraft.updates.layout import Grouping, Layout
from fedcraft.updates.reading import float_tensor, numbers

ClientId = int | str


def client_order(client: ClientId) -> tuple[bool, int, str]:
    """Sort numbers by value and before names."""
    return (True, 0, client) if isinstance(client, str) else (False, int(client), "")


@dataclass(frozen=True)
class Updates:
    """Row i is g_i = theta_t - theta_i, client i's displacement (eq. 3.3 of the paper).

    ``matrix`` is (m, d), float32 or float64; ``weights`` are raw (data sizes), one per client.
    """

    matrix: Tensor
    layout: Layout
    client_ids: tuple[ClientId, ...]
    weights: Tensor

    @classmethod
    def from_arrays(
        cls,
        matrix: Tensor | npt.NDArray[np.floating],
        *,
        layers: Layout | Sequence[int] | None = None,
        client_ids: Sequence[ClientId] | None = None,
        weights: Sequence[float] | Tensor | npt.NDArray[np.floating] | None = None,
    ) -> Updates:
        """Wrap rows that are updates already; the data are not copied."""
        rows = float_tensor("matrix", matrix)
        if rows.ndim != 2:
            raise InputError(f"matrix: expected (clients, coordinates), found {tuple(rows.shape)}")
        count, dimension = rows.shape
        layout = as_layout(layers, dimension)
        ids = tuple(client_ids) if client_ids is not None else tuple(range(count))
        raw = torch.ones(count) if weights is None else numbers("weights", weights)
        return cls(rows, layout, ids, raw.to(torch.float64))

    @classmethod
    def from_modules(
        cls,
        broadcast: nn.Module,
        clients: Sequence[nn.Module],
        *,
        group: Grouping = "layer",
        client_ids: Sequence[ClientId] | None = None,
        weights: Sequence[float] | None = None,
    ) -> Updates:
        """Make rows theta_t - theta_i from the broadcast module and the trained ones."""
        layout = Layout.from_module(broadcast, group)
        return cls.from_state_dicts(
            [dict(client.named_parameters()) for client in clients],
            layout=layout,
            broadcast=dict(broadcast.named_parameters()),
            client_ids=client_ids,
            weights=weights,
        )

    @classmethod
    def from_state_dicts(
        cls,
        clients: Sequence[Mapping[str, Tensor]],
        *,
        layout: Layout,
        broadcast: Mapping[str, Tensor] | None = None,
        client_ids: Sequence[ClientId] | None = None,
        weights: Sequence[float] | None = None,
    ) -> Updates:
        """Make rows from state dicts: models when ``broadcast`` is given, else updates.

        ``fedcraft.aggregate_files`` is for models in files.
        """
        if not clients:
            raise InputError("clients: expected at least one state dict, found none")
        rows = torch.stack([layout.flatten(client) for client in clients])
        if broadcast is not None:
            rows = torch.sub(layout.flatten(broadcast), rows)
        return cls.from_arrays(rows, layers=layout, client_ids=client_ids, weights=weights)


def as_layout(layers: object, dimension: int) -> Layout:
    """Read a ``layers`` argument: a Layout, sizes, slices, or None for the whole vector."""
    if layers is None:
        return Layout.whole(dimension)
    layout = layers if isinstance(layers, Layout) else _layout_from_sequence(layers, dimension)
    if layout.dimension != dimension:
        raise InputError(
            f"layers: they add up to {layout.dimension} coordinates, but the updates have "
            f"{dimension}; give sizes whose sum is {dimension}"
        )
    return layout


def _layout_from_sequence(layers: object, dimension: int) -> Layout:
    if not isinstance(layers, (Sequence, np.ndarray, Tensor)) or isinstance(layers, str):
        raise InputError(
            f"layers: expected a Layout, sizes or slices, found {type(layers).__name__}"
        )
    items = list(layers)
    if items and (isinstance(items[0], slice) or np.ndim(items[0]) == 1):
        return Layout.from_slices(items, dimension)
    return Layout.from_sizes(items)
