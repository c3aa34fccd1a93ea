"""fedcraft: conflict-resolved aggregation for federated training."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcraft.aggregators import Aggregator, Certificate, Step, aggregator
    from fedcraft.aggregators.disk.aggregate import aggregate_files
    from fedcraft.config.schema import Config
    from fedcraft.errors import FedcraftError
    from fedcraft.methods import Method, method, methods
    from fedcraft.runs.run import Run
    from fedcraft.server_optimizers import ServerOptimizer, server_optimizer
    from fedcraft.studies.compare import compare
    from fedcraft.studies.run import resume, run
    from fedcraft.studies.sweep import sweep
    from fedcraft.updates import Layout, Updates

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

# Loaded when first used: `fedcraft --help` needs no torch, and a rule needs no engine.
_LAZY = {
    "aggregators": ("Aggregator", "Certificate", "Step", "aggregator"),
    "aggregators.disk.aggregate": ("aggregate_files",),
    "config.schema": ("Config",),
    "errors": ("FedcraftError",),
    "methods": ("Method", "method"),  # and `methods`: the package can be called
    "runs.run": ("Run",),
    "server_optimizers": ("ServerOptimizer", "server_optimizer"),
    "studies.compare": ("compare",),
    "studies.run": ("resume", "run"),
    "studies.sweep": ("sweep",),
    "updates": ("Layout", "Updates"),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}
_ROOMS = (
    *("aggregators", "cluster", "config", "data", "engine", "errors", "flower", "local", "methods"),
    *("metrics", "models", "report", "runs", "server_optimizers", "studies", "theory", "updates"),
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"fedcraft.{name}")
    if name in _MODULES:
        return getattr(importlib.import_module(f"fedcraft.{_MODULES[name]}"), name)
    from fedcraft.registry import did_you_mean

    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}.{did_you_mean(name, __dir__())}"
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
