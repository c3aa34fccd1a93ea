"""Small Flower apps in the style of Flower's own examples; their clients do not know fedcraft.

The benchmark ``benchmarks.drop_in`` measures some of them, and the tests train the others.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from fedcraft.data import load

Arrays = list[NDArray[Any]]


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

    seeds = range(1, 21)  # a client has ten test samples
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

    def sent(self, network: nn.Module) -> dict[str, Tensor]:
        """Return what travels of a network: all of it."""
        return network.state_dict()

    def initial(self) -> Arrays:
        torch.manual_seed(self.seed)
        return [value.numpy() for value in self.sent(self.network()).values()]

    def record(self, model: Arrays) -> ArrayRecord:
        return ArrayRecord(self.sent(self._with(model)))

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
        return [value.numpy() for value in self.sent(network).values()]

    def predict(self, model: Arrays, inputs: NDArray[Any]) -> NDArray[Any]:
        with torch.no_grad():
            outputs: Tensor = self._with(model).eval()(self._floats(inputs))
        return outputs.argmax(1).numpy()

    def _with(self, model: Arrays) -> nn.Module:
        network = self.network()
        copies = (torch.from_numpy(array.copy()) for array in model)
        sent = dict(zip(self.sent(network), copies, strict=True))
        network.load_state_dict(network.state_dict() | sent)
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

    seeds = range(1, 11)
    name, about = "pytorch", "small CNN on CIFAR-10, local SGD (0.1, momentum 0.9)"
    clients, rounds = 10, 3
    lr = 0.1

    def data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        images = load("cifar10", offline=True)
        return images.inputs[:50_000], images.labels[:50_000]

    def network(self) -> nn.Module:
        first = (nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        head = (nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
        return nn.Sequential(*first, *second, *head)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), lr=self.lr, momentum=0.9)


class SteadyImageApp(ImageApp):
    """The same app at a rate at which it learns in three rounds: a tenth of the example's."""

    name, about = "pytorch, steady", "the same, local SGD (0.01, momentum 0.9)"
    lr = 0.01


class NormedApp(TorchApp):
    """quickstart-pytorch's kind without a download: a CNN with BatchNorm on small digits."""

    name, about = "batch norm", "CNN with BatchNorm on 8 x 8 digits, local SGD (0.1)"
    clients, rounds = 4, 3

    def data(self) -> tuple[NDArray[Any], NDArray[Any]]:
        inputs, labels = load_digits(return_X_y=True)
        return inputs.reshape(-1, 1, 8, 8) / 16, labels

    def network(self) -> nn.Module:
        first = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(*first, nn.Flatten(), nn.Linear(128, 10))

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)


class HalfApp(NormedApp):
    """A network that is sent in half precision and trained in single."""

    name, about = "half precision", "network on 8 x 8 digits, sent as float16"

    def network(self) -> nn.Module:
        layers = (nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        return nn.Sequential(nn.Flatten(), *layers)

    def initial(self) -> Arrays:
        return [array.astype(np.float16) for array in super().initial()]

    def record(self, model: Arrays) -> ArrayRecord:
        halves = (torch.from_numpy(array.astype(np.float16)) for array in model)
        return ArrayRecord(dict(zip(self.network().state_dict(), halves, strict=True)))

    def _with(self, model: Arrays) -> nn.Module:
        return super()._with([array.astype(np.float32) for array in model])


class AdaptedLinear(nn.Module):
    """A frozen layer and a low-rank adapter, whose parameters have the names that peft gives."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        down, up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(up.weight)
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": down})
        self.lora_B = nn.ModuleDict({"default": up})

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the frozen layer's output plus the adapter's."""
        low: Tensor = self.lora_B["default"](self.lora_A["default"](inputs))
        frozen: Tensor = self.base_layer(inputs)
        return low + frozen


class LoraApp(NormedApp):
    """flowertune's kind: only the adapters travel, under the shorter names that peft saves."""

    name, about = "LoRA", "adapters of rank 4 on 8 x 8 digits, the frozen layers stay at home"

    def network(self) -> nn.Module:
        torch.manual_seed(0)  # all clients have the same frozen layers
        return nn.Sequential(nn.Flatten(), AdaptedLinear(64, 32), nn.ReLU(), AdaptedLinear(32, 10))

    def sent(self, network: nn.Module) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}

    def record(self, model: Arrays) -> ArrayRecord:
        named = self.sent(self._with(model)).items()
        return ArrayRecord({name.replace(".default", ""): tensor for name, tensor in named})


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
