"""A ClientApp from a model, a client's data and a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from torch import nn

from fedcraft.engine.numerics import settled
from fedcraft.errors import InputError
from fedcraft.flower import keys
from fedcraft.flower.visit import ClientSplits, Recipe, Visit
from fedcraft.local import LocalObjective
from fedcraft.methods import Method
from fedcraft.methods import method as method_by_name

__all__ = ["client_app"]

Choice = str | Method | LocalObjective


def client_app(
    model_fn: Callable[[Context], nn.Module],
    data_fn: Callable[[Context], ClientSplits],
    method: Choice | Callable[[Context], Choice] = "craft",
    *,
    client_id_fn: Callable[[Context], int] | None = None,
    state_dir: str | Path | None = None,
    lr: float = 0.05,
    local_epochs: int = 1,
    batch_size: int = 50,
    seed: int = 77,
    one_thread: bool = False,
    mods: Sequence[Mod] = (),
) -> ClientApp:
    """Return a ClientApp that trains and evaluates one client by a method's local objective.

    ``model_fn`` and ``data_fn`` get Flower's context. The data are a client of a
    ``fedcraft.data.Federation``, or ``{"train": (inputs, labels), "test": (inputs, labels)}``.
    ``method`` is a method (or its name, or a local objective), or a function of the context that
    gives one. ``client_id_fn`` names the client by a number of its own, by default the
    ``partition-id`` of the node's config: sampling, random streams and the order of sums go by it,
    so that a run does not depend on Flower's node ids.

    What personal methods keep between rounds lies in ``context.state``, which ends with the
    SuperNode or the run, or in ``state_dir`` (or the node config's ``state-dir``), which does not:
    a federation that has to resume exactly needs the latter.

    ``lr``, ``local_epochs``, ``batch_size`` and ``seed`` hold where the server does not say.
    ``one_thread`` trains with the simulator's arithmetic, for the same bits as its runs.
    """
    recipe = Recipe(
        model_fn,
        data_fn,
        _objective_source(method),
        client_id_fn or _partition_id,
        state_dir,
        {keys.LR: lr, keys.EPOCHS: local_epochs, keys.BATCH: batch_size, keys.SEED: seed},
    )
    app = ClientApp(mods=list(mods))

    def answer(message: Message, context: Context, how: Callable[[Visit], RecordDict]) -> Message:
        with settled() if one_thread else nullcontext():
            return Message(how(Visit(recipe, message.content, context)), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(message, context, Visit.train)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answer(message, context, Visit.evaluate)

    @app.query("loss")
    def loss(message: Message, context: Context) -> Message:
        return answer(message, context, Visit.loss)

    @app.query()
    def name(message: Message, context: Context) -> Message:
        known = MetricRecord({keys.CLIENT: recipe.client_id_fn(context)})
        return Message(RecordDict({keys.METRICS: known}), reply_to=message)

    return app


def _objective_source(
    method: Choice | Callable[[Context], Choice],
) -> Callable[[Context], LocalObjective]:
    if isinstance(method, str):
        method = method_by_name(method)  # a wrong name shows when the app is loaded

    def objective(context: Context) -> LocalObjective:
        chosen = method(context) if callable(method) else method
        if isinstance(chosen, LocalObjective):
            return chosen
        named = method_by_name(chosen) if isinstance(chosen, str) else chosen
        return named.build()[0]

    return objective


def _partition_id(context: Context) -> int:
    found = context.node_config.get("partition-id")
    if not isinstance(found, int):
        raise InputError(
            f"node config: expected a number 'partition-id', found {found!r}; start the SuperNode "
            "with --node-config 'partition-id=0', or give client_app a client_id_fn"
        )
    return found
