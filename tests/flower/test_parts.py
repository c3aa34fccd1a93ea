"""The small parts: arrays off the wire, the exchange of letters, the clients' memory."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from grids import InProcessGrid

from fedcraft.errors import InputError
from fedcraft.flower.arrays import Wire, open_array
from fedcraft.flower.exchange import Exchange
from fedcraft.flower.intake import Intake
from fedcraft.flower.memory import ContextMemory, DirectoryMemory, Memory
from fedcraft.flower.roster import Roster


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.asarray(3, np.int64),
        np.zeros((0, 4), np.float16),
    ],
)
def test_an_array_is_read_as_numpy_reads_it_without_a_copy(values: np.ndarray) -> None:
    array = Array(values)
    found = open_array(array)
    assert np.array_equal(found, array.numpy())
    assert found.dtype == values.dtype
    assert not found.flags.owndata


def test_pickled_objects_are_never_opened() -> None:
    file = BytesIO()
    np.save(file, np.asarray([print], dtype=object), allow_pickle=True)
    bomb = Array("object", (1,), "numpy.ndarray", file.getvalue())
    with pytest.raises(InputError, match="it holds Python objects"):
        open_array(bomb)


def test_a_layout_that_does_not_fit_the_arrays_says_which() -> None:
    record = small.arrays()
    del record["1.bias"]
    with pytest.raises(InputError, match=r"no float array is called '1\.bias'"):
        Wire.of(record, model=small.model())
    record = small.arrays()
    record["1.bias"] = Array(np.zeros(3, np.float32))
    with pytest.raises(InputError, match=r"'1\.bias' has shape \(3,\)"):
        Wire.of(record, model=small.model())


def test_half_precision_models_are_aggregated_in_single_and_sent_back_in_half() -> None:
    record = ArrayRecord({"w": Array(np.ones(4, np.float16))})
    wire = Wire.of(record)
    theta = wire.flatten(record)
    assert theta.dtype == torch.float32
    assert wire.record(theta + 0.5, record, {})["w"].numpy().dtype == np.float16


@pytest.mark.parametrize("arrival", [[0, 1, 2, 3], [3, 0, 2, 1], [2], [3, 1], []])
def test_rows_end_up_in_the_clients_order_whoever_came_when(arrival: list[int]) -> None:
    record = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    wire = Wire.of(record)
    intake = Intake(weight_key=None)
    names = {10: 30, 11: 5, 12: 20, 13: 7}  # node -> client, seated in another order
    intake.open(wire, torch.zeros(2), list(names))
    for place in arrival:
        node = list(names)[place]
        values = np.full(2, names[node], np.float32)
        content = RecordDict({"update": ArrayRecord({"row": Array(values)})})
        content["metrics"] = small.metrics({})
        intake.take(node, names[node], _Reply(content))
    matrix = intake.sort()
    clients = [reply.client for reply in intake.accepted]
    assert clients == sorted(names[list(names)[place]] for place in arrival)
    assert matrix[:, 0].tolist() == clients


class _Reply:
    def __init__(self, content: RecordDict) -> None:
        self.content = content


class CountingGrid(InProcessGrid):
    """Remembers how many replies were pulled at once."""

    most = 0

    def pull_messages(self, message_ids: Any) -> Any:
        pulled = list(super().pull_messages(message_ids))
        self.most = max(self.most, len(pulled))
        return pulled


@pytest.mark.parametrize(("reply_bytes", "most"), [(0, 4), (12 * 2**20, 2), (2**30, 1)])
def test_large_replies_are_pulled_few_at_a_time(reply_bytes: int, most: int) -> None:
    grid = CountingGrid(small.app(), small.CLIENTS)
    letters = [Message(RecordDict(), dst_node_id=n, message_type="query") for n in grid.contexts]
    exchange = Exchange(grid, letters, timeout=5, reply_bytes=reply_bytes)
    assert len(list(exchange)) == small.CLIENTS
    assert grid.most == most
    assert exchange.missing == []


def test_a_letter_that_the_superlink_does_not_take_counts_as_missing() -> None:
    grid = InProcessGrid(small.app(), 2)
    honest = grid.push_messages
    grid.push_messages = lambda letters: [*honest(letters[:1]), None]
    nodes = list(grid.contexts)
    letters = [Message(RecordDict(), dst_node_id=n, message_type="query") for n in nodes]
    exchange = Exchange(grid, letters, timeout=5)
    assert [exchange.sender(reply) for reply in exchange] == nodes[:1]
    assert exchange.missing == nodes[1:]


class _Clock:
    """Time that passes only where the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("fedcraft.flower.exchange.time.sleep", self.wait)

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


class _TimedGrid(InProcessGrid):
    """Sending takes time, and replies are there from a moment on."""

    def __init__(self, clock: _Clock, *, sending: float, ready: float) -> None:
        super().__init__(small.app(), 2)
        self.clock, self.sending, self.ready = clock, sending, ready

    def push_messages(self, messages: Any) -> Any:
        self.clock.wait(self.sending)
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Any) -> Any:
        return super().pull_messages(message_ids) if self.clock.now >= self.ready else []


@pytest.mark.parametrize(
    ("sending", "ready", "good"),
    [(0.0, 1.0, 2), (100.0, 101.0, 2), (0.0, 5.0, 2), (100.0, 105.0, 2), (0.0, 5.1, 0)],
)
def test_the_deadline_counts_from_the_sending_and_its_last_replies_come_in(
    sending: float, ready: float, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock(monkeypatch)
    grid = _TimedGrid(clock, sending=sending, ready=ready)
    letters = [Message(RecordDict(), dst_node_id=n, message_type="query") for n in grid.contexts]
    exchange = Exchange(grid, letters, timeout=5.0, clock=clock)
    assert len(list(exchange)) == good
    assert len(exchange.missing) == 2 - good
    assert clock.now <= sending + 5.0


def test_letters_live_longer_than_they_are_waited_for() -> None:
    """Flower counts from their writing, and answers for a letter that is dead with an error."""
    lives: list[float] = []

    def fault(question: Message, reply: Message) -> Message:
        lives.append(question.metadata.ttl)
        return reply

    small.train(rounds=1, grid=InProcessGrid(small.app(), small.CLIENTS, fault=fault), timeout=5.0)
    assert set(lives) == {10.0}


def _memories(path: Path) -> list[Memory]:
    context = Context(1, 1, {}, RecordDict(), {})
    return [ContextMemory(context), DirectoryMemory(path, "run", 3)]


@pytest.mark.parametrize("kind", [0, 1])
def test_a_client_remembers_what_the_server_may_still_ask_for(kind: int, tmp_path: Path) -> None:
    memory = _memories(tmp_path)[kind]
    assert memory.at(0) is None
    for number, needed in ((1, []), (2, [1]), (4, [1, 2]), (5, [2, 4]), (7, [4])):
        memory.keep(number, {"v": torch.full((2,), float(number))}, needed=needed)
    assert memory.rounds() == [4, 7]
    kept = memory.at(4)
    assert kept is not None
    assert torch.equal(kept["v"], torch.full((2,), 4.0))
    assert memory.at(2) is None


def test_states_of_other_runs_and_clients_are_not_mine(tmp_path: Path) -> None:
    DirectoryMemory(tmp_path, "run", 3).keep(1, {"v": torch.ones(1)}, needed=[])
    assert DirectoryMemory(tmp_path, "run", 4).rounds() == []
    assert DirectoryMemory(tmp_path, "other", 3).rounds() == []
    with pytest.raises(InputError, match="letters and digits"):
        DirectoryMemory(tmp_path, "../run", 3)


def test_a_client_may_move_to_another_node_but_not_be_two() -> None:
    roster = Roster()
    roster.enter(11, roster.admissible(11, 5, online=[11, 12]))
    with pytest.raises(InputError, match="calls itself client 5, which is node 11"):
        roster.admissible(12, 5, online=[11, 12])
    roster.enter(12, roster.admissible(12, 5, online=[12]))
    assert not roster.knows(11)


def test_a_node_keeps_its_name() -> None:
    roster = Roster()
    roster.enter(11, 5)
    with pytest.raises(InputError, match="calls itself client 6, but was client 5 before"):
        roster.admissible(11, 6, online=[11])


def test_a_superlink_that_takes_nothing_is_not_waited_for() -> None:
    assert list(Exchange(InProcessGrid(small.app(), 1), [], timeout=60)) == []
