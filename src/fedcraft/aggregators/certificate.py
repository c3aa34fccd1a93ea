"""The certificate of a round: what the step did to every client, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.cohort import Cohort
from fedcraft.updates import ClientId

__all__ = ["MEASURABLE", "Certificate", "Correction", "certify"]

MEASURABLE = 1e-6
"""The shortest row that has a direction; CRAFT's default tau."""

_WHOLE = "all"
_ROUNDINGS = 16  # a product this many eps times its factors below zero is not rounding


@dataclass(frozen=True)
class Correction:
    """What a projecting rule knows beyond its direction (CRAFT, ConFIG).

    One row for every layer; a single one where the rule projects the whole vector.
    """

    targets: Tensor  # (Q, m): rho-bar, 0 for inactive rows
    active: Tensor  # (Q, m) bool
    rank: Tensor  # (Q,) int
    norm: Tensor  # (Q,): ||Delta^q||
    one_sided: bool = False


@dataclass(frozen=True)
class Certificate:
    """Alignment of the step g with every client, by layer (Q rows) and for the whole model.

    ``alignment[q, i]`` is <u_i^q, g^q> with the unit update u_i; ``cosine`` divides by ||g^q||.
    A client is in conflict when <g_i, g> < 0 (section 3.2), unless its update is too short to have
    a direction: a layer counts the rows of the numerical active set (appendix B.3), the whole model
    those ``judged``: active in some layer, or not shorter than 1e-6 in all. "< 0" means a
    cosine below -``rounding``, 16 eps of the updates' dtype: a product that should vanish has a
    sign too. Zero rows have alignment 0.

    ``residual`` ||U g - rho||, ``rank`` and ``correction_norm`` tell how a projecting rule met its
    targets. A rule that projects the whole vector has no targets by layer: its layers have rank 0
    and NaN for the rest, and only the ``overall_...`` numbers are measured. All are zero for rules
    that have no targets.
    """

    client_ids: tuple[ClientId, ...]
    layers: tuple[str, ...]
    alignment: Tensor
    cosine: Tensor
    overall_alignment: Tensor
    overall_cosine: Tensor
    conflicts_average: Tensor
    conflicts_reference: Tensor
    conflicts_after: Tensor
    overall_conflicts_average: int
    overall_conflicts_reference: int
    overall_conflicts_after: int
    active: Tensor
    judged: Tensor
    residual: Tensor
    rank: Tensor
    correction_norm: Tensor
    overall_residual: float
    overall_rank: int
    overall_correction_norm: float
    update_norm: float
    dropped: tuple[ClientId, ...] = ()
    rounding: float = 0.0

    @property
    def conflict_free(self) -> bool:
        """True when no client is in conflict with the whole step."""
        return self.overall_conflicts_after == 0

    def conflicting_clients(self) -> tuple[ClientId, ...]:
        """Name the clients whose update points against the whole step."""
        against = (self.overall_cosine < -self.rounding) & self.judged
        return tuple(self.client_ids[i] for i in torch.nonzero(against).flatten().tolist())

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per layer and one, ``all``, for the whole model, for a table.

        A single layer is the whole model and has no row beside it. Among several, one that is
        called ``all`` itself (a module's own parameters) goes by ``layer all``.
        """
        names = [f"layer {name}" if name == _WHOLE else name for name in self.layers]
        layers = [self._row(index, name) for index, name in enumerate(names)]
        return [*(layers if len(layers) > 1 else []), self._overall_row()]

    def _row(self, index: int, name: str) -> dict[str, Any]:
        active = self.active[index]
        cosine = _of_the_active(self.cosine[index], active)
        return {
            "layer": name,
            "min_cosine": float(cosine.min()),
            "mean_cosine": float(cosine.mean()),
            "conflicts_average": int(self.conflicts_average[index]),
            "conflicts_reference": int(self.conflicts_reference[index]),
            "conflicts_after": int(self.conflicts_after[index]),
            "residual": float(self.residual[index]),
            "rank": int(self.rank[index]),
            "active": int(active.sum()),
            "correction_norm": float(self.correction_norm[index]),
        }

    def _overall_row(self) -> dict[str, Any]:
        cosine = _of_the_active(self.overall_cosine, self.judged)
        return {
            "layer": _WHOLE,
            "min_cosine": float(cosine.min()),
            "mean_cosine": float(cosine.mean()),
            "conflicts_average": self.overall_conflicts_average,
            "conflicts_reference": self.overall_conflicts_reference,
            "conflicts_after": self.overall_conflicts_after,
            "residual": self.overall_residual,
            "rank": self.overall_rank,
            "active": int(self.judged.sum()),
            "correction_norm": self.overall_correction_norm,
        }


def certify(
    cohort: Cohort,
    dots: Tensor,
    square_lengths: Tensor,
    *,
    reference_dots: Tensor | None = None,
    correction: Correction | None = None,
) -> Certificate:
    """Build a certificate from <x_i^q, g^q> (Q, m) and ||g^q||^2 (Q,).

    ``reference_dots`` (Q, m) are products with a reference whose layers have length one.
    """
    layer_norms = cohort.square_norms.sqrt()
    alignment = _safe_divide(dots, layer_norms)
    overall = _safe_divide(dots.sum(0), cohort.square_norms.sum(0).sqrt())
    length = float(square_lengths.sum().sqrt())
    # The average is a rounded sum: its products are as rough as those with its longest term.
    average, terms = cohort.average_dots(), (layer_norms @ cohort.weights).square()
    reference = torch.zeros_like(dots) if reference_dots is None else reference_dots
    active = _active(layer_norms, correction)
    rounding = _ROUNDINGS * torch.finfo(cohort.matrix.dtype).eps
    judged = active.any(dim=0) | (cohort.square_norms.sum(0).sqrt() >= MEASURABLE)
    judge = _Judge(cohort.square_norms, active, judged, rounding)
    before, overall_before = judge.conflicts(average, terms)
    start, overall_start = judge.conflicts(reference, torch.ones_like(square_lengths))
    after, overall_after = judge.conflicts(dots, square_lengths)
    return Certificate(
        client_ids=cohort.client_ids,
        layers=cohort.layout.names,
        alignment=alignment,
        cosine=_safe_divide(alignment, square_lengths.sqrt().unsqueeze(-1)),
        overall_alignment=overall,
        overall_cosine=_safe_divide(overall, torch.as_tensor(length, dtype=overall.dtype)),
        conflicts_average=before,
        conflicts_reference=start,
        conflicts_after=after,
        overall_conflicts_average=overall_before,
        overall_conflicts_reference=overall_start,
        overall_conflicts_after=overall_after,
        active=active,
        judged=judged,
        **vars(_fit(alignment, overall, correction)),
        update_norm=length,
        dropped=cohort.dropped,
        rounding=rounding,
    )


@dataclass(frozen=True)
class _Judge:
    """Counts the clients that a vector goes against by more than rounding."""

    squares: Tensor  # (Q, m): ||x_i^q||^2
    active: Tensor  # (Q, m) bool
    judged: Tensor  # (m,) bool
    rounding: float

    def conflicts(self, dots: Tensor, square_lengths: Tensor) -> tuple[Tensor, int]:
        """Count by layer and for the whole model, given <x_i^q, v^q> and ||v^q||^2."""
        layers = self._against(dots, self.squares, square_lengths.unsqueeze(-1)) & self.active
        whole = self._against(dots.sum(0), self.squares.sum(0), square_lengths.sum())
        return layers.sum(-1), int((whole & self.judged).sum())

    def _against(self, dots: Tensor, squares: Tensor, square_length: Tensor) -> Tensor:
        return dots < -self.rounding * squares.sqrt() * square_length.sqrt()


def _of_the_active(values: Tensor, active: Tensor) -> Tensor:
    return values[active] if bool(active.any()) else values


@dataclass(frozen=True)
class _Fit:
    """How a rule met its targets, by layer (Q,) and on the whole: fields of the certificate."""

    residual: Tensor
    rank: Tensor
    correction_norm: Tensor
    overall_residual: float = 0.0
    overall_rank: int = 0
    overall_correction_norm: float = 0.0


def _fit(alignment: Tensor, overall: Tensor, correction: Correction | None) -> _Fit:
    nothing = alignment.new_zeros(len(alignment))
    unranked = nothing.to(torch.int64)
    if correction is None:
        return _Fit(nothing, unranked, nothing)
    by_layer = len(correction.rank) == len(alignment)
    residual = _residual(alignment if by_layer else overall.unsqueeze(0), correction)
    whole = (
        float(torch.linalg.vector_norm(residual)),
        int(correction.rank.sum()),
        float(torch.linalg.vector_norm(correction.norm)),
    )
    if by_layer:
        return _Fit(residual, correction.rank, correction.norm, *whole)
    unmeasured = torch.full_like(nothing, torch.nan)
    return _Fit(unmeasured, unranked, unmeasured, *whole)


def _active(layer_norms: Tensor, correction: Correction | None) -> Tensor:
    if correction is not None and correction.active.shape == layer_norms.shape:
        return correction.active
    return layer_norms >= MEASURABLE


def _residual(alignment: Tensor, correction: Correction) -> Tensor:
    gap = (alignment - correction.targets) * correction.active
    if correction.one_sided:
        gap = gap.clamp(max=0)
    norms: Tensor = torch.linalg.vector_norm(gap, dim=-1)
    return norms


def _safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    return torch.where(denominator > 0, numerator / denominator, 0.0)
