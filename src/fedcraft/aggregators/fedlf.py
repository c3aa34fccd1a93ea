"""FedLF: a direction that serves every client in every layer, and evens losses out."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from fedcraft.aggregators.base import Aggregator, Outcome
from fedcraft.aggregators.cohort import Cohort
from fedcraft.aggregators.combination import Combination, uniform_mean
from fedcraft.aggregators.even_losses import even_losses, rescale_factor, with_care
from fedcraft.aggregators.uploads import Uploads, earlier_part, joint_grams, precise_joint_gram
from fedcraft.linalg import scaled_grams
from fedcraft.linalg.minnorm import min_norm_weights


class FedLF(Aggregator):
    """Layer-wise fair federated learning (Pan et al. 2024). For every layer q::

        d^q = argmin ||v||  over v in the hull of  {mu g_i^q / ||g_i^q||},  mu = mean_i ||g_i^q||,

    and of the fair row sum_i h_i g_i^q / ||g_i^q|| brought to length mu, where h turns the losses
    towards equal ones. Then g_t = d ||mean_i g_i|| / ||d|| over the whole model. By the min-norm
    property no client conflicts with any layer of d.

    The caller chooses the layers; in the released code every parameter tensor is one. Its clients
    send exact gradients at theta_t; every operation here is scale-equivariant: updates work too.

    * ``history=True`` also puts earlier uploads into the hulls: with A clients seen before this
      round and A > m, those of absent clients from the last A // m rounds. Only uploads that can
      still enter are kept (for cohorts of constant size), which may come close to one for every
      client when few take part in a round.

    Zero rows of a layer are left out of its hull and of mu; a layer without rows, or with zero in
    its hull, does not move. There is no fair row when losses are equal: the released code
    normalises rounding noise there. A single client gets its own update. Cost O(m^2 d) and Q small
    quadratic programs.
    """

    needs = frozenset({"losses"})

    def __init__(self, *, history: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.history = history

    def direction(self, cohort: Cohort) -> Outcome:
        absent = self._absent(cohort)
        fair = even_losses(cast(Tensor, cohort.losses))
        grams = enumerate(joint_grams(cohort, absent))
        rows = torch.stack([_layer_point(cohort, absent, fair, *pair) for pair in grams])
        if self.history:
            self._remember(cohort)
        rest = earlier_part(absent, rows[:, cohort.size :], cohort.layout.slices)
        return _rescaled(Combination.of(cohort, rows[:, : cohort.size], rest))

    def _absent(self, cohort: Cohort) -> Tensor | None:
        """Return the uploads of absent clients that are recent enough, if any."""
        seen = len(self.memory.get("seen", ()))
        if not self.history or seen <= cohort.size:
            return None
        number = self.memory["round"] + 1
        recent = Uploads.load(self.memory).since(number - seen // cohort.size)
        return recent.without(cohort.client_ids).rows

    def _remember(self, cohort: Cohort) -> None:
        number = self.memory.get("round", 0) + 1
        seen = list(dict.fromkeys([*self.memory.get("seen", ()), *cohort.client_ids]))
        oldest = number + 1 - len(seen) // cohort.size
        kept = Uploads.load(self.memory).since(oldest)
        kept = kept.add(cohort.client_ids, cohort.matrix, number)
        self.memory = {"round": number, "seen": seen, **kept.dump()}


def _rescaled(point: Combination) -> Outcome:
    """Give d the length of the mean update, unless a client conflicts with it."""
    length = point.length()
    norms = point.cohort.square_norms.sum(0).sqrt() * length
    cosines = point.dots().sum(0) / norms.clamp(min=torch.finfo(norms.dtype).tiny)
    factor = rescale_factor(length, uniform_mean(point.cohort).length(), cosines)
    return Outcome(point.vector(factor))


def _layer_point(
    cohort: Cohort, absent: Tensor | None, fair: Tensor | None, layer: int, gram: Tensor
) -> Tensor:
    """Return d^q as coefficients on this round's rows and then the absent ones."""
    return with_care(
        cohort.dtype,
        gram,
        lambda: precise_joint_gram(cohort, absent, layer),
        lambda known, shortest: _hull_point(known, cohort.size, fair, shortest),
    )


def _hull_point(
    gram: Tensor, clients: int, fair: Tensor | None, shortest: float
) -> tuple[Tensor, bool]:
    """Return d^q on the rows behind ``gram``: the clients' first, then history.

    Lengths below the square root of ``shortest`` are rounding noise and count as zero: then False.
    """
    norms = gram.diagonal().clamp(min=0).sqrt()
    used = torch.nonzero(norms > 0).flatten()
    active = used[used < clients]
    coefficients = torch.zeros_like(norms)
    if len(active) == 0:
        return coefficients, True
    unit = 1 / norms[used]
    kernel = scaled_grams(gram[used][:, used], unit)
    corners = torch.eye(len(used), dtype=torch.float64)
    balanced = True
    if fair is not None:
        row = _fair_row(fair[active], kernel, shortest)
        balanced = row is not None
        corners = corners if row is None else torch.cat([corners, row.unsqueeze(0)])
    weights = min_norm_weights(corners @ kernel @ corners.T) @ corners
    long_enough = bool(weights @ kernel @ weights > shortest)
    if long_enough:
        coefficients[used] = norms[active].mean() * weights * unit
    return coefficients, balanced and long_enough


def _fair_row(fair: Tensor, kernel: Tensor, shortest: float) -> Tensor | None:
    row = torch.zeros(len(kernel), dtype=torch.float64)
    row[: len(fair)] = fair
    square = row @ kernel @ row
    return None if square <= shortest * len(fair) else row / square.sqrt()
