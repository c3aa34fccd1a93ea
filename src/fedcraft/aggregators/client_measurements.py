"""What each client of a round sent, and how far it steered the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.guards.agreement import others_cosines
from fedcraft.linalg import apply, ratio, rounding, unit_grams
from fedcraft.updates import ClientId


@dataclass(frozen=True, eq=False)
class ClientMeasurements:
    """One number per client of the round, those that a guard left out included.

    * ``weights``: the client's share of the round, capped if a guard caps it; 0 if left out.
    * ``norms``: ||g_i||.
    * ``agreement``: the cosine of its update with the mean of the *other* clients' unit updates,
      without those left out. Below zero the client pulls against the others. Honest clients with
      rare data do that too.
    * ``cosine`` and ``alignment``: cos(g_i, g) and <u_i, g> with the step g, NaN if left out.
    * ``influence``: ||g - g_{-i}|| / ||g||, how far the step would move without the client; NaN if
      left out, and for rules for which it is not known (see :func:`demand_influence`).
    """

    client_ids: tuple[ClientId, ...]
    weights: Tensor
    norms: Tensor
    agreement: Tensor
    cosine: Tensor
    alignment: Tensor
    influence: Tensor
    left_out: Mapping[ClientId, str]

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per client."""
        names = ("weights", "norms", "agreement", "cosine", "alignment", "influence")
        columns = [getattr(self, name).tolist() for name in names]
        labels = ("weight", "norm", *names[2:])
        rows = []
        for client, *values in zip(self.client_ids, *columns, strict=True):
            why = self.left_out.get(client, "")
            rows.append(
                {"client": client, **dict(zip(labels, values, strict=True)), "left_out": why}
            )
        return rows


@dataclass(frozen=True, eq=False)
class RoundProducts:
    """The m x m products of a round, from which the clients are measured when somebody asks."""

    client_ids: tuple[ClientId, ...]  # of the whole round
    gram: Tensor  # (m, m): of whole updates
    kept: Tensor  # (k,): the rows that the rule saw
    weights: Tensor  # (k,)
    grams: Tensor  # (Q, k, k): of the rows that the rule saw
    dots: Tensor  # (Q, k): with the step, at the rule's own length
    squares: Tensor  # (Q,): of the step, at the rule's own length
    reference_dots: Tensor | None  # (Q, k)
    averages: Tensor | None  # (k,): the weights, where the step is an average
    demands: bool  # the step meets targets
    dtype: torch.dtype

    def measure(
        self, cosine: Tensor, alignment: Tensor, lengths: Tensor, left_out: Mapping[ClientId, str]
    ) -> ClientMeasurements:
        """Measure the clients for a step with these ``lengths`` by layer, (Q,)."""
        count = len(self.client_ids)

        def spread(values: Tensor, missing: float = torch.nan) -> Tensor:
            found = torch.full((count,), missing, dtype=torch.float64)
            found[self.kept] = values
            return found

        votes = torch.zeros(count, dtype=torch.float64)
        votes[self.kept] = 1
        return ClientMeasurements(
            self.client_ids,
            spread(self.weights, 0.0),
            self.gram.diagonal().clamp(min=0).sqrt(),
            others_cosines(unit_grams(self.gram)[0], votes),
            spread(cosine),
            spread(alignment),
            spread(self._influence(lengths)),
            left_out,
        )

    def _influence(self, lengths: Tensor) -> Tensor:
        """||g - g_{-i}|| / ||g|| over all layers, (k,)."""
        if self.demands:
            moved = demand_influence(self.grams, self.dots, self.reference_dots, self.dtype)
        elif self.averages is not None:
            moved = average_influence(self.grams, self.averages, self.dots, self.squares)
        else:
            return torch.full_like(self.weights, torch.nan)
        share = ratio(lengths, self.squares.clamp(min=0).sqrt())
        whole = torch.linalg.vector_norm(lengths)
        if whole == 0:
            return torch.zeros_like(self.weights)
        influence: Tensor = torch.linalg.vector_norm(moved * share.unsqueeze(-1), dim=0) / whole
        return influence


def demand_influence(
    grams: Tensor, dots: Tensor, reference_dots: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """How far g = r + U^+ (rho - U r) moves if client i makes no demand, by layer, (Q, k).

    With K = U U^T and c = K^-1 (U g - U r), dropping the i-th equation moves the solution by
    |c_i| / sqrt((K^-1)_ii): the multiplier times the distance of u_i from the span of the others.
    Exact if the others keep their targets and, for one-sided demands, the same ones bind. A
    ridge of the size of rounding lets dependent rows share what either could explain. O(Q k^3).
    """
    kernel, inverse_norms = unit_grams(grams)
    wanted = inverse_norms * (dots if reference_dots is None else dots - reference_dots)
    ridge = rounding(dtype) + (inverse_norms == 0).to(kernel)  # one for zero rows
    inverse = torch.linalg.inv(kernel + torch.diag_embed(ridge))
    moved: Tensor = apply(inverse, wanted).abs() / inverse.diagonal(dim1=-2, dim2=-1).sqrt()
    return moved


def average_influence(grams: Tensor, weights: Tensor, dots: Tensor, squares: Tensor) -> Tensor:
    """How far g = sum_i w_i g_i moves without client i, by layer, (Q, k).

    The others' weights grow to sum to one: g - g_{-i} = w_i / (1 - w_i) (g_i - g).
    """
    apart = grams.diagonal(dim1=-2, dim2=-1) - 2 * dots + squares.unsqueeze(-1)
    rest = (1 - weights).clamp(min=torch.finfo(weights.dtype).eps)
    moved: Tensor = weights / rest * apart.clamp(min=0).sqrt()
    return torch.where(weights < 1, moved, squares.clamp(min=0).sqrt().unsqueeze(-1))
