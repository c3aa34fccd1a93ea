"""``client_app``: a ClientApp from a model, a client's data and a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import nn

from fedcraft.errors import InputError, require
from fedcraft.flower.client.request import ClientRequest, ClientSplits
from fedcraft.flower.client.secure_mod import SecureAnswers
from fedcraft.flower.messages import keys
from fedcraft.flower.messages.secure import QUERY
from fedcraft.linalg.numerics import single_threaded
from fedcraft.local import LocalObjective
from fedcraft.methods import Method
from fedcraft.methods import method as method_by_name

if TYPE_CHECKING:
    from fedcraft.privacy import Privacy

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
    secure: SecureAnswers | None = None,
    privacy: Privacy | None = None,
) -> ClientApp:
    """Return a ClientApp that trains and evaluates one client by a method's local objective.

    ``model_fn`` and ``data_fn`` receive Flower's context. The data are a client of a
    ``fedcraft.data.Federation``, or ``{"train": (inputs, labels), "test": (inputs, labels)}``.
    ``method`` is a method, its name, a local objective, or a function of the context that returns
    one of these. ``client_id_fn`` returns the client's number, by default the ``partition-id`` of
    the node's config. Sampling, random streams and the order of sums go by this number, so a run
    does not depend on Flower's node ids.

    Personal methods keep their state in ``context.state``, which ends with the SuperNode or the
    run, or in ``state_dir`` (or the node config's ``state-dir``), which outlives both: a federation
    that has to resume exactly needs the latter.

    ``lr``, ``local_epochs``, ``batch_size`` and ``seed`` apply where the server sends no value.
    ``one_thread`` trains with the simulator's arithmetic, for the same bits as its runs. ``mods``
    are Flower's mods around training. With ``secure=SecureAnswers()`` the client takes part in
    secure rounds only, and its update never leaves it in the clear. ``privacy`` is a
    ``fedcraft.privacy.Privacy`` of the mode ``local`` or ``distributed``: updates are clipped, and
    leave with noise.
    """
    _check_protection(secure, privacy)
    defaults = {keys.LR: lr, keys.EPOCHS: local_epochs, keys.BATCH: batch_size, keys.SEED: seed}
    client_of = client_id_fn or _partition_id
    # A wrong name is an error when the app is loaded.
    chosen = method_by_name(method) if isinstance(method, str) else method
    app = ClientApp()

    def reply(
        answer: Callable[[ClientRequest], RecordDict], message: Message, context: Context
    ) -> Message:
        with single_threaded() if one_thread else nullcontext():
            request = ClientRequest(
                message.content,
                context,
                client=client_of(context),
                model=model_fn(context),
                data=data_fn(context),
                objective=_objective(chosen, context),
                state_dir=state_dir,
                defaults=defaults,
            )
            if secure is not None:
                secure.note_layout(request.wire.layout, context)
            return Message(answer(request), reply_to=message)

    if secure is not None and privacy is not None and privacy.mode == "distributed":
        secure = secure.with_equal_sums()
    around = [*_noise(privacy, secure), *mods]  # the first is the last to see a reply
    if secure is not None:
        around = [secure.train, *around]
        app.query(QUERY)(secure.query)
    app.train(mods=around)(partial(reply, ClientRequest.train))
    app.evaluate()(partial(reply, ClientRequest.evaluate))
    if privacy is None and secure is None:  # losses carry no noise, and many show a gradient
        app.query("loss")(partial(reply, ClientRequest.loss))

    @app.query()
    def client_id(message: Message, context: Context) -> Message:
        metrics = MetricRecord({keys.CLIENT: client_of(context)})
        return Message(RecordDict({keys.METRICS: metrics}), reply_to=message)

    return app


def client_id_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Add the client's number to the metrics of a reply: a Flower mod for any ClientApp.

    ``ClientApp(mods=[client_id_mod])`` names a client by its node's ``partition-id``. Without a
    name a client is known by the id of its node; without SuperNode authentication that is a new one
    after every restart.
    """
    reply = call_next(message, context)
    if reply.has_content():
        for metrics in reply.content.metric_records.values():
            metrics.setdefault(keys.CLIENT, _partition_id(context))
    return reply


def _check_protection(secure: object, privacy: object) -> None:
    answers = "a fedcraft.flower.SecureAnswers, as in secure=SecureAnswers(), or None"
    require(secure is None or isinstance(secure, SecureAnswers), "secure", answers, secure)
    if privacy is not None:
        from fedcraft.privacy import Privacy  # others start faster without it

        fine = isinstance(privacy, Privacy)
        require(fine, "privacy", "a fedcraft.privacy.Privacy(...) or None", privacy)


def _noise(privacy: Privacy | None, secure: SecureAnswers | None) -> list[Mod]:
    if privacy is None:
        return []
    from fedcraft.flower.client.private_mod import PrivateUpdates  # others start faster without it

    return [PrivateUpdates(privacy, secure).train]


def _objective(method: Choice | Callable[[Context], Choice], context: Context) -> LocalObjective:
    chosen = method(context) if callable(method) else method
    if isinstance(chosen, LocalObjective):
        return chosen
    named = method_by_name(chosen) if isinstance(chosen, str) else chosen
    return named.build()[0]


def _partition_id(context: Context) -> int:
    found = context.node_config.get("partition-id")
    if not isinstance(found, int):
        raise InputError(
            f"node config: expected a number 'partition-id', found {found!r}; start the SuperNode "
            "with --node-config 'partition-id=0', or give client_app a client_id_fn"
        )
    return found
