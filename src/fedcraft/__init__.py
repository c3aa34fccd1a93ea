"""fedcraft: conflict-resolved aggregation for federated training."""

import importlib
from typing import TYPE_CHECKING, Any

from fedcraft.aggregators import Aggregator, Certificate, Step, aggregator
from fedcraft.aggregators.disk.aggregate import aggregate_files
from fedcraft.errors import FedcraftError
from fedcraft.methods import Method, method, methods
from fedcraft.registry import did_you_mean
from fedcraft.server_optimizers import ServerOptimizer, server_optimizer
from fedcraft.updates import Layout, Updates

if TYPE_CHECKING:
    from fedcraft.config.schema import Config
    from fedcraft.runs.run import Run
    from fedcraft.studies.compare import compare
    from fedcraft.studies.run import resume, run
    from fedcraft.studies.sweep import sweep

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "Certificate",
    "Config",
    "FedcraftError",
    "Layout",
    "Method",
    "Run",
    "ServerOptimizer",
    "Step",
    "Updates",
    "__version__",
    "aggregate_files",
    "aggregator",
    "compare",
    "method",
    "methods",
    "resume",
    "run",
    "server_optimizer",
    "sweep",
]

# Loaded when first used, so that callers that only aggregate do not wait for the rest.
_LAZY = {
    "Config": "config.schema",
    "Run": "runs.run",
    "compare": "studies.compare",
    "resume": "studies.run",
    "run": "studies.run",
    "sweep": "studies.sweep",
}
_ROOMS = ("cluster", "data", "engine", "flower", "metrics", "models", "report", "theory")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"fedcraft.{name}")
    if name in _LAZY:
        module = importlib.import_module(f"fedcraft.{_LAZY[name]}")
        return getattr(module, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}.{did_you_mean(name, __dir__())}"
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
