"""The certificate of a round: what the step did to every client, by layer and overall."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedcraft.aggregators.client_measurements import ClientMeasurements, RoundProducts
from fedcraft.aggregators.cohort import Cohort
from fedcraft.linalg import Projection, ratio, rounding
from fedcraft.updates import ClientId

MEASURABLE = 1e-6
"""Shorter rows have no direction; CRAFT's default tau."""

_WHOLE = "all"
_MOST_COSINES = 10_000


@dataclass(frozen=True, eq=False)
class Measurement:
    """The step g and the clients' updates, in one layer or in the whole model."""

    name: str
    alignment: Tensor  # (m,): <u_i, g> with the unit update u_i; 0 for a zero row
    cosine: Tensor  # (m,): alignment / ||g||
    active: Tensor  # (m,) bool: long enough to have a direction
    conflicts_average: int  # active clients that the plain weighted average goes against
    conflicts_reference: int  # those that the reference goes against
    conflicts_after: int  # those that the step goes against
    residual: float  # ||U g - rho|| over the active clients
    rank: int  # independent constraints
    correction_norm: float  # ||Delta||
    bounded: bool  # the limit on the correction's length acted
    update_norm: float  # ||g||

    @classmethod
    def of(cls, name: str, values: Iterable[Tensor]) -> Measurement:
        """Take the fields in their order; numbers become plain ones."""
        plain: Iterable[Any] = (value if value.ndim else value.item() for value in values)
        return cls(name, *plain)

    def row(self) -> dict[str, Any]:
        """Return plain values for a table; cosines are those of the active clients, if any."""
        cosine = self.cosine[self.active] if bool(self.active.any()) else self.cosine
        return {
            "layer": self.name,
            "min_cosine": float(cosine.min()),
            "mean_cosine": float(cosine.mean()),
            "conflicts_average": self.conflicts_average,
            "conflicts_reference": self.conflicts_reference,
            "conflicts_after": self.conflicts_after,
            "residual": self.residual,
            "rank": self.rank,
            "active": int(self.active.sum()),
            "correction_norm": self.correction_norm,
        }


@dataclass(frozen=True, eq=False)
class LayerMeasurements:
    """The fields of ``Measurement`` for all layers: one more axis, of length Q, in front.

    ``layers["fc1"]`` and ``layers[0]`` give one layer; iterating gives all of them.
    """

    names: tuple[str, ...]
    alignment: Tensor
    cosine: Tensor
    active: Tensor
    conflicts_average: Tensor
    conflicts_reference: Tensor
    conflicts_after: Tensor
    residual: Tensor
    rank: Tensor
    correction_norm: Tensor
    bounded: Tensor
    update_norm: Tensor

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Measurement]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, layer: int | str) -> Measurement:
        index = self.names.index(layer) if isinstance(layer, str) else layer
        values = (getattr(self, known.name)[index] for known in fields(self)[1:])
        return Measurement.of(self.names[index], values)


@dataclass(frozen=True, eq=False)
class Certificate:
    """What the step g does to every client: ``layers`` by layer, ``whole`` for the whole model.

    A client is in conflict when <g_i, g> < 0 (section 3.2), unless its update is too short to have
    a direction: a layer counts the rows of its numerical active set (appendix B.3), the whole model
    those that are active in some layer or not shorter than 1e-6 in all. "< 0" means a cosine below
    -``rounding``, 16 eps of the updates' dtype: a product that should be zero also has a sign.

    ``residual``, ``rank`` and ``correction_norm`` show how a projecting rule met its targets. A
    rule that projects the whole vector has no targets by layer: its layers have rank 0 and NaN for
    the rest. All are zero for rules that have no targets.

    ``left_out`` names the clients that a guard kept from the rule, each with the reason; all else
    is about the clients that the rule saw.
    """

    client_ids: tuple[ClientId, ...]
    layers: LayerMeasurements
    whole: Measurement
    dropped: tuple[ClientId, ...] = ()
    rounding: float = 0.0
    left_out: Mapping[ClientId, str] = field(default_factory=dict)
    products: RoundProducts | None = field(default=None, repr=False)

    @property
    def conflict_free(self) -> bool:
        """True when no client is in conflict with the whole step."""
        return self.whole.conflicts_after == 0

    @property
    def alignment(self) -> Tensor:
        """<u_i^q, g^q> for every layer and client, (Q, m)."""
        return self.layers.alignment

    @cached_property
    def clients(self) -> ClientMeasurements | None:
        """What each client sent and how far it steered the step; None without Gram matrices."""
        if self.products is None:
            return None
        lengths = self.layers.update_norm
        return self.products.measure(
            self.whole.cosine, self.whole.alignment, lengths, self.left_out
        )

    def conflicting_clients(self) -> tuple[ClientId, ...]:
        """Name the clients whose update points against the whole step."""
        against = (self.whole.cosine < -self.rounding) & self.whole.active
        return tuple(self.client_ids[i] for i in torch.nonzero(against).flatten().tolist())

    def conflicts(self) -> dict[str, int]:
        """Count the clients that the average, the reference and the step go against."""
        whole = self.whole
        counts = (whole.conflicts_average, whole.conflicts_reference, whole.conflicts_after)
        return dict(zip(("average", "reference", "after"), counts, strict=True))

    def client_rows(self, *, everybody: bool) -> list[dict[str, Any]]:
        """Return one plain dictionary per client of the round, or only for those left out."""
        if everybody and self.clients is not None:
            return self.clients.rows()
        return [{"client": client, "left_out": why} for client, why in self.left_out.items()]

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per layer and one, ``all``, for the whole model.

        A model with a single layer has one row only. Among several layers, one that is itself
        called ``all`` (parameters of the root module) appears as ``layer all``.
        """
        return [{**part.row(), "layer": name} for name, part in self._parts()]

    def cosines(self, *, by_layer: bool = True) -> Iterator[tuple[ClientId, str, float]]:
        """Yield client, layer and the cosine of its update with the step, to three digits.

        A client too short to have a direction in a layer is left out there. A cohort of more than
        10,000 clients times layers has the whole model only, to keep the tables of runs small.
        """
        fits = len(self.client_ids) * len(self.layers) <= _MOST_COSINES
        for name, part in self._parts() if by_layer and fits else [(_WHOLE, self.whole)]:
            cells = zip(self.client_ids, part.active.tolist(), part.cosine.tolist(), strict=True)
            yield from ((k, name, self._signed(cosine)) for k, active, cosine in cells if active)

    def _signed(self, cosine: float) -> float:
        """Return three digits of a cosine, and zero for one whose sign is rounding."""
        return float(f"{cosine:.3g}") if abs(cosine) > self.rounding else 0.0

    def _parts(self) -> Iterator[tuple[str, Measurement]]:
        """Yield the layers by the names that tables use, if there are several, and the whole."""
        for layer in self.layers if len(self.layers) > 1 else ():
            yield f"layer {_WHOLE}" if layer.name == _WHOLE else layer.name, layer
        yield _WHOLE, self.whole

    def __repr__(self) -> str:
        return "\n".join([self._headline(), *_table(self.rows())])

    def _headline(self) -> str:
        against = ", ".join(map(str, self.conflicting_clients()))
        verdict = f"against {against}" if against else "no conflicts"
        dropped = f", {len(self.dropped)} dropped" if self.dropped else ""
        if self.left_out:
            dropped += f", {len(self.left_out)} left out ({', '.join(map(str, self.left_out))})"
        length = f"||g|| = {self.whole.update_norm:.4g}"
        if self.whole.bounded:
            length += f", bounded in {', '.join(q.name for q in self.layers if q.bounded)}"
        return f"Certificate of {len(self.client_ids)} clients{dropped}: {verdict}; {length}"


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    width = max(len(row["layer"]) for row in rows)
    yield (
        f"{'layer':{width}}  cosine min, mean  conflicts average, reference, after  "
        "residual  rank of active  correction"
    )
    for row in rows:
        counts = (row[f"conflicts_{of}"] for of in ("average", "reference", "after"))
        yield (
            f"{row['layer']:{width}}  {row['min_cosine']:+10.3f} {row['mean_cosine']:+6.3f}"
            f"  {'{:17d} {:10d} {:6d}'.format(*counts)}"
            f"  {row['residual']:8.2g}  {row['rank']:4d} {row['active']:9d}"
            f"  {row['correction_norm']:10.3g}"
        )


def certify(
    cohort: Cohort,
    dots: Tensor,
    squares: Tensor,
    *,
    reference_dots: Tensor | None = None,
    projection: Projection | None = None,
) -> Certificate:
    """Build a certificate from <x_i^q, g^q> (Q, m) and ||g^q||^2 (Q,).

    ``reference_dots`` (Q, m) are products with a reference whose layers have length one.
    """
    norms = _with_whole(cohort.square_norms).sqrt()
    active = _active(norms, projection)
    # The average is a rounded sum: its products are as inexact as those with its longest term.
    longest = (norms[:-1] @ cohort.weights).square()
    start = torch.zeros_like(dots) if reference_dots is None else reference_dots
    products = _with_whole(torch.stack([cohort.average_dots(), start, dots], 1))
    lengths = _with_whole(torch.stack([longest, torch.ones_like(squares), squares], 1)).sqrt()
    below = rounding(cohort.dtype)
    against = products < -below * norms.unsqueeze(1) * lengths.unsqueeze(-1)
    conflicts = (against & active.unsqueeze(1)).sum(-1)
    alignment, length = ratio(products[:, 2], norms), lengths[:, 2]
    cosine = ratio(alignment, length.unsqueeze(-1))
    fits = _fits(alignment, projection)
    found = (alignment, cosine, active, *conflicts.T, *fits, length)
    return Certificate(
        client_ids=cohort.client_ids,
        layers=LayerMeasurements(cohort.layout.names, *(values[:-1] for values in found)),
        whole=Measurement.of(_WHOLE, (values[-1] for values in found)),
        dropped=cohort.dropped,
        rounding=below,
    )


def _with_whole(values: Tensor) -> Tensor:
    """Append the sum over the layers, which is the value for the whole model."""
    return torch.cat([values, values.sum(0, keepdim=True)])


def _fits(alignment: Tensor, projection: Projection | None) -> tuple[Tensor, ...]:
    """Return residual, rank, ||Delta|| and whether the limit acted, by layer and for the whole."""
    nothing = alignment.new_zeros(len(alignment))
    unranked = nothing.to(torch.int64)
    if projection is None:
        return nothing, unranked, nothing, unranked.to(torch.bool)
    layers = len(alignment) - 1
    by_layer = len(projection.rank) == layers
    residual = _residual(alignment[:-1] if by_layer else alignment[-1:], projection)
    bounded = projection.bounded if by_layer else ()
    limited = [*(layer in bounded for layer in range(layers)), bool(projection.bounded)]
    rank, norm = projection.rank, projection.norm
    whole = (torch.linalg.vector_norm(residual), rank.sum(), torch.linalg.vector_norm(norm))
    if not by_layer:  # a rule that projects the whole vector has no targets by layer
        residual = norm = torch.full_like(nothing[:-1], torch.nan)
        rank = unranked[:-1]
    fields = zip((residual, rank, norm), whole, strict=True)
    return *(torch.cat([part, total.view(1)]) for part, total in fields), torch.tensor(limited)


def _active(norms: Tensor, projection: Projection | None) -> Tensor:
    long = norms >= MEASURABLE
    layers = long[:-1]
    if projection is not None and projection.active.shape == layers.shape:
        layers = projection.active
    return torch.cat([layers, (layers.any(0) | long[-1]).unsqueeze(0)])


def _residual(alignment: Tensor, projection: Projection) -> Tensor:
    gap = (alignment - projection.targets) * projection.active
    if projection.one_sided:
        gap = gap.clamp(max=0)
    norms: Tensor = torch.linalg.vector_norm(gap, dim=-1)
    return norms
