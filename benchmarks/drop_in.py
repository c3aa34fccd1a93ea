"""One line changed: Flower's FedAvg against ``fedcraft.flower.Strategy()`` in small Flower apps.

    python -m benchmarks.drop_in [--only TEXT] [--rerun] [--show]

The apps are written in the style of Flower's own examples, with their numbers of clients and rounds
and their local training; the clients never learn which strategy the server runs. Messages go
through Flower's serialisation, in one process. The score is what FedAvg's users see: the accuracy
after the last round, averaged over the clients by their number of test samples. Runs that
results/benchmarks/drop-in.json holds are not repeated unless ``--rerun``. The table is printed, and
written into docs/craft-auto.md where it has the marks. CIFAR-10 is read from FEDCRAFT_DATA.
"""

from __future__ import annotations

import argparse
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from benchmarks.grids import InProcessGrid
from benchmarks.pages import filled, table
from fedcraft.data import load
from fedcraft.errors import FedcraftError
from fedcraft.flower import Strategy

RESULTS = Path("results/benchmarks/drop-in.json")
PAGE = Path("docs/craft-auto.md")
BLOCK = "drop-in"
TOLERATED = -0.01
LEGEND = (
    "Accuracy after the app's last round, mean over the seeds; the gain of `Strategy()` over "
    "`FedAvg` with its standard error,\nbold where it is more than 0.01 below."
)
STRATEGIES: dict[str, Callable[[], FedAvg | Strategy]] = {
    "FedAvg": FedAvg,
    "Strategy()": Strategy,
    'Strategy("craft")': lambda: Strategy("craft"),
}

Arrays = list[NDArray[Any]]
Record = dict[str, Any]


class App(ABC):
    """A model, its clients and their training; the seed deals the data, 80 % of them to train."""

    name: str
    about: str
    clients: int
    rounds: int
    seeds: Sequence[int] = range(1, 11)

    def __init__(self, seed: int) -> None:
        self.seed = seed
        inputs, labels = self.data()
        order = np.random.default_rng(seed).permutation(len(labels))
        dealt = np.array_split(order, self.clients)
        parts = [np.split(part, [int(0.8 * len(part))]) for part in dealt]
        self.train_parts = [(inputs[train], labels[train]) for train, _ in parts]
        self.test_parts = [(inputs[test], labels[test]) for _, test in parts]

    @abstractmethod
    def data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return all inputs and labels."""

    @abstractmethod
    def initial(self) -> Arrays:
        """Return the first model."""

    @abstractmethod
    def train(self, model: Arrays, inputs: NDArray[Any], labels: NDArray[Any], seed: int) -> Arrays:
        """Return the model after a client's local training."""

    @abstractmethod
    def predict(self, model: Arrays, inputs: NDArray[Any]) -> NDArray[Any]:
        """Return the label of every input."""

    def record(self, model: Arrays) -> ArrayRecord:
        """Return a model as it is sent; like NumPy apps, without names."""
        return ArrayRecord(model)


class VectorApp(App):
    """quickstart-numpy's kind: the model is one vector, trained by plain gradient descent."""

    name, about = "numpy", "logistic regression, one vector of 20 weights"
    clients, rounds = 10, 3

    def data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        inputs, labels = make_classification(1000, class_sep=0.7, random_state=self.seed)
        return inputs, labels

    def initial(self) -> Arrays:
        return [np.zeros(20)]

    def train(self, model: Arrays, inputs: NDArray[Any], labels: NDArray[Any], seed: int) -> Arrays:
        weights = model[0].copy()
        for _ in range(5):
            errors = 1 / (1 + np.exp(-inputs @ weights)) - labels
            weights -= 0.1 * inputs.T @ errors / len(labels)
        return [weights]

    def predict(self, model: Arrays, inputs: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(inputs @ model[0] > 0).astype(int)


class SklearnApp(App):
    """quickstart-sklearn's kind: scikit-learn's solver runs one iteration a round on iris."""

    name, about = "scikit-learn", "logistic regression on iris, coefficients and intercepts"
    clients, rounds = 3, 25

    def data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        inputs, labels = load_iris(return_X_y=True)
        return inputs, labels

    def initial(self) -> Arrays:
        return [np.zeros((3, 4)), np.zeros(3)]

    def train(self, model: Arrays, inputs: NDArray[Any], labels: NDArray[Any], seed: int) -> Arrays:
        fitted = self._with(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # one iteration is not enough
            fitted.fit(inputs, labels)
        return [fitted.coef_, fitted.intercept_]

    def predict(self, model: Arrays, inputs: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self._with(model).predict(inputs))

    @staticmethod
    def _with(model: Arrays) -> LogisticRegression:
        made = LogisticRegression(max_iter=1, warm_start=True)
        made.classes_ = np.arange(3)
        made.coef_, made.intercept_ = (array.copy() for array in model)
        return made


class TorchApp(App):
    """What the apps with a network share: one epoch in shuffled batches of 32."""

    @abstractmethod
    def network(self) -> nn.Module:
        """Return a new network."""

    @abstractmethod
    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return the local optimiser."""

    def initial(self) -> Arrays:
        torch.manual_seed(self.seed)
        return [value.numpy() for value in self.network().state_dict().values()]

    def record(self, model: Arrays) -> ArrayRecord:
        return ArrayRecord(self._with(model).state_dict())

    def train(self, model: Arrays, inputs: NDArray[Any], labels: NDArray[Any], seed: int) -> Arrays:
        network = self._with(model)
        optimizer = self.optimizer(network)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        for batch in torch.split(order, 32):
            optimizer.zero_grad()
            outputs = network(self._floats(inputs[batch.numpy()]))
            target = torch.from_numpy(labels[batch.numpy()])
            nn.functional.cross_entropy(outputs, target).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return [value.numpy() for value in network.state_dict().values()]

    def predict(self, model: Arrays, inputs: NDArray[Any]) -> NDArray[Any]:
        with torch.no_grad():
            outputs: Tensor = self._with(model)(self._floats(inputs))
        return outputs.argmax(1).numpy()

    def _with(self, model: Arrays) -> nn.Module:
        network = self.network()
        names = network.state_dict()
        copies = (torch.from_numpy(array.copy()) for array in model)
        network.load_state_dict(dict(zip(names, copies, strict=True)))
        return network

    @staticmethod
    def _floats(inputs: NDArray[Any]) -> Tensor:
        found = torch.from_numpy(inputs)
        return found.float() / 127.5 - 1 if found.dtype == torch.uint8 else found.float()


class TabularApp(TorchApp):
    """fl-tabular's kind: a small network on a table, local Adam."""

    name, about = "tabular", "30-128-64-2 network on breast cancer, local Adam (0.001)"
    clients, rounds = 5, 5

    def data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        inputs, labels = load_breast_cancer(return_X_y=True)
        return (inputs - inputs.mean(0)) / inputs.std(0), labels

    def network(self) -> nn.Module:
        shape = (nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2))
        return nn.Sequential(*shape)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(network.parameters(), lr=0.001)


class ImageApp(TorchApp):
    """quickstart-pytorch's kind: a small CNN on CIFAR-10, local SGD with momentum."""

    seeds = range(1, 4)
    name, about = "pytorch", "small CNN on CIFAR-10, local SGD (0.1, momentum 0.9)"
    clients, rounds = 10, 3

    def data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        images = load("cifar10", offline=True)
        return images.inputs[:50_000], images.labels[:50_000]

    def network(self) -> nn.Module:
        first = (nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        head = (nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
        return nn.Sequential(*first, *second, *head)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)


APPS: Sequence[type[App]] = (VectorApp, SklearnApp, TabularApp, ImageApp)


def client_app(app: App) -> ClientApp:
    """Return the ClientApp: it knows Flower and the app, and nothing of fedcraft."""
    made = ClientApp()

    @made.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        inputs, labels = app.train_parts[client]
        number: int = message.content["config"]["server-round"]  # type: ignore[assignment]
        draw = int(np.random.default_rng([app.seed, client, number]).integers(2**31))
        model = app.train(_model(message), inputs, labels, draw)
        metrics = MetricRecord({"num-examples": len(labels)})
        content = RecordDict({"arrays": app.record(model), "metrics": metrics})
        return Message(content, reply_to=message)

    @made.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        inputs, labels = app.test_parts[int(context.node_config["partition-id"])]
        correct = float(np.mean(app.predict(_model(message), inputs) == labels))
        metrics = MetricRecord({"accuracy": correct, "num-examples": len(labels)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return made


def _model(message: Message) -> Arrays:
    record: ArrayRecord = message.content["arrays"]  # type: ignore[assignment]
    return [array.numpy() for array in record.values()]


def accuracies(app: App, strategy: FedAvg | Strategy) -> list[float]:
    """Return the accuracy that Flower reports after every round of the app."""
    grid = InProcessGrid(client_app(app), app.clients)
    result = strategy.start(grid, app.record(app.initial()), num_rounds=app.rounds)
    reported = [metrics["accuracy"] for metrics in result.evaluate_metrics_clientapp.values()]
    return [float(value) for value in reported]  # type: ignore[arg-type]


def complete(records: list[Record], only: str, rerun: bool) -> list[Record]:
    """Run what is missing; the file is written after every run."""
    for kind in (kind for kind in APPS if only in kind.name):
        for name, strategy in STRATEGIES.items():
            for seed in kind.seeds:
                key = {"app": kind.name, "strategy": name, "seed": seed}
                others = [record for record in records if not key.items() <= record.items()]
                if len(others) < len(records) and not rerun:
                    continue
                started = perf_counter()
                found = accuracies(kind(seed), strategy())
                records = [*others, {**key, "accuracies": [round(a, 4) for a in found]}]
                lines = ",\n".join(json.dumps(record) for record in records)
                RESULTS.write_text(f"[\n{lines}\n]\n")
                print(f"{key}: {found[-1]:.3f}, {perf_counter() - started:.0f} s", flush=True)
    return records


def results_table(records: list[Record]) -> str:
    """One row per app: the mean accuracy over its seeds, and the gain with its standard error."""
    rows = []
    for kind in APPS:
        found = {
            name: [_last(records, kind, name, seed) for seed in kind.seeds] for name in STRATEGIES
        }
        before, after = found["FedAvg"], found["Strategy()"]
        gains = np.array([b - a for a, b in zip(before, after, strict=True)])
        if np.isnan(gains).any():
            continue
        mark = "**" if gains.mean() < TOLERATED else ""
        error = gains.std(ddof=1) / np.sqrt(len(gains))
        means = [float(np.mean(values)) for values in found.values()]
        shown = ["" if np.isnan(mean) else f"{mean:.3f}" for mean in means]
        gain = f"{mark}{gains.mean():+.3f}{mark} ± {error:.3f}"
        rows.append([kind.about, kind.clients, kind.rounds, len(kind.seeds), *shown, gain])
    heads = ["app", "clients", "rounds", "seeds", *(f"`{name}`" for name in STRATEGIES), "gain"]
    return f"{table(heads, rows)}\n\n{LEGEND}"


def _last(records: list[Record], kind: type[App], strategy: str, seed: int) -> float:
    key = {"app": kind.name, "strategy": strategy, "seed": seed}
    return next((r["accuracies"][-1] for r in records if key.items() <= r.items()), np.nan)


def main() -> None:
    """Run the apps and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="apps whose name contains this text")
    parser.add_argument("--rerun", action="store_true", help="repeat runs that are in the file")
    parser.add_argument("--show", action="store_true", help="run nothing, only make the table")
    options = parser.parse_args()
    records: list[Record] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    try:
        records = records if options.show else complete(records, options.only, options.rerun)
    except FedcraftError as error:
        print(f"CIFAR-10 is missing, so its app did not run: {error}")
        records = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    block = results_table(records)
    print(block)
    if PAGE.exists() and f"<!-- {BLOCK} -->" in PAGE.read_text(encoding="utf-8"):
        PAGE.write_text(filled(PAGE, {BLOCK: block}), encoding="utf-8")


if __name__ == "__main__":
    main()
