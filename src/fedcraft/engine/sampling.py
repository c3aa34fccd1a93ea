"""Draws the clients that take part in a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcraft.config.settings import Settings
from fedcraft.errors import ConfigError
from fedcraft.seeds import generator


class SampledClients(NamedTuple):
    """The clients of a round, in the order of their ids: those that answer, those that do not."""

    present: NDArray[np.int64]
    absent: NDArray[np.int64]


Sampler = Callable[[Settings, int, int], SampledClients]
"""(settings, number of clients, round index) -> participants; a pure function."""


def draw_clients(settings: Settings, clients: int, round_index: int) -> SampledClients:
    """Draw S_t uniformly without replacement, and from it those that drop out.

    The two draws have separate streams, so the cohort does not depend on the dropout rate. Cost:
    O(m) memory for m much smaller than N.
    """
    if settings.clients_per_round > clients:
        raise ConfigError(
            f"clients_per_round: expected at most the {clients} clients of the federation, found "
            f"{settings.clients_per_round}"
        )
    draw = generator(settings.seed, "cohort", round_index)
    cohort = np.sort(draw.choice(clients, settings.clients_per_round, replace=False))
    return after_dropout(cohort, settings.dropout, settings.seed, round_index)


def after_dropout(
    cohort: NDArray[np.int64], dropout: float, seed: int, round_index: int
) -> SampledClients:
    """Draw those of a cohort that drop out."""
    lot = generator(seed, "absence", round_index).random(cohort.size)
    return SampledClients(cohort[lot >= dropout], cohort[lot < dropout])
