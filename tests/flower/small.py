"""A federation small enough for hundreds of rounds in a test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from benchmarks.grids import InProcessGrid
from fedcraft.data import Federation, federate, load
from fedcraft.engine import Settings
from fedcraft.engine.simulation import run
from fedcraft.flower import Strategy, client_app
from fedcraft.methods import method
from fedcraft.models import build

SEED, CLIENTS, LR = 5, 4, 0.05


@cache
def federation() -> Federation:
    data = load("digits")
    return federate(data.subset(np.arange(240)), "dirichlet", CLIENTS, alpha=0.5, seed=SEED)


def model() -> nn.Module:
    return build("mlp", input_shape=(64,), classes=10, seed=SEED, hidden=[8])


def app(name: str = "craft", **options: Any) -> ClientApp:
    return client_app(lambda _: model(), client_data, name, one_thread=True, **options)


def client_data(context: Context) -> Any:
    return federation().client(int(context.node_config["partition-id"]))


def strategy(name: str = "craft", **options: Any) -> Strategy:
    chosen = {"client_lr": LR, "seed": SEED, "one_thread": True, "evaluate_every": 0, **options}
    if "layout" not in chosen:
        chosen.setdefault("model", model())
    return Strategy(name, **chosen)


def arrays() -> ArrayRecord:
    return ArrayRecord(model().state_dict())


def train(
    name: str = "craft", *, rounds: int = 3, timeout: float = 5.0, grid: Any = None, **options: Any
) -> Strategy:
    """Run a federation in this process and return its strategy."""
    chosen = strategy(name, **options)
    chosen.start(grid or InProcessGrid(app(name), CLIENTS), arrays(), rounds, timeout)
    return chosen


def theta(trained: Strategy) -> Tensor:
    return trained.state.server.output


def simulate(name: str, *, rounds: int, clients_per_round: int = CLIENTS, **options: Any) -> Tensor:
    """Return the simulator's model after as many rounds."""
    settings = Settings(
        rounds=rounds,
        clients_per_round=clients_per_round,
        client_lr=LR,
        server_lr=method(name).server_lr,
        seed=SEED,
        executor="serial",
        **options,
    )
    return run(method(name), federation(), model, settings).vector


def tables(run_dir: Path) -> dict[str, Any]:
    """Return what a run wrote, without what depends on the clock."""
    import json

    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"], row["peak_memory_mb"]
    named = {name: (run_dir / name).read_text() for name in ("clients.csv", "conflicts.csv")}
    return {"metrics": rows, **named}


Change = Callable[[dict[str, Any]], Any]


def corrupting(
    client: int, change: Callable[[Any], None], *, rounds: tuple[int, ...] = (1,)
) -> Any:
    """Return a fault: in some rounds one client's training reply is changed before it leaves."""

    def fault(question: Any, reply: Any) -> Any:
        config = question.content["config"]
        is_train = question.metadata.message_type == "train"
        mine = reply.content["metrics"]["client-id"] == client if reply.has_content() else False
        if is_train and mine and config["server-round"] in rounds:
            return change(reply)
        return reply

    return fault


def nameless(question: Any, reply: Any) -> Any:
    """A fault: clients do not say who they are, so that they are known by their nodes."""
    if reply.has_content():
        said = dict(reply.content["metrics"])
        reply.content["metrics"] = MetricRecord({n: v for n, v in said.items() if n != "client-id"})
    return reply


def vector_of(record: ArrayRecord) -> Tensor:
    return torch.cat([torch.from_numpy(a.numpy()).reshape(-1) for a in record.values()])


def metrics(values: dict[str, Any]) -> MetricRecord:
    return MetricRecord(values)
