"""Every method of fedcraft as a Flower strategy: a drop-in for FedAvg that can resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO
from pathlib import Path
from typing import Any, Literal, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore import log
from torch import Tensor, nn

from fedcraft.aggregators import Certificate
from fedcraft.engine.server import ServerStep
from fedcraft.errors import InputError, require
from fedcraft.flower import keys
from fedcraft.flower.intake import Accepted
from fedcraft.flower.post import Post
from fedcraft.flower.roster import client_order
from fedcraft.flower.rounds import Plan, Rounds
from fedcraft.flower.session import Session
from fedcraft.flower.tally import as_sent, contents, scored
from fedcraft.flower.training import Training, settings_of
from fedcraft.methods import Method, Override
from fedcraft.methods import method as method_by_name
from fedcraft.updates import ClientId, Layout

__all__ = ["Strategy"]

MetricsFn = Callable[[list[RecordDict], str], MetricRecord | None]
_LEAST = {
    "min_train_nodes": 0,
    "min_evaluate_nodes": 0,
    "min_available_nodes": 0,
    "min_clients": 1,
    "attempts": 1,
}


class Strategy(FlowerStrategy):
    """A method of fedcraft on Flower's message API.

    The arguments up to ``evaluate_metrics_aggr_fn`` mean what they mean in Flower's ``FedAvg``;
    ``weighted_by_key=None`` weighs all clients alike, and functions that aggregate metrics get the
    replies without their arrays, which are gone by then. ``method`` is a name of
    ``fedcraft methods`` or a ``Method``, whose parts ``local``, ``aggregator`` and ``server`` may
    be overridden.

    * ``model`` or ``layout`` says which arrays are trainable and which belong to one layer. Without
      them every float array but BatchNorm's running statistics and masks with Inf is, and a layer
      is an array's name up to its last dot. ``layers`` and ``buffers`` are those of the simulator.
    * ``client_lr`` (times ``lr_decay`` per round, as in the simulator), ``local_epochs``,
      ``batch_size`` and ``seed`` travel with every message; what ``train_config`` says wins. These
      and the other keys of ``Training`` are the simulator's settings.
    * ``run_dir`` keeps the simulator's tables, for ``fedcraft report``, and checkpoints: a
      ServerApp that starts again with the same directory goes on where the last one stopped, and
      ends with the same model. It belongs on a disk that outlives the ServerApp.
    * ``min_clients`` good replies make a round; a round with fewer is repeated, ``attempts`` times
      in all, and then an error. Who is late, missing or refused is left out, and the weights of the
      others renormalised over those who came. ``max_update_norm`` refuses longer updates.
    * ``reply="model"`` asks fedcraft's clients for theta_i instead of g_i = theta_t - theta_i:
      needed where a client mod looks at the arrays, at the price of one rounding.
    * ``one_thread`` aggregates with the simulator's arithmetic, for the same bits as its runs. It
      asks clients for their numbers before the first draw; without it, and for methods that are not
      personal, a draw goes by them as soon as replies have shown some.

    Memory of a round: one (clients, parameters) matrix and one reply.
    """

    def __init__(
        self,
        method: str | Method = "craft",
        *,
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
        **training: Unpack[Training],
    ) -> None:
        named = _method_of(method)
        rates = {"client_lr": client_lr, "server_lr": server_lr}
        self.method = named.overridden(local=local, aggregator=aggregator, server=server, **rates)
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
        _check(self)
        self.step: ServerStep | None = None
        self.scores: list[Accepted] = []
        self._post: Post | None = None
        self.client_lr = self.method.client_lr

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
        """Run a federation of ``num_rounds`` rounds, or go on with one; return what Flower does.

        ``timeout`` is a round's deadline in seconds. With a ``run_dir`` that holds a checkpoint,
        ``initial_arrays`` only tell the shape of the model and the run goes on after the last round
        saved.
        """
        self._post = self._open(initial_arrays, timeout)
        said: Mapping[str, Any] = train_config or {}
        self.client_lr = float(said.get(keys.LR, self.method.client_lr))
        plan = Plan(num_rounds, train_config, evaluate_config, evaluate_fn)
        return Rounds(self, grid, plan).run()

    @property
    def post(self) -> Post:
        """The conversation with the nodes, and through it the run's state."""
        if self._post is None:
            raise InputError("replies: configure_train has to come before aggregate_train")
        return self._post

    @property
    def certificate(self) -> Certificate | None:
        """What the last step did to every client that took part in it."""
        return None if self.step is None else self.step.certificate

    def summary(self) -> None:
        """Log what this strategy will do."""
        chosen = self.method
        log(INFO, "\t├──> Method: %s, %s", chosen.title, chosen.summary)
        log(INFO, "\t├──> Rates: clients %g, server %g", self.client_lr, chosen.server_lr)
        log(INFO, "\t└──> Run directory: %s", self.run_dir or "none, so no tables and no resume")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients and write to them."""
        if self.fraction_train == 0:
            return []
        post = self._post = self._post or self._open(arrays, None)
        session = post.session
        session.adopt(arrays)
        count = self._counter(self.fraction_train, self.min_train_nodes)
        chosen = post.choose(grid, server_round - 1, count)
        session.intake.open(session.wire, session.sent, chosen, session.server.averaged)
        asked = {
            **post.common(server_round, self.settings.client_lr_at(server_round - 1)),
            keys.REPLY: keys.UPDATE if self.reply == "update" else keys.ARRAYS,
            keys.LAYOUT: session.wire.digest,
            keys.REPORT_LOSS: session.server.wants_losses,
            **config,
            keys.ROUND: server_round,  # a config that was used before may still hold another
        }
        self.client_lr, self._grid = float(asked[keys.LR]), grid
        return post.letters(MessageType.TRAIN, chosen, session.record, asked)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies in one by one, and step; (None, None) if too few of them are good."""
        post, session = self.post, self.post.session
        post.take(replies, session.intake.take)
        counts = len(session.intake.accepted), len(post.refusals), len(post.missing)
        log(INFO, "aggregate_train: %d good replies, %d refused, %d missing", *counts)
        if counts[0] < self.min_clients:
            return None, None
        started = time.perf_counter()
        self.step = session.step(self.client_lr, self._losses_at)
        post.seconds += time.perf_counter() - started
        session.count(server_round)
        return session.record, self._train_metrics(session.intake.accepted)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Write to those who evaluate, with what personal methods need."""
        if self.fraction_evaluate == 0:
            return []
        post = self._post = self._post or self._open(arrays, None)
        count = self._counter(self.fraction_evaluate, self.min_evaluate_nodes)
        chosen = post.choose(grid, server_round, count)
        splits = "test,train" if self.settings.evaluate_train_loss else "test"
        rate = self.settings.client_lr_at(server_round)
        common = post.common(server_round, rate)
        asked = {**common, keys.SPLITS: splits, **config, keys.ROUND: server_round}
        record = post.session.output if arrays is post.session.record else arrays
        return post.letters(MessageType.EVALUATE, chosen, record, asked)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Collect every client's numbers and return their weighted means."""
        found: list[Accepted] = []

        def take(node: int, client: ClientId, reply: Message) -> None:
            found.append(scored(node, client, reply, self.weighted_by_key))

        self.post.take(replies, take)
        self.scores = sorted(found, key=lambda reply: client_order(reply.client))
        if not any(reply.weight for reply in found):
            return None
        return self._aggregated(self.scores, self.evaluate_metrics_aggr_fn)

    def _open(self, arrays: ArrayRecord, timeout: float | None) -> Post:
        session = Session(
            self.method,
            arrays,
            model=self.model,
            layout=self.layout,
            group=self.settings.layers,
            buffers=self.settings.buffers,
            weight_key=self.weighted_by_key,
            longest=self.max_update_norm,
        )
        names = self.arrayrecord_key, self.configrecord_key
        return Post(session, self.settings, names, timeout, exact=self.one_thread)

    def _counter(self, fraction: float, least: int) -> Callable[[int], int]:
        """Return how many of n nodes to ask, as Flower's FedAvg counts; of 0, how many to await."""

        def count(nodes: int) -> int:
            if nodes == 0:
                return max(self.min_available_nodes, least, 1)
            return max(int(nodes * fraction), least, 1)

        return count

    def _losses_at(self, theta: Tensor, clients: Sequence[ClientId]) -> list[float]:
        return self.post.losses_at(self._grid, theta, clients, self.client_lr)

    def _aggregated(self, replies: Sequence[Accepted], how: MetricsFn) -> MetricRecord | None:
        # Flower's own function wants the same numbers from everybody; others see what was sent.
        given = contents if how is aggregate_metricrecords else as_sent
        return how(*given(replies, self.weighted_by_key))

    def _train_metrics(self, good: Sequence[Accepted]) -> MetricRecord:
        found = self._aggregated(good, self.train_metrics_aggr_fn) or MetricRecord()
        found["clients"] = len(good)
        found["refused"] = len(self.post.refusals)
        found["missing"] = len(self.post.missing)
        if self.certificate is not None:
            found["conflicts-average"] = self.certificate.overall_conflicts_average
            found["conflicts-after"] = self.certificate.overall_conflicts_after
        return found


def _method_of(given: object) -> Method:
    if isinstance(given, str):
        return method_by_name(given)
    if isinstance(given, Method):
        return given
    raise InputError(
        f"method: expected a name or a Method, found {given!r}; what Flower's strategies take "
        "first goes by name here, as in fraction_train=0.5"
    )


def _check(strategy: Strategy) -> None:
    for name in ("fraction_train", "fraction_evaluate"):
        share = getattr(strategy, name)
        require(0 <= share <= 1, name, "a share in [0, 1]", share)
    for name, least in _LEAST.items():
        count = getattr(strategy, name)
        whole = isinstance(count, int) and count >= least
        require(whole, name, f"a whole number of at least {least}", count)
    longest = strategy.max_update_norm
    require(longest is None or longest > 0, "max_update_norm", "a number above 0 or None", longest)
    require(strategy.reply in ("update", "model"), "reply", "'update' or 'model'", strategy.reply)
