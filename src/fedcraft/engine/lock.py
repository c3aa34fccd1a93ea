"""A run directory has one writer at a time, be it in this process or another."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fedcraft.errors import BusyError

__all__ = ["hold", "is_free", "release"]

_held: set[int] = set()


def hold(directory: Path) -> int:
    """Lock a directory until :func:`release`, or until the kernel sees this process end.

    The lock is that of ``flock``, which belongs to the open file: POSIX locks belong to the
    process, so they let a second run of it in, and go when any copy of the file is closed.
    """
    handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    _held.add(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        release(handle)
        raise BusyError(
            f"directory: another run is writing to {directory}; wait for it or choose another"
        ) from error
    return handle


def release(handle: int) -> None:
    """Let others in; a forked child, which holds nothing, does no harm with it."""
    if handle in _held:
        _held.remove(handle)
        os.close(handle)


def is_free(directory: Path) -> bool:
    """Tell whether nobody holds a directory: whoever did is done, or dead."""
    try:
        release(hold(directory))
    except BusyError:
        return False
    return True


def _drop_inherited() -> None:
    """Let go in a forked child: a worker that outlives its parent must not keep others out."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited)
