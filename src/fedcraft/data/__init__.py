"""Data sets, partitioners, federations, and their tensors.

>>> federation = federate(load("digits"), "dirichlet", clients=20, alpha=0.1, seed=7)
>>> len(federation), int(federation.sizes("train").min()) >= 16
(20, True)
"""

from fedcraft.data.batches import Tensors, crop_flip
from fedcraft.data.dataset import Dataset, from_arrays, from_torch
from fedcraft.data.federation import Client, Federation, federate
from fedcraft.data.loading import Source, load, sources
from fedcraft.data.partition import (
    Partition,
    dirichlet,
    iid,
    make_partition,
    natural,
    partitioners,
    quantity,
    shards,
)
from fedcraft.data.ragged import Ragged
from fedcraft.data.table import from_table

__all__ = [
    "Client",
    "Dataset",
    "Federation",
    "Partition",
    "Ragged",
    "Source",
    "Tensors",
    "crop_flip",
    "dirichlet",
    "federate",
    "from_arrays",
    "from_table",
    "from_torch",
    "iid",
    "load",
    "make_partition",
    "natural",
    "partitioners",
    "quantity",
    "shards",
    "sources",
]
