"""Estimates the time and memory of a plan from a few seconds of measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from fedcraft.config.build import build_federation, build_method, build_model
from fedcraft.config.schema import Config
from fedcraft.data import Client, Federation
from fedcraft.local import ClientData, LocalTask, SeedAddress
from fedcraft.models import FlatModel
from fedcraft.runs.problems import fingerprint, problem_of

_PROCESS_MB = 350  # Python with torch and scikit-learn
_PROCESS_SECONDS = 3.0  # until these are imported
_RUN_SECONDS = 0.2  # to divide the data, and to write the tables and a checkpoint
_MULTIPLY_ADDS = 2e10  # per second, of a Gram product on one core
_EVALUATION_BATCH = 256
_REPEATS = 5
_ENOUGH = 2.0  # seconds after which a measurement is not repeated
_DATA_KEYS = (
    *("dataset", "data_options", "clients", "clients_per_round", "samples", "max_samples"),
    *("partition", "alpha", "min_size", "shards_per_client", "train_fraction"),
    *("validation_fraction", "data_root", "offline"),
)


@dataclass(frozen=True)
class Estimate:
    """What a plan is expected to take."""

    runs: int
    seconds: float
    memory_mb: float
    jobs: int

    def __str__(self) -> str:
        return (
            f"{self.runs} run{'s' if self.runs != 1 else ''} from scratch, {self.jobs} at once: "
            f"about {duration(self.seconds)} and {self.memory_mb:,.0f} MiB of memory"
        )


def estimate(configs: Sequence[Config], jobs: int = 1, repeats: int = 0) -> Estimate:
    """Time a batch of every model and local objective and multiply: correct within a factor of two.

    Assumes idle cores, one for each run as in a sweep. Finished runs count too; each method will be
    repeated with ``repeats`` more seeds on each problem. The data are read, so that missing data
    are reported now.
    """
    calibration = _Calibration()
    costs = [calibration.cost(config) for config in configs]
    shown = [(fingerprint(problem_of(c.values())), c.name) for c in configs]
    costs += repeats * list(dict(zip(shown, costs, strict=True)).values())
    at_once = max(min(jobs, len(costs)), 1)
    pools = 2 if repeats else 1  # each starts its processes at once, for all of its runs
    seconds = sum(seconds for seconds, _ in costs) / at_once + pools * _PROCESS_SECONDS
    memory = max((memory for _, memory in costs), default=0.0) * at_once
    return Estimate(len(costs), seconds, memory, at_once)


def duration(seconds: float) -> str:
    """Return a number of seconds in a readable unit.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


@dataclass(frozen=True)
class _Speed:
    """Seconds of a batch in training and of a sample in evaluation, and the size of the model."""

    train: float
    evaluate: float
    parameters: int


@dataclass
class _Calibration:
    """What was measured so far: a grid has one data set and one model."""

    federations: dict[str, Federation] = field(default_factory=dict)
    speeds: dict[str, _Speed] = field(default_factory=dict)

    def cost(self, config: Config) -> tuple[float, float]:
        """Seconds and MiB of one run."""
        federation = self.federation(config)
        speed = self.speed(config, federation)
        train = speed.train * config.clients_per_round * _batches(config, federation)
        aggregate = config.clients_per_round**2 * speed.parameters / _MULTIPLY_ADDS
        evaluations = config.rounds // config.evaluate_every if config.evaluate_every else 1
        evaluate = speed.evaluate * len(federation.dataset) * max(evaluations, 1)
        memory = _memory(config, federation, speed.parameters)
        return _RUN_SECONDS + config.rounds * (train + aggregate) + evaluate, memory

    def federation(self, config: Config) -> Federation:
        """The federation, split with the default seed: only its sizes matter."""
        known = config.values() | config.given()
        data = Config(**{key: known[key] for key in _DATA_KEYS if key in known})
        key = data.model_dump_json()
        if key not in self.federations:
            self.federations[key] = build_federation(data)
        return self.federations[key]

    def speed(self, config: Config, federation: Federation) -> _Speed:
        """The speed of the model under the local objective, at the batch size of the run."""
        kept = {"dataset", "model", "model_options", "batch_size", "local_epochs", "samples"}
        key = f"{build_method(config).local} {config.model_dump_json(include=kept)}"
        if key not in self.speeds:
            self.speeds[key] = _measure(config, federation)
        return self.speeds[key]


def _batches(config: Config, federation: Federation) -> float:
    """The number of batches of a client: a short one also costs a whole step."""
    return float(np.ceil(federation.sizes() / config.batch_size).mean())


def _measure(config: Config, federation: Federation) -> _Speed:
    model = FlatModel(build_model(config, federation.dataset))
    client = federation.client(int(federation.sizes().argmax()))
    inputs = client.tensors()[0][:_EVALUATION_BATCH]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _Speed(
            _seconds(_training(config, federation, model, client)),
            _seconds(lambda: _evaluate(model, inputs)) / len(inputs),
            len(model),
        )
    finally:
        torch.set_num_threads(threads)


def _training(
    config: Config, federation: Federation, model: FlatModel, client: Client
) -> Callable[[], object]:
    """The training of a client with one batch of average size."""
    samples = max(round(float(federation.sizes().mean()) / _batches(config, federation)), 1)
    data = ClientData(federation.tensors(ahead_mb=0), client.train[:samples])
    theta = model.vector.clone()
    task = LocalTask(
        theta,
        data,
        config.client_lr,
        SeedAddress(config.seed, 0, client.id),
        epochs=config.local_epochs,
        batch_size=samples,
    )
    objective, _, _ = build_method(config).build()
    return partial(objective.train, model, task, torch.empty_like(theta))


def _evaluate(model: FlatModel, inputs: torch.Tensor) -> None:
    with torch.no_grad():
        model(inputs)


def _seconds(work: Callable[[], object]) -> float:
    """The best of a few repeats: the first is slow, and the machine may be shared."""
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _ENOUGH:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _memory(config: Config, federation: Federation, parameters: int) -> float:
    vectors = (config.clients_per_round + 8) * parameters * 4 / 2**20
    data = federation.dataset.inputs.nbytes / 2**20
    kept = config.clients * parameters * 4 / 2**20 if build_method(config).personal else 0.0
    return _PROCESS_MB + vectors + data + min(kept, config.state_memory_mb)
