"""The server's side of a round on Flower: fedcraft's strategy against Flower's own FedAvg.

    python -m benchmarks.deployment [--models 0.2M 2M 25M] [--clients 10 50] [--json FILE]

Every case is a process of its own that plays the ServerApp: it packs and hashes the broadcast as
Flower's grid does, reads each reply's objects as bytes, inflates them, aggregates, and packs the
next broadcast. In the place of the network are files, so that nothing hides the server's own cost:
over HTTP (``benchmarks.deployment_link``) both sides of every ratio grow. Replies are models, made
once, the same for all strategies. Memory is the process's peak minus what it had after its imports.
CPU seconds are for machines that are busy with other things.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from rich.console import Console
from rich.table import Table

from benchmarks.grids import LocalGrid
from fedcraft.flower import Strategy

MODELS: dict[str, list[tuple[int, ...]]] = {
    "0.2M": [(200, 784), (200,), (200, 200), (200,), (62, 200), (62,)],
    "2M": [(320, 320)] * 20,
    "25M": [(680, 680)] * 54,
}
STRATEGIES = ("Flower's FedAvg", "fedcraft fedavg", "fedcraft craft")
_SPREAD = 0.01


class FileGrid(LocalGrid):
    """A grid whose SuperLink is a folder: one file per object, read again for every reply."""

    def __init__(self, folder: Path, clients: int) -> None:
        super().__init__()
        self.folder, self.clients = folder, clients
        self._asked: dict[str, int] = {}

    def get_node_ids(self) -> Iterable[int]:
        return range(1, self.clients + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hash and serialise as ``HttpGrid`` does before it sends: every object once."""
        objects: dict[str, Any] = {}
        with no_object_id_recompute():
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                objects.update(get_all_nested_objects(message))
                self._asked[message.metadata.message_id] = message.metadata.dst_node_id
            for key in list(objects):
                objects.pop(key).deflate()
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._read(key, self._asked.pop(key)) for key in list(message_ids)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(list(messages)))

    def _read(self, asked: str, node: int) -> Message:
        place = self.folder / f"{node}"
        index = json.loads((place / "index.json").read_text())
        contents = {key: (place / key).read_bytes() for key in index["objects"]}
        reply = inflate_object_from_contents(index["root"], contents)
        if not isinstance(reply, Message):
            raise TypeError(f"{place} should hold a message, but holds a {type(reply).__name__}")
        reply.metadata.__dict__["_reply_to_message_id"] = asked
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


def broadcast(model: str) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return a model of this size, layer by layer."""
    draw = np.random.default_rng(0)
    return {
        f"layer{index}.weight": draw.standard_normal(shape, dtype=np.float32)
        for index, shape in enumerate(MODELS[model])
    }


def write_replies(model: str, clients: int, folder: Path) -> None:
    """Write every client's reply as the objects a SuperLink would store."""
    FileGrid(folder, clients)
    start = broadcast(model)
    for node in range(1, clients + 1):
        if (folder / f"{node}" / "index.json").exists():
            continue
        draw = np.random.default_rng(node)
        arrays = {
            name: Array(value + _SPREAD * draw.standard_normal(value.shape, dtype=np.float32))
            for name, value in start.items()
        }
        metrics = MetricRecord({"num-examples": 100 + node, "client-id": node})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        question = Message(RecordDict(), dst_node_id=node, message_type="train")
        _store(Message(content, reply_to=question), folder / f"{node}")


def _store(message: Message, place: Path) -> None:
    place.mkdir(parents=True)
    objects = get_all_nested_objects(message)
    for key, value in objects.items():
        (place / key).write_bytes(value.deflate())
    index = {"root": message.object_id, "objects": list(objects)}
    (place / "index.json").write_text(json.dumps(index))


def strategy_of(name: str, clients: int) -> FedAvg | Strategy:
    """Return a strategy that trains on all nodes and evaluates on none."""
    everybody = {"fraction_evaluate": 0.0, "min_train_nodes": clients, "min_available_nodes": 1}
    if name == STRATEGIES[0]:
        return FedAvg(**everybody)  # type: ignore[arg-type]
    return Strategy(name.split()[1], **everybody)  # type: ignore[arg-type]


def peak_bytes() -> int:
    """Return the largest memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def play(case: dict[str, Any], folder: str, threads: int, answer: Any) -> None:
    """Run some rounds in this process and send back their cost."""
    torch.set_num_threads(threads)
    grid = FileGrid(Path(folder), case["clients"])
    strategy = strategy_of(case["strategy"], case["clients"])
    record = ArrayRecord({name: Array(value) for name, value in broadcast(case["model"]).items()})
    torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    before = peak_bytes()
    rounds = list(play_rounds(strategy, grid, record, case["rounds"]))
    best = {name: min(row[name] for row in rounds) for name in rounds[0]}
    answer.put({**case, **best, "memory_mb": (peak_bytes() - before) / 2**20})


def play_rounds(
    strategy: FedAvg | Strategy, grid: Grid, record: ArrayRecord, count: int
) -> Iterator[dict[str, float]]:
    """Yield the cost of each of some rounds for the server."""
    for number in range(1, count + 1):
        started, worked = time.perf_counter(), time.process_time()
        messages = strategy.configure_train(number, record, ConfigRecord(), grid)
        if isinstance(strategy, Strategy):
            busy = strategy.messenger.seconds
            strategy.aggregate_train(number, strategy.messenger.send(grid, messages))
            aggregate = strategy.messenger.seconds - busy
        else:
            replies = grid.send_and_receive(messages, timeout=3600)
            begun = time.perf_counter()
            strategy.aggregate_train(number, replies)
            aggregate = time.perf_counter() - begun
            del replies
        yield {
            "round_seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - worked,
            "aggregate_seconds": aggregate,
        }


def measure(case: dict[str, Any], folder: Path, threads: int) -> dict[str, Any]:
    """Run one case in a new process."""
    spawn = multiprocessing.get_context("spawn")
    answer = spawn.Queue()
    process = spawn.Process(target=play, args=(case, str(folder), threads, answer))
    process.start()
    result: dict[str, Any] = answer.get()
    process.join()
    return result


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table; ratios are against Flower's FedAvg on the same replies."""
    table = Table(title="One round on the server, everybody takes part")
    head = ("model", "clients", "strategy", "aggregate s", "round s", "CPU s", "memory MB")
    for title in (*head, "round ratio", "CPU ratio", "memory ratio"):
        table.add_column(title, justify="right")
    for row in rows:
        flower = next(r for r in rows if _case(r) == _case(row))
        costs = ("round_seconds", "cpu_seconds", "memory_mb")
        table.add_row(
            row["model"],
            str(row["clients"]),
            row["strategy"],
            *(f"{row[name]:.3f}" for name in ("aggregate_seconds", *costs[:2])),
            f"{row['memory_mb']:.0f}",
            *(f"{row[name] / flower[name]:.2f}" for name in costs),
        )
    Console(width=130).print(table)


def _case(row: dict[str, Any]) -> tuple[str, int]:
    return row["model"], row["clients"]


def main() -> None:
    """Make the replies of every case, run it with every strategy, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--rounds", type=int, default=3, help="rounds per case; the fastest counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", type=Path, help="where replies go; 4 bytes x clients x model")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for model in options.models:
            place = Path(folder) / model
            write_replies(model, max(options.clients), place)
            for clients in options.clients:
                for name in STRATEGIES:
                    case = {"model": model, "clients": clients, "strategy": name}
                    rows.append(measure({**case, "rounds": options.rounds}, place, options.threads))
    show(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
