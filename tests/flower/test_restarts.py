"""SuperNodes that are restarted: who they are afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small
from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.grids import InProcessGrid
from fedcraft.flower import Strategy, client_id_mod

KILLED = 2


class Restarting(InProcessGrid):
    """A federation in which one SuperNode is killed after round 1 and started again at once.

    It has a new id; the SuperLink lists the old one as online until its heartbeat lapses, which is
    never here. ``lost`` is what the SuperLink answers for it, ``alive`` lets both answer.
    """

    def __init__(self, *, lost: Error | None = None, alive: bool = False, **options: Any) -> None:
        super().__init__(small.app(), small.CLIENTS, fault=self._after_round_1, **options)
        self.old, self.new, self.lost, self.alive = list(self.contexts)[KILLED], 77, lost, alive
        self.asked: list[int] = []

    def get_node_ids(self) -> list[int]:
        if self.asked and self.new not in self.contexts:
            node_config = self.contexts[self.old].node_config
            self.contexts[self.new] = Context(1, self.new, node_config, RecordDict(), {})
        return list(self.contexts)

    def _after_round_1(self, question: Message, reply: Message) -> Message | None:
        node = question.metadata.dst_node_id
        self.asked.append(node)
        if node != self.old or self.new not in self.contexts or self.alive:
            return reply
        return None if self.lost is None else Message(self.lost, reply_to=question)


@pytest.mark.parametrize("lost", [None, Error(5, "no heartbeat")])
def test_a_client_that_was_restarted_at_once_takes_part(lost: Error | None, tmp_path: Path) -> None:
    grid = Restarting(lost=lost)
    trained = small.train(rounds=3, grid=grid, timeout=0.3, run_dir=tmp_path / "run")
    rows = small.tables(tmp_path / "run")["metrics"]
    assert [row["clients"] for row in rows] == [[0, 1, 2, 3]] * 3
    assert trained.state.clients.client(grid.new) == KILLED
    assert grid.asked.count(grid.old) == 2  # not asked again once its successor is known


def test_a_restarted_client_takes_part_where_clients_are_drawn(tmp_path: Path) -> None:
    grid = Restarting()
    options = {"fraction_train": 0.5, "run_dir": tmp_path / "run"}
    trained = small.train(rounds=8, grid=grid, timeout=0.3, **options)
    rows = small.tables(tmp_path / "run")["metrics"]
    assert all(row["refused"] == [] for row in rows)
    assert any(KILLED in row["clients"] for row in rows[1:])
    assert trained.state.clients.client(grid.new) == KILLED


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_while_the_first_node_answers_its_name_cannot_be_taken(share: float) -> None:
    grid = Restarting(alive=True)
    trained = small.train(rounds=5, grid=grid, timeout=0.3, fraction_train=share)
    assert trained.state.clients.client(grid.old) == KILLED
    assert trained.state.clients.client(grid.new) == grid.new


def test_after_a_restart_of_the_server_a_node_keeps_its_name_before_another_takes_it() -> None:
    """Nobody has named itself to the new server yet; the saved names say who was who."""
    chosen = small.strategy(fraction_train=0.5)
    nodes = [5, 6, 7, 8]
    grid = InProcessGrid(small.app(client_id_fn=lambda _: 99), len(nodes), node_ids=nodes)
    chosen._open(small.arrays(), chosen.settings, 0.3)
    chosen.state.clients.by_node = {8: 99}  # its number is larger than the others' ids
    chosen.selection.choose(grid, 0, 0.5, 2, 2)
    assert [chosen.state.clients.client(node) for node in nodes] == [5, 6, 7, 99]


def _foreign(mods: list[Any]) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def _clients(app: ClientApp, ids: list[int]) -> list[Any]:
    chosen = Strategy("fedavg")
    chosen.start(InProcessGrid(app, len(ids), node_ids=ids), small.arrays(), 1, 5)
    return [reply.client for reply in chosen.state.updates.accepted]


def test_one_mod_gives_any_client_a_name_that_outlives_its_node() -> None:
    """Without it a client has the id of its node, which is another after every restart."""
    nameless, named = _foreign([]), _foreign([client_id_mod])
    assert _clients(nameless, [91, 92]) != _clients(nameless, [93, 94])
    assert _clients(named, [91, 92]) == _clients(named, [93, 94]) == [0, 1]


def test_a_server_says_once_that_clients_without_a_name_were_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = InProcessGrid(_foreign([]), 3)

    def move(number: int, arrays: Any) -> None:
        """Let every node come back under another id."""
        moved = {node + 1: context for node, context in grid.contexts.items()}
        grid.contexts = moved if number else grid.contexts

    Strategy("fedavg").start(grid, small.arrays(), 3, 5, evaluate_fn=move)
    warned = [r for r in caplog.records if "client_id_mod" in r.getMessage()]
    assert len(warned) == 1
