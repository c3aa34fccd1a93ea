"""The table of rules under the property suite, and what is expected of each.

A rule in ``RULES`` without a line here is tested all the same, for what every rule promises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fedcraft import aggregator
from fedcraft.aggregators import RULES


@dataclass(frozen=True)
class Promise:
    """A rule with parameters, and what is expected of it.

    ``degree``: g(s X) = s^degree g(X), with the client rate scaled by s^``rate_degree``; None where
    an absolute constant (a guard, a threshold) breaks the scaling on purpose. ``tolerance`` is
    absolute, for steps of length about one.
    """

    rule: str
    params: dict[str, Any] = field(default_factory=dict)
    degree: int | None = 1
    rate_degree: int = 0
    by_position: bool = False  # the rule looks at the order of the rows
    alone: bool | None = True  # one client alone gets its own update
    in_memory: bool | None = False  # the rule cannot work on files
    tolerance: float = 1e-10

    def __str__(self) -> str:
        return "-".join([self.rule, *(f"{k}={v}" for k, v in self.params.items())])

    def build(self, **options: Any) -> Any:
        return aggregator(self.rule, **self.params, **options)


PROMISES = [
    Promise("average"),
    Promise("average", {"weighting": "uniform"}),
    Promise("fednova"),
    Promise("fednova", {"weighting": "uniform"}),
    Promise("fednova", {"tau_eff": "steps", "mu": 0.1}, alone=False),
    Promise("afl", {"gamma": 0.1}),
    Promise("afl", {"gamma": 0.1, "clients": 50}),
    Promise("afl", {"gamma": 0.1, "indexing": "position"}, by_position=True),
    Promise("qfedavg", {"q": 0.0}),
    Promise("qfedavg", rate_degree=2, alone=False),
    Promise("qfedavg", {"q": 3.0, "loss_floor": 1e-3}, rate_degree=2, alone=False),
    Promise("fedmgda", degree=0, alone=False),
    Promise("fedmgda", {"epsilon": 1.0, "scale": "client_lr"}, degree=0, alone=False),
    Promise("fedmgda", {"scale": "mean_norm"}),
    Promise("fedmgda", {"norm_offset": 1e-3}, degree=None, alone=False),
    Promise("fedfv"),
    Promise("fedfv", {"alpha": 0.0, "tau": 0}),
    Promise("fedfv", {"alpha": 0.34, "tau": 3}, in_memory=True),
    Promise("fedfv", {"tau": 1, "external": "paper"}, in_memory=True),
    Promise("fedfv", {"guard": 1e-6}, degree=None, alone=False),
    Promise("fedlf"),
    Promise("fedlf", {"history": True}, in_memory=True),
    Promise("fedmdfg", {"eps": 0.0}, in_memory=True),
    Promise("fedmdfg", degree=None, in_memory=True),
    Promise("config", degree=0, alone=False),
    Promise("config", {"meaning": "target"}, degree=0, alone=False),
    Promise("config", {"meaning": "original"}),
    Promise("craft", {"eps": 0.0, "tau": 0.0}, degree=0, alone=False),
    # Demands that cannot be met together are softened, by a constant that rounding can see.
    Promise("craft", {"constraint": "at_least"}, degree=None, alone=False, tolerance=1e-6),
    Promise("craft", {"reference": "moving_average"}, degree=None, alone=False),
    Promise("craft", {"released_code": True}, degree=None),
    Promise("layer_momentum", degree=0, alone=False),
    Promise("upgrad"),
    Promise("upgrad", {"by_layer": False}),
    Promise("dualproj"),
    Promise("dualproj", {"by_layer": False}),
    Promise("pcd", degree=None),
    Promise("pcd", {"eps": 0.0, "tau": 0.3, "beta": 0.5}),
    # Clients that contradict each other have no fair step: a ridge bounds weights that cancel.
    Promise("fairgrad", degree=None, alone=False, tolerance=1e-8),
    Promise("nash_mtl", degree=0, alone=False, tolerance=1e-8),
    Promise("nash_mtl", {"by_layer": False, "length": "average"}),
    Promise("cagrad", alone=False),
    Promise("cagrad", {"by_layer": False, "c": 1.0}, alone=False),
    Promise("imtl_g", {"length": "average"}),
    Promise("aligned_mtl"),
    Promise("aligned_mtl", {"by_layer": False, "balance": "median"}),
    Promise("pcgrad"),
    Promise("gradvac", {"beta": 0.5}),
    Promise("gradvac", {"by_layer": False}),
    Promise("fedgh"),
    Promise("adafed", alone=False),
    Promise("average", {"length": "fedexp"}),
    Promise("term"),
    Promise("scaffold"),
    Promise("feddyn", alone=False),
    Promise("coordinate_median", in_memory=True),
    Promise("trimmed_mean", in_memory=True),
    Promise("bulyan", in_memory=True),
]
_KNOWN = {promise.rule for promise in PROMISES}
PROMISES += [
    Promise(name, degree=None, alone=None, in_memory=None) for name in RULES if name not in _KNOWN
]

# A test that asks for one of these runs once for every promise that qualifies.
FIXTURES: dict[str, Callable[[Promise], bool]] = {
    "promise": lambda promise: True,
    "orderless": lambda promise: not promise.by_position,
    "homogeneous": lambda promise: promise.degree is not None,
    "declared_alone": lambda promise: promise.alone is not None,
    "declared_for_files": lambda promise: promise.in_memory is not None,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, qualifies in FIXTURES.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, [p for p in PROMISES if qualifies(p)], ids=str)
