"""fedcraft: conflict-resolved aggregation for federated training."""

from fedcraft.aggregators import Aggregator, Certificate, Step, aggregator
from fedcraft.errors import FedcraftError
from fedcraft.methods import Method, method, methods
from fedcraft.outofcore import aggregate_files
from fedcraft.server_optimizers import ServerOptimizer, server_optimizer
from fedcraft.updates import Layout, Updates

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "Certificate",
    "FedcraftError",
    "Layout",
    "Method",
    "Step",
    "Updates",
    "__version__",
    "aggregate_files",
    "aggregator",
    "method",
    "methods",
]
