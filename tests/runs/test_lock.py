"""A run directory has one writer, also among the runs of one process."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys

import pytest

from fedcraft.errors import BusyError, ConfigError
from fedcraft.runs.directory import RunDirectory
from fedcraft.runs.lock import Lock, is_free

_TAKE = """
import fcntl, sys
fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def _free_for_others(directory):
    taken = subprocess.run(
        [sys.executable, "-S", "-c", _TAKE, directory / ".lock"], capture_output=True, check=False
    )
    assert taken.returncode == 0 or b"BlockingIOError" in taken.stderr
    return taken.returncode == 0


def test_a_second_run_of_the_same_process_is_refused_and_changes_nothing(tmp_path):
    first = RunDirectory(tmp_path)
    for _ in range(2):
        with pytest.raises(BusyError, match="another run is writing"):
            RunDirectory(tmp_path)
    assert not _free_for_others(tmp_path)
    first.close()

    assert _free_for_others(tmp_path)
    RunDirectory(tmp_path).close()


def test_a_look_whether_a_directory_is_free_does_not_free_it(tmp_path):
    lock = Lock(tmp_path)
    assert not is_free(tmp_path)
    assert not is_free(tmp_path)
    lock.release()
    assert is_free(tmp_path)


def test_a_forked_child_holds_nothing_and_lets_nobody_in(tmp_path):
    lock = Lock(tmp_path)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        lock.release()
        theirs.sendall(b"free" if is_free(tmp_path) else b"busy")
        ours.close()
        theirs.recv(1)  # lives on until the parent is done with it
        os._exit(0)
    theirs.close()
    ours.settimeout(10)
    try:
        assert ours.recv(4) == b"busy"
        assert not is_free(tmp_path)
        lock.release()
        assert is_free(tmp_path)
    finally:
        ours.close()
        os.waitpid(child, 0)


def test_a_started_program_does_not_inherit_the_lock(tmp_path):
    lock = Lock(tmp_path)
    program = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lock.release()
        assert is_free(tmp_path)
    finally:
        program.kill()
        program.wait()


def test_a_directory_whose_tables_cannot_be_opened_is_free_again(tmp_path):
    (tmp_path / "clients.csv").mkdir()
    directory = RunDirectory(tmp_path)
    with pytest.raises(IsADirectoryError):
        directory.begin({}, {}, state="running")
    directory.close()

    assert is_free(tmp_path)


def test_an_inherited_lock_does_not_release_one_of_the_child(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    inherited = Lock(tmp_path / "a")
    child = os.fork()
    if child == 0:  # its first file gets the number that the inherited one had
        Lock(tmp_path / "b")
        inherited.release()
        os._exit(0 if not is_free(tmp_path / "b") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    inherited.release()


def test_a_file_system_without_locks_is_named_and_not_taken_for_busy(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    Lock(tmp_path).release()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    for take in (Lock, is_free):
        with pytest.raises(ConfigError, match="cannot be locked") as caught:
            take(tmp_path)
        assert not isinstance(caught.value, BusyError)
