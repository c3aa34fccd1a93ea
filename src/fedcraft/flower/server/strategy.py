"""``Strategy``: every method of fedcraft as a Flower strategy that can replace FedAvg."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Literal, NoReturn, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore import log
from torch import nn

from fedcraft.aggregators import Certificate
from fedcraft.config.overrides import TrainingKeys
from fedcraft.config.settings import Settings
from fedcraft.errors import InputError, require
from fedcraft.flower.messages import keys
from fedcraft.flower.server.client_metrics import common_metrics, evaluation_reply, sent_metrics
from fedcraft.flower.server.messenger import Messenger
from fedcraft.flower.server.node_selection import NodeSelection
from fedcraft.flower.server.private_rounds import FederatedPrivacy, refuse_void_privacy
from fedcraft.flower.server.replies import AcceptedReply
from fedcraft.flower.server.rounds import Rounds
from fedcraft.flower.server.run_config import (
    method_of,
    recorded_config,
    settings_of,
    size_capped,
)
from fedcraft.flower.server.run_state import RunState
from fedcraft.linalg.numerics import single_threaded
from fedcraft.methods import Method, Override
from fedcraft.privacy import Privacy
from fedcraft.secure import Secure
from fedcraft.updates import ClientId, Layout, client_order

MetricsFn = Callable[[list[RecordDict], str], MetricRecord | None]


class Strategy(FlowerStrategy):
    """A method of fedcraft on Flower's message API.

    The arguments up to ``evaluate_metrics_aggr_fn`` mean what they mean in Flower's ``FedAvg``, and
    are given by name. ``weighted_by_key=None`` gives all clients the same weight, and functions
    that aggregate metrics get the replies without their arrays, which are freed by then. ``method``
    is a name of ``fedcraft methods`` or a ``Method``, whose parts ``local``, ``aggregator`` and
    ``server`` may be overridden. The default, ``craft-auto``, needs no server rate: its steps are
    as long as FedAvg's. ``"craft"`` is the method of the paper.

    * ``model`` or ``layout`` says which arrays are trainable and which belong to one layer. Without
      them every float array is trainable except BatchNorm's running statistics and masks with Inf,
      and a layer is an array's name up to its last dot.
    * ``client_lr``, ``local_epochs``, ``batch_size`` and ``seed`` are sent with every message;
      those in ``train_config`` win. ``training`` are settings of the simulator.
    * Clients evaluate after every fifth round and after the last one, because over a network that
      takes as long as training; ``evaluate_every=1`` is every round, as in Flower's ``FedAvg``.
    * ``look_ahead``: clients train from a point ahead of the model, as ``craft-auto`` advises; the
      model itself is evaluated, returned and saved. ``model_average="tail"`` (or ``"ema"``)
      evaluates, returns and saves the average of the models instead; ``aggregate_train`` returns
      the last one. Neither works where another strategy runs the rounds.
    * ``guard`` stands before the rule against hostile clients, as in a simulation: a name of
      ``fedcraft.aggregators.GUARDS`` (``"default"`` is the recommended one), a table, a class or an
      object. Without it the methods of CRAFT have ``"size_cap"``: the number of examples that a
      client claims counts at most three times the median. ``"none"`` trusts everybody.
    * ``run_dir`` keeps the simulator's tables, for ``fedcraft report``, and checkpoints: a
      ServerApp that starts again with the same directory continues where the last one stopped, and
      ends with the same model. Put the directory on a disk that outlives the ServerApp.
    * A round needs ``min_clients`` good replies; one with fewer is repeated, ``attempts`` times in
      all, and then an error is raised. Late, missing and refused replies are left out, and the
      weights are renormalised over the others. ``max_update_norm`` refuses longer updates.
    * ``reply="model"`` asks fedcraft's clients for theta_i instead of g_i = theta_t - theta_i:
      needed where a client mod reads the arrays, at the cost of one rounding.
    * ``one_thread`` aggregates with the simulator's arithmetic, for the same bits as its runs. It
      asks clients for their numbers before the first draw; without it, and for methods that are not
      personal, a draw goes by them as soon as replies have shown some.

    * ``secure``: a ``fedcraft.secure.Secure`` with which no update leaves a client in the clear;
      the clients need ``client_app(..., secure=...)``. See the page about privacy.
    * ``privacy``: a ``fedcraft.privacy.Privacy``; unless its mode is ``central``, the clients need
      ``client_app(..., privacy=...)`` too. Every round's metrics have the budget that is spent, and
      a round beyond ``privacy.epsilon`` is not started.

    Memory of a round: one (clients, parameters) matrix and one reply.
    """

    def __init__(
        self,
        method: str | Method = "craft-auto",
        *positional: NoReturn,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str | None = keys.EXAMPLES,
        arrayrecord_key: str = keys.ARRAYS,
        configrecord_key: str = keys.CONFIG,
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
        local: Override = None,
        aggregator: Override = None,
        server: Override = None,
        guard: Override = None,
        client_lr: float | None = None,
        server_lr: float | None = None,
        model: nn.Module | None = None,
        layout: Layout | None = None,
        run_dir: str | Path | None = None,
        min_clients: int = 1,
        attempts: int = 3,
        max_update_norm: float | None = None,
        reply: Literal["update", "model"] = "update",
        one_thread: bool = False,
        secure: Secure | None = None,
        privacy: Privacy | None = None,
        **training: Unpack[TrainingKeys],
    ) -> None:
        changed = method_of(method, *positional).overridden(
            local=local,
            aggregator=aggregator,
            server=server,
            guard=guard,
            client_lr=client_lr,
            server_lr=server_lr,
        )
        self.method = size_capped(changed, guard)
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes = min_train_nodes if fraction_train else 0
        self.min_evaluate_nodes = min_evaluate_nodes if fraction_evaluate else 0
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or aggregate_metricrecords
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or aggregate_metricrecords
        self.model, self.layout = model, layout
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.min_clients, self.attempts = min_clients, attempts
        self.max_update_norm, self.reply, self.one_thread = max_update_norm, reply, one_thread
        self.settings = settings_of(self.method, max(min_train_nodes, 1), training)
        for name, given, kind in (("secure", secure, Secure), ("privacy", privacy, Privacy)):
            expected = f"a fedcraft.{name}.{kind.__name__}(...) or None"
            require(given is None or isinstance(given, kind), name, expected, given)
        self.secure = secure if secure is not None and secure.enabled else None
        self.privacy = privacy
        _check(self)
        self._private()  # an unsound combination is an error now
        self._state: RunState | None = None
        self._wrapped = False  # another strategy, or a subclass, runs the rounds

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run a federation of ``num_rounds`` rounds, or resume one; return Flower's ``Result``.

        ``timeout`` is a round's deadline in seconds. With a ``run_dir`` that holds a checkpoint,
        ``initial_arrays`` only give the shape of the model, and the run continues after the
        last saved round.
        """
        settings = self.settings.but(rounds=max(num_rounds, 1))
        train_config = train_config or ConfigRecord()
        self._open(initial_arrays, settings, timeout)
        self._wrapped = False
        self.state.client_lr = float(train_config.get(keys.LR, self.method.client_lr))  # type: ignore[arg-type]
        names = ("weighted_by_key", "fraction_train", "min_train_nodes")
        others = {name: getattr(self, name) for name in names}
        if self.privacy is not None:
            others["privacy"] = asdict(self.privacy)
        config = recorded_config(self.method, settings, train_config, **others)
        log(INFO, "Starting fedcraft's %s:", self.method.title)
        with single_threaded() if self.one_thread else nullcontext():
            configs = train_config, evaluate_config or ConfigRecord()
            return Rounds(self, grid, config, settings, num_rounds, *configs, evaluate_fn).run()

    def _private(self) -> FederatedPrivacy | None:
        if self.privacy is None:
            return None
        rule = self.method.build()[1]
        return FederatedPrivacy(self.privacy, rule, self.secure, self.min_clients)

    @property
    def state(self) -> RunState:
        """The run's state, which the first broadcast makes."""
        if self._state is None:
            raise InputError("replies: call configure_train before aggregate_train")
        return self._state

    @property
    def certificate(self) -> Certificate | None:
        """What the last step did to every client that took part in it."""
        step = None if self._state is None else self._state.step
        return None if step is None else step.certificate

    def summary(self) -> None:
        """Log what this strategy will do."""
        chosen = self.method
        rate = chosen.client_lr if self._state is None else self._state.client_lr
        log(INFO, "\t├──> Method: %s, %s", chosen.title, chosen.summary)
        log(INFO, "\t├──> Rates: clients %g, server %g", rate, chosen.server_lr)
        log(INFO, "\t├──> Evaluation by clients: %s", _evaluation(self))
        log(INFO, "\t└──> Run directory: %s", self.run_dir or "none, so no tables and no resume")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's nodes and return the messages to them."""
        if self.fraction_train == 0:
            return []
        state = self._state or self._open_wrapped(arrays)
        state.adopt_broadcast(arrays)
        least, available = self.min_train_nodes, self.min_available_nodes
        nodes = self.selection.choose(grid, server_round - 1, self.fraction_train, least, available)
        state.updates.open(nodes, state.sent, state.server.averaged)
        lr = self.settings.client_lr_at(server_round - 1)
        updates = self.reply == "update" and not self._wrapped
        sent = {
            **self.messenger.common_config(server_round, lr),
            keys.REPLY: keys.UPDATE if updates else keys.ARRAYS,
            keys.LAYOUT: state.wire.digest,
            keys.REPORT_LOSS: state.server.wants_losses,
            **config,
            keys.ROUND: server_round,  # a config that was used before may hold another
        }
        state.client_lr, self._grid = float(sent[keys.LR]), grid
        return self.messenger.messages(MessageType.TRAIN, nodes, state.broadcast, sent)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Read the replies one by one, and step; return (None, None) if too few are good."""
        state, messenger = self.state, self.messenger
        messenger.receive(replies, state.updates.add)
        counts = len(state.updates.accepted), len(messenger.refused), len(messenger.missing)
        log(INFO, "aggregate_train: %d good replies, %d refused, %d missing", *counts)
        if counts[0] < self.min_clients:
            return None, None
        started = time.perf_counter()
        losses_at = partial(messenger.losses_at, self._grid)
        state.aggregate(server_round, state.updates.trained(), losses_at)
        messenger.seconds += time.perf_counter() - started
        metrics = self._aggregated(state.updates.accepted, self.train_metrics_aggr_fn)
        found = metrics or MetricRecord()
        found["clients"], found["refused"], found["missing"] = counts
        if self.certificate is not None:
            said = "round %d: the guard left out client %s: %s"
            for client, why in self.certificate.left_out.items():
                log(WARNING, said, server_round, client, why)
            found["left-out"] = len(self.certificate.left_out)
            found["conflicts-average"] = self.certificate.whole.conflicts_average
            found["conflicts-after"] = self.certificate.whole.conflicts_after
        return state.record, found

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the nodes that evaluate and return the messages to them."""
        if self.fraction_evaluate == 0:
            return []
        state = self._state or self._open_wrapped(arrays)
        least, available = self.min_evaluate_nodes, self.min_available_nodes
        nodes = self.selection.choose(grid, server_round, self.fraction_evaluate, least, available)
        sent = {
            **self.messenger.common_config(server_round, self.settings.client_lr_at(server_round)),
            keys.SPLITS: "test,train" if self.settings.evaluate_train_loss else "test",
            **config,
            keys.ROUND: server_round,
        }
        record = state.output if arrays is state.record else arrays
        return self.messenger.messages(MessageType.EVALUATE, nodes, record, sent)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Collect every client's metrics and return their weighted means."""
        found: list[AcceptedReply] = []

        def accept(node: int, client: ClientId, reply: Message) -> None:
            found.append(evaluation_reply(node, client, reply, self.weighted_by_key))

        state = self.state
        self.messenger.receive(replies, accept)
        state.scores = sorted(found, key=lambda reply: client_order(reply.client))
        if not any(reply.weight for reply in found):
            return None
        return self._aggregated(state.scores, self.evaluate_metrics_aggr_fn)

    def _open(self, arrays: ArrayRecord, settings: Settings, timeout: float | None) -> RunState:
        state = self._state = RunState(
            self.method,
            arrays,
            settings,
            model=self.model,
            layout=self.layout,
            weight_key=self.weighted_by_key,
            longest=self.max_update_norm,
            private=self._private(),
        )
        names = self.arrayrecord_key, self.configrecord_key
        self.messenger = Messenger(state, self.settings, names, timeout)
        self.selection = NodeSelection(self.messenger, exact=self.one_thread)
        return state

    def _open_wrapped(self, arrays: ArrayRecord) -> RunState:
        """Make the state of a run whose rounds another strategy runs.

        That strategy may compare replies with the model it has seen, or clip them. So clients send
        models, and there is no look-ahead.
        """
        for name in ("secure", "privacy"):
            if getattr(self, name) is not None:
                raise InputError(
                    f"{name}: only start() of this strategy can run such rounds, but another "
                    "strategy runs the rounds; start this strategy itself"
                )
        given = {"run_dir": self.run_dir} | self.settings.identity()
        for name in ("run_dir", "model_average", "server_lr_schedule"):
            if given.get(name) is not None:
                raise InputError(
                    f"{name}: only start() of this strategy can use {given[name]}, but another "
                    f"strategy runs the rounds; leave out {name}, or start this strategy itself"
                )
        refuse_void_privacy(self.method, self.weighted_by_key)
        if self.settings.look_ahead:
            log(INFO, "Another strategy runs the rounds: clients start without look-ahead")
        self._wrapped = True
        return self._open(arrays, self.settings.but(look_ahead=0.0), None)

    def _aggregated(self, replies: Sequence[AcceptedReply], how: MetricsFn) -> MetricRecord | None:
        # Flower's function needs the same metrics from all clients; others get them unchanged.
        given = common_metrics if how is aggregate_metricrecords else sent_metrics
        key = self.weighted_by_key or keys.EXAMPLES
        return how(given(replies, key), key)


def _evaluation(strategy: Strategy) -> str:
    every = strategy.settings.evaluate_every
    if not strategy.fraction_evaluate:
        return "none"
    if every == 1:
        return "after every round"
    often = f"after every {every} rounds and the last" if every else "after the last round"
    return f"{often} (evaluate_every=1: after every round, as Flower's own strategies)"


def _check(strategy: Strategy) -> None:
    for name in ("fraction_train", "fraction_evaluate"):
        share = getattr(strategy, name)
        require(0 <= share <= 1, name, "a share in [0, 1]", share)
    counts = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
    for name in (*counts, "min_clients", "attempts"):
        count, least = getattr(strategy, name), 0 if name in counts else 1
        whole = isinstance(count, int) and count >= least
        require(whole, name, f"a whole number of at least {least}", count)
    longest = strategy.max_update_norm
    require(longest is None or longest > 0, "max_update_norm", "a number above 0 or None", longest)
    require(strategy.reply in ("update", "model"), "reply", "'update' or 'model'", strategy.reply)
    if strategy.secure is not None:
        why = "with secure, which hides single updates from the server"
        require(longest is None, "max_update_norm", f"None {why}", longest)
        require(strategy.reply == "update", "reply", f"'update' {why}", strategy.reply)
