"""The parts: the wire format, update rows, the stream of replies, client states, known clients."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from benchmarks.grids import InProcessGrid
from fedcraft.errors import CheckpointError, InputError
from fedcraft.flower.client.client_state import ContextStates, DirectoryStates, StatesByRound
from fedcraft.flower.messages.arrays import WireFormat, open_array
from fedcraft.flower.server.clients import KnownClients
from fedcraft.flower.server.replies import UpdateMatrix
from fedcraft.flower.server.reply_stream import ReplyStream


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
        WireFormat.of(record, model=small.model())
    record = small.arrays()
    record["1.bias"] = Array(np.zeros(3, np.float32))
    with pytest.raises(InputError, match=r"'1\.bias' has shape \(3,\)"):
        WireFormat.of(record, model=small.model())


def test_half_precision_models_are_aggregated_in_single_and_sent_back_in_half() -> None:
    record = ArrayRecord({"w": Array(np.ones(4, np.float16))})
    wire = WireFormat.of(record)
    theta = wire.flatten(record)
    assert theta.dtype == torch.float32
    assert wire.pack_model(theta + 0.5, record, {})["w"].numpy().dtype == np.float16


@pytest.mark.parametrize("arrival", [[0, 1, 2, 3], [3, 0, 2, 1], [2], [3, 1], []])
def test_rows_end_up_in_the_clients_order_whatever_their_arrival(arrival: list[int]) -> None:
    record = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    wire = WireFormat.of(record)
    updates = UpdateMatrix(wire, weight_key=None)
    names = {10: 30, 11: 5, 12: 20, 13: 7}  # node -> client, seated in another order
    updates.open(list(names), torch.zeros(2))
    for place in arrival:
        node = list(names)[place]
        values = np.full(2, names[node], np.float32)
        content = RecordDict({"update": ArrayRecord({"row": Array(values)})})
        content["metrics"] = small.metrics({})
        updates.add(node, names[node], _Reply(content))
    matrix = updates.sort()
    clients = [reply.client for reply in updates.accepted]
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
    messages = [Message(RecordDict(), dst_node_id=n, message_type="query") for n in grid.contexts]
    stream = ReplyStream(grid, messages, timeout=5, reply_bytes=reply_bytes)
    assert len(list(stream)) == small.CLIENTS
    assert grid.most == most
    assert stream.missing == []


def test_a_message_that_the_superlink_does_not_take_counts_as_missing() -> None:
    grid = InProcessGrid(small.app(), 2)
    honest = grid.push_messages
    grid.push_messages = lambda messages: [*honest(messages[:1]), None]
    nodes = list(grid.contexts)
    messages = [Message(RecordDict(), dst_node_id=n, message_type="query") for n in nodes]
    stream = ReplyStream(grid, messages, timeout=5)
    assert [stream.sender(reply) for reply in stream] == nodes[:1]
    assert stream.missing == nodes[1:]


class _Clock:
    """Time that passes only where the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("fedcraft.flower.server.reply_stream.time.sleep", self.wait)

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
    messages = [Message(RecordDict(), dst_node_id=n, message_type="query") for n in grid.contexts]
    stream = ReplyStream(grid, messages, timeout=5.0, clock=clock)
    assert len(list(stream)) == good
    assert len(stream.missing) == 2 - good
    assert clock.now <= sending + 5.0


def test_messages_live_longer_than_they_are_waited_for() -> None:
    """Flower counts from when they are made, and answers for an expired message with an error."""
    lives: list[float] = []

    def fault(question: Message, reply: Message) -> Message:
        lives.append(question.metadata.ttl)
        return reply

    small.train(rounds=1, grid=InProcessGrid(small.app(), small.CLIENTS, fault=fault), timeout=5.0)
    assert set(lives) == {10.0}


def _stores(path: Path) -> list[StatesByRound]:
    context = Context(1, 1, {}, RecordDict(), {})
    return [ContextStates(context), DirectoryStates(path, "run", 3)]


@pytest.mark.parametrize("kind", [0, 1])
def test_a_client_remembers_what_the_server_may_still_ask_for(kind: int, tmp_path: Path) -> None:
    states = _stores(tmp_path)[kind]
    assert 0 not in states
    for number, needed in ((1, []), (2, [1]), (4, [1, 2]), (5, [2, 4]), (7, [4])):
        states.keep(number, {"v": torch.full((2,), float(number))}, needed=needed)
    assert sorted(states) == [4, 7]
    assert torch.equal(states[4]["v"], torch.full((2,), 4.0))
    assert states.get(2) is None


def test_a_damaged_state_is_an_error_that_names_its_file(tmp_path: Path) -> None:
    states = DirectoryStates(tmp_path, "run", 3)
    states.keep(1, {"v": torch.ones(2)}, needed=[])
    (path,) = tmp_path.rglob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path.name}: .*its content is not what was saved"):
        states.get(1)
    states.keep(1, {"v": torch.zeros(2)}, needed=[])
    assert torch.equal(states[1]["v"], torch.zeros(2))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1


def test_what_a_killed_client_left_half_written_is_swept(tmp_path: Path) -> None:
    states = DirectoryStates(tmp_path, "run", 3)
    states.keep(1, {"v": torch.ones(2)}, needed=[])
    (path,) = tmp_path.rglob("*.safetensors")
    stale = path.with_name(f".{path.name}.77.tmp")
    stale.write_bytes(b"half")
    states.keep(2, {"v": torch.zeros(2)}, needed=[1])
    assert sorted(states) == [1, 2]
    assert not stale.exists()


def test_states_of_other_runs_and_clients_are_not_mine(tmp_path: Path) -> None:
    DirectoryStates(tmp_path, "run", 3).keep(1, {"v": torch.ones(1)}, needed=[])
    assert DirectoryStates(tmp_path, "run", 4) == {}
    assert DirectoryStates(tmp_path, "other", 3) == {}
    with pytest.raises(InputError, match="letters and digits"):
        DirectoryStates(tmp_path, "../run", 3)


def test_a_client_may_move_to_another_node_but_not_be_two() -> None:
    clients = KnownClients()
    clients.online = [11, 12]
    clients.enter(11, clients.checked(11, 5))
    with pytest.raises(InputError, match="calls itself client 5, which is node 11"):
        clients.checked(12, 5)
    clients.online = [12]
    clients.enter(12, clients.checked(12, 5))
    assert not clients.knows(11)


def test_a_node_keeps_its_name() -> None:
    clients = KnownClients()
    clients.enter(11, 5)
    with pytest.raises(InputError, match="calls itself client 6, but was client 5 before"):
        clients.checked(11, 6)


def test_a_superlink_that_takes_nothing_is_not_waited_for() -> None:
    assert list(ReplyStream(InProcessGrid(small.app(), 1), [], timeout=60)) == []
