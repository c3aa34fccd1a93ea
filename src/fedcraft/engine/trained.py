"""The result of :func:`fedcraft.engine.run`: the model and its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedcraft.errors import DataError
from fedcraft.metrics.scores import Scores


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model of a run, how it ended, its records and its clients' last scores.

    ``vector`` is the flat model that was evaluated (the average of the iterates for AFL),
    ``tensors`` the same by parameter name, buffers included. ``metrics`` are the records of
    metrics.jsonl, ``scores`` the last evaluation of every client by split, ``client_names`` the
    names of the owners behind the clients, if the data have any.
    """

    state: str
    reason: str
    round: int
    vector: Tensor
    tensors: Mapping[str, Tensor]
    metrics: list[dict[str, Any]]
    scores: Mapping[str, Scores]
    executor: str
    directory: Path | None = None
    client_names: tuple[str, ...] = ()

    @property
    def evaluation(self) -> dict[str, float]:
        """The last evaluation: mean, std, best10, worst10 and so on."""
        found = [row["evaluation"] for row in self.metrics if row.get("evaluation")]
        return dict(found[-1]) if found else {}

    def clients(self, split: str = "test") -> dict[str, NDArray[np.generic]]:
        """Return the last scores as columns, ready for a data frame."""
        if split not in self.scores:
            raise DataError(
                f"split: expected one with samples that were scored, {sorted(self.scores)}, found "
                f"{split!r}; give the federation {split} data, or ask for another split"
            )
        score = self.scores[split]
        columns: dict[str, NDArray[np.generic]] = {
            "client": score.clients,
            "accuracy": score.accuracy,
            "loss": score.loss,
            "n": score.samples,
        }
        if self.client_names:
            columns["name"] = np.array(self.client_names)[score.clients]
        return columns
