"""Secure rounds on Flower: the stages as messages, relayed by the ServerApp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log
from torch import Tensor

from fedcraft.aggregators import Aggregator
from fedcraft.aggregators.base import Step
from fedcraft.engine.server import refuse_buffers, refuse_rows
from fedcraft.errors import InputError
from fedcraft.flower.messages import keys
from fedcraft.flower.messages import secure as wire
from fedcraft.flower.server.messenger import Messenger
from fedcraft.flower.server.reply_stream import ReplyStream
from fedcraft.secure import Secure
from fedcraft.secure.agreement import Message as Arrays
from fedcraft.secure.cohort import SecretCohort, aggregate_secretly
from fedcraft.secure.options import Stage
from fedcraft.secure.primitives import digest
from fedcraft.secure.products import SecretProducts
from fedcraft.secure.server import MaskedRound, Private, RoundFailed
from fedcraft.secure.simulation import SecureReport
from fedcraft.updates import ClientId, client_order


class GridExchange:
    """Asks nodes over Flower's grid; clients are named by their nodes."""

    def __init__(self, grid: Grid, messenger: Messenger, train: Sequence[Message]) -> None:
        self._grid, self._messenger = grid, messenger
        self._train = {message.metadata.dst_node_id: message for message in train}

    def ask(
        self, stage: Stage, said: Arrays, private: Private
    ) -> Iterator[tuple[ClientId, Arrays]]:
        """Send one stage to some nodes and pass on the answers that arrive in time."""
        common = wire.pack(said)
        if stage == "sketch":
            yield from self._trained(common, private).items()
            return
        messages = [self._message(stage, node, common, mine) for node, mine in private.items()]
        stream = ReplyStream(self._grid, messages, timeout=self._messenger.patience)
        for reply in stream:
            node = stream.sender(reply)
            try:
                if reply.has_error():
                    raise InputError(reply.error.reason)
                answer = wire.answer_of(reply.content)
            except InputError as error:
                log(WARNING, "stage %s: node %d: %s", stage, node, error)
                self._messenger.objections[node] = f"stage {stage}: {error}"
            else:
                yield node, answer
        if stream.missing:
            log(WARNING, "stage %s: no answer from nodes %s", stage, stream.missing)

    def _message(self, stage: Stage, node: Any, common: ArrayRecord, mine: Arrays) -> Message:
        config = ConfigRecord({wire.STAGE: stage})
        content = RecordDict({keys.CONFIG: config, wire.SAID: common, wire.MINE: wire.pack(mine)})
        kind = f"{MessageType.QUERY}.{wire.QUERY}"
        return Message(content, dst_node_id=node, message_type=kind, ttl=self._messenger.life)

    def _trained(self, common: ArrayRecord, private: Private) -> Mapping[ClientId, Arrays]:
        """Let the nodes train; their reports go the way of every training reply."""
        messages = []
        for node, mine in private.items():
            message = self._train[int(node)]
            message.content[wire.SAID], message.content[wire.MINE] = common, wire.pack(mine)
            messages.append(message)
        found: dict[ClientId, Arrays] = {}

        def accept(node: int, client: ClientId, reply: Message) -> None:
            answer = wire.answer_of(reply.content)
            self._messenger.state.updates.add(node, client, reply, secret=True)
            found[node] = answer

        self._messenger.receive(self._messenger.send(self._grid, messages), accept)
        return found


class SecureRounds:
    """Aggregates the rounds of a strategy without seeing an update."""

    def __init__(self, options: Secure, grid: Grid, messenger: Messenger) -> None:
        self._options, self._grid, self._messenger = options, grid, messenger
        self._state = messenger.state
        refuse_buffers(self._state.server.averaged)
        refuse_rows(self._state.server.aggregator, options)

    def train(self, number: int, messages: Sequence[Message]) -> MetricRecord | None:
        """Run a round whose training messages were not sent yet; None if it must be repeated."""
        exchange = GridExchange(self._grid, self._messenger, messages)
        occasion = digest(self._state.run_key.encode(), number.to_bytes(8, "little"))
        nodes = [message.metadata.dst_node_id for message in messages]
        sizes = self._state.wire.layout.sizes
        request = wire.request_digest(messages[0].content)
        try:
            round = MaskedRound(
                exchange, nodes, sizes, self._options, occasion=occasion, request=request
            )
            report = self._aggregate(number, round)
        except RoundFailed as error:
            log(WARNING, "round %d: %s", number, error)
            return None
        log(INFO, "secure round %d: %s", number, report)
        return MetricRecord({"clients": len(self._state.updates.accepted), "sums": report.sums})

    def _aggregate(self, number: int, round: MaskedRound) -> SecureReport:
        updates, layout = self._state.updates, self._state.wire.layout
        reports = {reply.node: reply for reply in updates.accepted}
        order = sorted(round.clients, key=lambda node: client_order(reports[int(node)].client))
        updates.accepted = [reports[int(node)] for node in order]
        trained = updates.trained(secret=True)
        products = SecretProducts(round, self._options)
        rows = tuple(round.clients.index(node) for node in order)
        given = trained.reported(layout, self._state.client_lr)
        facts = given.facts(len(order), layout.dimension)
        cohort = SecretCohort(**facts, products=products, rows=rows)
        reported: list[SecureReport] = []

        def remote(rule: Aggregator) -> tuple[Step, dict[str, Any]]:
            step = aggregate_secretly(rule, cohort)
            certificate = step.certificate
            summed = {reports[int(node)].client for node in products.summed()}
            kept = {*certificate.client_ids} if certificate else summed
            updates.accepted = [reply for reply in updates.accepted if reply.client in kept]
            lost = tuple(i for i in trained.clients.tolist() if i not in kept)
            spread = tuple(layout.names[layer] for layer in sorted(products.spread))
            reported.append(SecureReport(products.spent, 1, lost, spread))
            if self._state.private is not None:
                self._state.private.require_noise(len(kept))
            return step, asdict(reported[-1])

        self._state.aggregate(number, trained, _no_losses, remote)
        return reported[-1]


def _no_losses(theta: Tensor, clients: Sequence[ClientId]) -> Sequence[float]:
    raise InputError("secure: a line search asks clients for losses, which is not supported")
