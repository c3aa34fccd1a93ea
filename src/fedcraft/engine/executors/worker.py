"""A worker process: it waits for a command, takes units until none is left, and reports."""

from __future__ import annotations

import fcntl
import os
import signal
import traceback
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from fedcraft.engine.executors.job import Command, Job, Workspace
from fedcraft.engine.executors.shared_memory import SharedBytes
from fedcraft.engine.executors.units import UnitFailure, UnitRunner
from fedcraft.errors import ClientError
from fedcraft.linalg.numerics import keep_freed_memory, one_thread

READY = "ready"


class SharedJob:
    """A job for a process that was not forked: its samples are in shared memory, in one copy.

    The rest is pickled: indices, the module, the objective.
    """

    def __init__(self, job: Job) -> None:
        self._job = job.without_samples()
        self._samples = [_share(tensor) for tensor in (job.tensors.inputs, job.tensors.labels)]

    def unpack(self) -> Job:
        """Return the job with its samples."""
        inputs, labels = (memory.tensor(shape, dtype) for memory, shape, dtype in self._samples)
        tensors = replace(self._job.tensors, inputs=inputs, labels=labels)
        return replace(self._job, tensors=tensors)


def _share(tensor: Tensor) -> tuple[SharedBytes, tuple[int, ...], torch.dtype]:
    memory, shape = SharedBytes(tensor.numel() * tensor.element_size()), tuple(tensor.shape)
    memory.tensor(shape, tensor.dtype).copy_(tensor)
    return memory, shape, tensor.dtype


def worker_main(
    job: Job | SharedJob,
    workspace: Workspace,
    connection: Connection,
    inherited: Sequence[Connection] = (),
) -> None:
    """Serve until the other end of ``connection`` is closed, then end the process.

    ``inherited`` are connections of other workers that a fork copies and must close: while one
    copy is open, the death of its owner goes unnoticed.
    """
    for other in inherited:
        other.close()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are for the parent, which closes the pipe
    one_thread()
    keep_freed_memory()
    code = 0
    try:
        own = job.unpack() if isinstance(job, SharedJob) else job
        _serve(UnitRunner(own, workspace), workspace, connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        # Not sys.exit, which would flush the buffers that the parent had at the fork.
        os._exit(code)


def _serve(runner: UnitRunner, workspace: Workspace, connection: Connection) -> None:
    connection.send(READY)
    while True:
        command, units = connection.recv()
        connection.send(_run_units(runner, workspace, command, units))


def _run_units(
    runner: UnitRunner, workspace: Workspace, command: Command, units: int
) -> UnitFailure | None:
    """Run units until none is left or one has failed."""
    while (place := _take(workspace, units)) is not None:
        try:
            runner.run(command, int(workspace.queue[place]))
        except ClientError as error:
            workspace.counter[0] = units  # the phase has failed: no other unit needs to start
            return UnitFailure(error.client, str(error))
        workspace.done[place] = 1
    return None


def _take(workspace: Workspace, units: int) -> int | None:
    """Take the next unit under a lock that is released when its holder dies.

    A worker killed in here may leave its unit untaken or lost; both are harmless, because the
    parent repeats every unit that is not done once all others have finished.
    """
    fcntl.lockf(workspace.lock, fcntl.LOCK_EX)
    try:
        place = int(workspace.counter[0])
        if place >= units:
            return None
        workspace.counter[0] = place + 1
        return place
    finally:
        fcntl.lockf(workspace.lock, fcntl.LOCK_UN)
