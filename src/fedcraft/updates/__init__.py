"""``Layout`` (the layers of a flat vector) and ``Updates`` (the m x d matrix with its clients)."""

from fedcraft.updates.buffers import BufferPolicy, merge_buffers
from fedcraft.updates.layout import Grouping, Layer, Layout, TensorSlot, require_materialized
from fedcraft.updates.reading import float_tensor, numbers, whole_number
from fedcraft.updates.round_context import RoundContext
from fedcraft.updates.updates import ClientId, Updates, as_layout, client_order

__all__ = [
    "BufferPolicy",
    "ClientId",
    "Grouping",
    "Layer",
    "Layout",
    "RoundContext",
    "TensorSlot",
    "Updates",
    "as_layout",
    "client_order",
    "float_tensor",
    "merge_buffers",
    "numbers",
    "require_materialized",
    "whole_number",
]
