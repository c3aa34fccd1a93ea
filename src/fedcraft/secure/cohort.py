"""The secret cohort: a rule's three products, from sketches, scalars and masked sums."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedcraft.aggregators import Aggregator
from fedcraft.aggregators.base import Step
from fedcraft.aggregators.cohort import Cohort, Terms, Vector, in_memory
from fedcraft.errors import FedcraftError, InputError
from fedcraft.linalg import scaled_grams
from fedcraft.secure.products import ClientsLost, SecretProducts
from fedcraft.updates import ClientId


@dataclass(frozen=True, kw_only=True)
class SecretCohort(Cohort):
    """A cohort whose updates stay with the clients.

    * ``grams``: an estimate from sketches, exact on the span of the sums that are known.
    * ``dots(v)``: one scalar per client and layer, exact.
    * ``combine(c)``: a masked sum, exact up to the fixed point's rounding.

    ``rows`` are the positions of this cohort's clients in the round.
    """

    products: SecretProducts
    rows: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64  # the products are computed in it, on the clients and here

    @property
    def grams(self) -> Tensor:
        """X_q X_q^T, not cached: it becomes more exact with every sum."""
        self._require_products()
        return self._by_layout(scaled_grams(self.products.cosines(self.rows), self._norms))

    @property
    def gram(self) -> Tensor:
        return self.grams.sum(0)

    @property
    def square_norms(self) -> Tensor:
        self._require_products()
        return self._by_layout(self._norms.square())

    @property
    def _norms(self) -> Tensor:
        return self.products.norms[:, list(self.rows)]

    def _by_layout(self, products: Tensor) -> Tensor:
        """Add up the layers for a rule that takes the model as one."""
        return products if len(self.layout) == len(products) else products.sum(0, keepdim=True)

    @property
    def matrix(self) -> Tensor:
        raise InputError(
            "secure: this rule reads single updates, and under secure aggregation no server sees "
            "one; choose a rule that needs only Gram matrices, such as craft, craft-auto, config, "
            "fedmgda+ or fedlf"
        )

    def _require_products(self) -> None:
        if self.products.sums_only:
            raise InputError(
                "secure: this rule or its guard needs products with single updates, and with "
                "secure.sketch = 0 the server sees sums only; set secure.sketch, or choose fedavg "
                "without a guard"
            )

    def dots(self, vector: Vector) -> Tensor:
        self._require_products()
        return self._by_layout(self.products.dots(in_memory(vector), self.rows) * self._norms)

    def add_up(self, terms: Terms) -> Vector:
        rows = terms.coefficients.expand(len(self._norms), -1).to(torch.float64)
        total = terms.factor * self.products.combine(rows * self._norms, self.rows)
        if terms.base is None:
            return total
        base = in_memory(terms.base).to(total)
        return self.scaled(base, terms.factor * terms.base_scale, total, 1.0)

    def select(self, rows: Tensor, dropped: tuple[ClientId, ...] = ()) -> Self:
        kept = super().select(rows, dropped)
        return replace(kept, rows=tuple(self.rows[row] for row in rows.tolist()))


def aggregate_secretly(rule: Aggregator, cohort: SecretCohort) -> Step:
    """Aggregate by any rule that needs only the three products; refine while sums are left.

    A run of the rule ends with a masked sum, which makes the Gram matrices exact on its
    coefficients. The rule then runs again on the better matrices, from the same state, until it
    asks for nothing new or no sum is left. For CRAFT this converges to U g = rho like conjugate
    gradients with the sketch as preconditioner. Clients that are lost before their first sum are
    left out, and the rule starts again without them.
    """
    products = cohort.products
    if products.sums_only:
        rule.certify = False  # a certificate needs products with single updates
    while True:
        before, spent = rule.state_dict(), products.spent
        try:
            step = rule.aggregate_cohort(cohort)
        except ClientsLost as lost:
            cohort = _without(cohort, lost.rows)
            continue
        except BaseException as error:
            raise _named(error, rule) from error
        if products.spent == spent or products.left == 0:
            return step
        rule.load_state_dict(before)


def _named(error: BaseException, rule: Aggregator) -> BaseException:
    """Say which rule, or which guard around it, cannot run without rows."""
    if isinstance(error, FedcraftError) and str(error).startswith("secure:"):
        guard = "" if rule.guard is None else f" with the guard {type(rule.guard).__name__}"
        return type(error)(f"{type(rule).__name__}{guard}: {error}")
    return error


def _without(cohort: SecretCohort, lost: Collection[int]) -> SecretCohort:
    kept = [at for at, row in enumerate(cohort.rows) if row not in lost]
    names = tuple(i for i, row in zip(cohort.client_ids, cohort.rows, strict=True) if row in lost)
    return cohort.select(torch.tensor(kept), names)
