"""The base of rules that turn Gram matrices into weights: g^q = sum_i w[q, i] g_i^q."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.combination import Combination
from fedcraft.linalg import unit_grams

_DOUBTFUL = 1e-2  # of a unit Gram matrix's smallest eigenvalue: float32 products lose digits below


class Weighted(Aggregator):
    """A rule that sees only the Gram matrices of the round and returns the clients' weights.

    ``by_layer=True`` applies the rule to every layer, ``False`` to the whole vector. A subclass
    implements ``weigh``, or ``weights`` if its layers are cheaper together or share what it
    remembers. Where updates nearly depend on each other, the Gram matrices of float32 updates are
    computed in float64.
    """

    def __init__(self, *, by_layer: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.by_layer = by_layer

    def weigh(self, gram: Tensor, cohort: Cohort) -> Tensor:
        """Return w (m,) for the Gram matrix (m, m) of a layer or of the whole vector."""
        raise NotImplementedError

    def weights(self, grams: Tensor, cohort: Cohort) -> Tensor:
        """Return w (Q, m) for Gram matrices (Q, m, m); Q is 1 for the whole vector."""
        return torch.stack([self.weigh(gram, cohort) for gram in grams])

    def direction(self, cohort: Cohort) -> Outcome:
        found = self.weights(self._grams(cohort), cohort)
        combination = Combination.of(cohort, found if self.by_layer else found[0])
        return Outcome(combination.vector())

    def _grams(self, cohort: Cohort) -> Tensor:
        grams = cohort.grams if self.by_layer else cohort.gram.unsqueeze(0)
        if cohort.dtype == torch.float64:
            return grams
        doubtful = torch.nonzero(_smallest(grams) < _DOUBTFUL).flatten().tolist()
        if not doubtful:
            return grams
        present = grams.diagonal(dim1=1, dim2=2) > 0
        grams = grams.clone()
        for index in doubtful:
            layers = [index] if self.by_layer else range(len(cohort.layout))
            precise = torch.stack([cohort.precise_gram(layer) for layer in layers]).sum(0)
            both = present[index].unsqueeze(-1) & present[index]
            grams[index] = torch.where(both, precise, 0)
        return grams


def _smallest(grams: Tensor) -> Tensor:
    """The smallest eigenvalue of each unit Gram matrix, without its zero rows, (Q,)."""
    kernels, inverse = unit_grams(grams)
    smallest: Tensor = torch.linalg.eigvalsh(kernels + torch.diag_embed((inverse == 0).to(kernels)))
    return smallest[:, 0]
