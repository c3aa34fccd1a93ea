"""Client states survive spilling, resuming and being killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fedcraft.errors import CheckpointError, InputError
from fedcraft.local import ClientState, ClientStates

MEGABYTE = 2**18  # float32 numbers


def state(client: int, round: int, size: int = 5) -> ClientState:
    draw = torch.Generator().manual_seed(1000 * client + round)
    return {"personal": torch.randn(size, generator=draw)}


def equal(found: ClientState | None, expected: ClientState) -> bool:
    if found is None or found.keys() != expected.keys():
        return False
    return all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_client_keeps_what_was_put_last() -> None:
    states = ClientStates()
    assert states.get(3) is None
    states.put(3, state(3, 0), 0)
    states.put(1, state(1, 0), 0)
    states.put(3, state(3, 1), 1)
    assert equal(states.get(3), state(3, 1))
    assert states.ids() == [1, 3]


def test_states_above_the_budget_go_to_disk_and_come_back(tmp_path: Path) -> None:
    states = ClientStates(tmp_path / "clients", memory_mb=2.5)
    for client in range(6):
        states.put(client, state(client, 0, MEGABYTE), 0)
        assert states.memory_bytes <= 2.5 * 2**20
    assert len(list((tmp_path / "clients").iterdir())) == 4
    assert all(equal(states.get(client), state(client, 0, MEGABYTE)) for client in range(6))
    assert states.memory_bytes <= 2.5 * 2**20


def test_the_states_unused_for_longest_leave_first(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, memory_mb=2.5)
    states.put(0, state(0, 0, MEGABYTE), 0)
    states.put(1, state(1, 0, MEGABYTE), 0)
    states.get(0)
    states.put(2, state(2, 0, MEGABYTE), 0)
    assert [path.name[:14] for path in tmp_path.iterdir()] == ["client-0000001"]


def test_no_budget_at_all_still_works(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, memory_mb=0)
    states.put(4, state(4, 2), 2)
    assert states.memory_bytes == 0
    assert equal(states.get(4), state(4, 2))


def test_a_saved_index_restores_the_states_of_that_moment(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.put(1, state(1, 0), 0)
    states.put(2, state(2, 0), 0)
    index = json.loads(json.dumps(states.save()))
    states.put(1, state(1, 5), 5)
    states.put(7, state(7, 5), 5)
    later = states.save()

    resumed = ClientStates(tmp_path)
    resumed.load(index)
    assert resumed.ids() == [1, 2]
    assert equal(resumed.get(1), state(1, 0))
    resumed.load(later)
    assert resumed.ids() == [1, 2, 7]
    assert equal(resumed.get(1), state(1, 5))


def test_a_checkpoint_writes_only_the_clients_that_changed(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    for client in range(10):
        states.put(client, state(client, 0), 0)
    first = states.save()
    states.put(4, state(4, 1), 1)
    second = states.save()
    assert len(list(tmp_path.iterdir())) == 11
    assert [client for client in first if first[client] != second[client]] == ["4"]
    assert states.save() == second


def test_a_run_resumed_from_earlier_leaves_later_files_alone(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.put(1, state(1, 0), 0)
    early = states.save()
    states.put(1, state(1, 3), 3)
    late = states.save()
    other = ClientStates(tmp_path)
    other.load(early)
    other.put(1, state(99, 3), 3)
    other.save()
    states.load(late)
    assert equal(states.get(1), state(1, 3))


def test_pruning_keeps_what_an_index_names(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, memory_mb=0)
    indexes = []
    for round in range(4):
        states.put(1, state(1, round), round)
        states.put(2, state(2, round), round)
        indexes.append(states.save())
    (tmp_path / "client-0000009-round-0000000-0.safetensors.123").write_bytes(b"half")
    assert states.prune(indexes[2:]) == 5
    for index, round in ((indexes[2], 2), (indexes[3], 3)):
        states.load(index)
        assert equal(states.get(2), state(2, round))
    with pytest.raises(CheckpointError, match="no file"):
        states.load(indexes[0])


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, memory_mb=0)
    states.put(3, state(3, 0), 0)
    index = states.save()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=rf"{path.name}: expected \d+ bytes, found \d+"):
        ClientStates(tmp_path).load(index)
    with pytest.raises(CheckpointError, match=f"{path.name}: cannot be read"):
        states.get(3)


def test_a_failed_load_forgets_nothing(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.put(3, state(3, 0), 0)
    with pytest.raises(CheckpointError, match="state of client 5 is lost"):
        states.load({"5": ["gone.safetensors", 10]})
    assert equal(states.get(3), state(3, 0))


def test_a_file_of_another_client_is_refused(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.put(3, state(3, 0), 0)
    index = states.save()
    states.load({"4": index["3"]})
    with pytest.raises(CheckpointError, match="expected a state of client 4"):
        states.get(4)


def test_a_store_without_a_directory_says_so() -> None:
    states = ClientStates(memory_mb=0)
    states.put(1, state(1, 0, MEGABYTE), 0)
    assert equal(states.get(1), state(1, 0, MEGABYTE))
    with pytest.raises(InputError, match="keeps states in memory only"):
        states.save()
    with pytest.raises(InputError, match="memory_mb: expected"):
        ClientStates(memory_mb=-1)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "clients").write_text("a file, not a directory")
    states = ClientStates(tmp_path / "clients")
    states.put(1, state(1, 0), 0)
    with pytest.raises(CheckpointError, match="clients: cannot be made"):
        states.save()


def test_a_full_disk_is_named_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        assert source.stat().st_size > 0
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedcraft.atomic.os.replace", full)
    states = ClientStates(tmp_path)
    states.put(1, state(1, 0), 0)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left"):
        states.save()
    assert not list(tmp_path.iterdir())
    assert equal(states.get(1), state(1, 0))


KILLED = """
import sys, json, os, torch
from pathlib import Path
from fedcraft.local import ClientStates
place = Path(sys.argv[1])
states = ClientStates(place / "clients", memory_mb=1)
for round in range(10**6):
    for client in range(5):
        states.put(client, {"personal": torch.full((2**17,), float(round))}, round)
    (place / "draft").write_text(json.dumps(states.save()))
    os.replace(place / "draft", place / "index.json")
    if round == 3:
        print("ready", flush=True)
"""


def test_a_killed_process_leaves_a_consistent_checkpoint(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    states = ClientStates(tmp_path / "clients")
    states.load(json.loads((tmp_path / "index.json").read_text()))
    found = [states.get(client) for client in range(5)]
    values = {float(value) for kept in found for value in kept["personal"].unique()}
    assert len(values) == 1
    assert values.pop() >= 3
