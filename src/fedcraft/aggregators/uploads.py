"""Earlier uploads that a rule may still need: at most one per client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.linalg import block_grams
from fedcraft.updates import ClientId


@dataclass(frozen=True)
class Uploads:
    """The last upload of each of these clients, and the round it came from."""

    ids: tuple[ClientId, ...] = ()
    rounds: tuple[int, ...] = ()
    rows: Tensor | None = None  # (len(ids), d)

    @classmethod
    def received(cls, ids: Sequence[ClientId], rows: Tensor, round_number: int) -> Uploads:
        """Hold a round's uploads without copying them: the rows must not change."""
        return cls(tuple(ids), (round_number,) * len(ids), rows)

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Uploads:
        """Read what ``dump`` wrote; nothing gives an empty store."""
        rows = state.get("upload_rows")
        return cls(tuple(state.get("upload_ids", ())), tuple(state.get("upload_rounds", ())), rows)

    def dump(self) -> dict[str, Any]:
        """Return entries for a rule's memory: lists of plain values and one tensor."""
        entries = {"upload_ids": list(self.ids), "upload_rounds": list(self.rounds)}
        return entries if self.rows is None else {**entries, "upload_rows": self.rows}

    @staticmethod
    def forgotten(state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a rule's memory without what ``dump`` put there."""
        return {name: value for name, value in state.items() if not name.startswith("upload_")}

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, ids: Sequence[ClientId], rows: Tensor, round_number: int) -> Uploads:
        """Store a round's uploads (copied) in place of those clients' earlier ones."""
        new, kept = Uploads.received(ids, rows, round_number), self.without(ids)
        both = rows.clone() if kept.rows is None else torch.cat([kept.rows.to(rows), rows])
        return Uploads(kept.ids + new.ids, kept.rounds + new.rounds, both)

    def without(self, ids: Collection[ClientId]) -> Uploads:
        """Leave these clients out."""
        absent = set(ids)
        return self._where(lambda client, _: client not in absent)

    def since(self, round_number: int) -> Uploads:
        """Drop uploads from before this round."""
        return self._where(lambda _, stored: stored >= round_number)

    def of(self, round_number: int) -> Uploads:
        """Keep only the uploads of this round."""
        return self._where(lambda _, stored: stored == round_number)

    def _where(self, wanted: Callable[[ClientId, int], bool]) -> Uploads:
        pairs = zip(self.ids, self.rounds, strict=True)
        kept = [index for index, pair in enumerate(pairs) if wanted(*pair)]
        if len(kept) == len(self) or self.rows is None:
            return self
        if not kept:
            return Uploads()
        ids = tuple(self.ids[index] for index in kept)
        return Uploads(ids, tuple(self.rounds[index] for index in kept), self.rows[kept])


def earlier_part(
    rows: Tensor | None, coefficients: Tensor, slices: Sequence[slice]
) -> Tensor | None:
    """sum_i c[q, i] x_i^q of earlier rows, in float64, since this round's may cancel it.

    Works row by row, so that only the sum is held in float64.
    """
    if rows is None:
        return None
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row, weights in zip(rows, coefficients.T.tolist(), strict=True):
        for block, weight in zip(slices, weights, strict=True):
            if weight:
                total[block].add_(row[block].to("cpu"), alpha=weight)
    return total


def joint_grams(cohort: Cohort, earlier: Tensor | None) -> Tensor:
    """Gram matrices by layer of this round's rows followed by the earlier ones."""
    if earlier is None:
        return cohort.grams
    rows, slices = earlier.to(cohort.matrix), cohort.layout.slices
    blocks = [cohort.matrix[:, block] @ rows[:, block].T for block in slices]
    across = torch.stack(blocks).to("cpu", torch.float64)
    upper = torch.cat([cohort.grams, across], dim=2)
    lower = torch.cat([across.transpose(1, 2), block_grams(rows, slices)], dim=2)
    return torch.cat([upper, lower], dim=1)


def precise_joint_gram(cohort: Cohort, earlier: Tensor | None, layer: int) -> Tensor:
    """One layer of ``joint_grams``, multiplied in float64."""
    if earlier is None:
        return cohort.precise_gram(layer)
    columns = cohort.layout.slices[layer]
    both = [part[:, columns].to("cpu", torch.float64) for part in (cohort.matrix, earlier)]
    rows = torch.cat(both)
    return rows @ rows.T
