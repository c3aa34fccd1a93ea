"""fedcraft: conflict-resolved aggregation for federated training."""

import importlib
from typing import TYPE_CHECKING, Any

from fedcraft.aggregators import Aggregator, Certificate, Step, aggregator
from fedcraft.errors import FedcraftError
from fedcraft.methods import Method, method, methods
from fedcraft.outofcore import aggregate_files
from fedcraft.server_optimizers import ServerOptimizer, server_optimizer
from fedcraft.updates import Layout, Updates

if TYPE_CHECKING:
    from fedcraft.experiments.compare import compare
    from fedcraft.experiments.config import Config
    from fedcraft.experiments.run import resume, run
    from fedcraft.experiments.sweep import sweep

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "Certificate",
    "Config",
    "FedcraftError",
    "Layout",
    "Method",
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

# Loaded when asked for: who only aggregates should not wait for the experiments.
_LAZY = {
    "Config": "config",
    "compare": "compare",
    "resume": "run",
    "run": "run",
    "sweep": "sweep",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module = importlib.import_module(f"fedcraft.experiments.{_LAZY[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
