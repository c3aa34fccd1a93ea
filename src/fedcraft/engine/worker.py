"""The life of a worker process: wait for a command, take units until none is left, report."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from fedcraft.engine.bench import Bench
from fedcraft.engine.job import Command, Desk, Job
from fedcraft.engine.numerics import one_thread
from fedcraft.engine.portable import Portable

__all__ = ["READY", "encode", "work"]

READY = b"ready"


def work(
    job: Job | Portable, desk: Desk, connection: Connection, foreign: Sequence[Connection] = ()
) -> None:
    """Serve until the other end of ``connection`` is closed, then end without further ado.

    ``foreign`` are connections that a fork inherits and must drop: while one copy is open, nobody
    learns that its owner died.
    """
    for other in foreign:
        other.close()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are for the parent, which closes the pipe
    one_thread()
    code = 0
    try:
        own = job.unpack() if isinstance(job, Portable) else job
        _serve(Bench(own, desk), desk, connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        # Not sys.exit: what the parent had in its buffers at the fork is not ours to flush.
        os._exit(code)


def encode(command: Command, units: int) -> bytes:
    """Return a command as the few bytes that wake a worker."""
    return json.dumps([units, *command]).encode()


def _serve(bench: Bench, desk: Desk, connection: Connection) -> None:
    connection.send_bytes(READY)
    while True:
        units, kind, index, lr, report_loss, splits, group = json.loads(connection.recv_bytes())
        command = Command(kind, index, lr, report_loss, tuple(splits), group)
        connection.send_bytes(_finish(bench, desk, command, units))


def _finish(bench: Bench, desk: Desk, command: Command, units: int) -> bytes:
    """Do units until none is left; return nothing, or the JSON of what went wrong."""
    while (place := _take(desk, units)) is not None:
        unit = int(desk.order[place])
        try:
            bench.do(command, unit)
        except Exception:
            desk.counter[0] = units  # the phase has failed: nobody needs to begin another unit
            return json.dumps([bench.subject(command, unit), traceback.format_exc()]).encode()
        desk.done[place] = 1
    return b""


def _take(desk: Desk, units: int) -> int | None:
    """Take the next unit under a lock that dies with its holder.

    A worker killed in here may leave its unit untaken or lost; the parent asks for what is not
    done once everybody else has finished, so either is harmless.
    """
    fcntl.lockf(desk.lock, fcntl.LOCK_EX)
    try:
        place = int(desk.counter[0])
        if place >= units:
            return None
        desk.counter[0] = place + 1
        return place
    finally:
        fcntl.lockf(desk.lock, fcntl.LOCK_UN)
