"""A run directory has one writer at a time, be it in this process or another."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fedcraft.errors import BusyError, ConfigError

__all__ = ["Lock", "is_free"]

_held: set[Lock] = set()


class Lock:
    """Holds a directory until it is released, or until the kernel sees this process end.

    The lock is that of ``flock``, which belongs to the open file: POSIX locks belong to the
    process, so they let a second run of it in, and go when any copy of the file is closed.
    """

    def __init__(self, directory: Path) -> None:
        self._file: int | None = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        _held.add(self)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise _refusal(directory, error) from error

    def release(self) -> None:
        """Let others in. Nothing happens the second time, or in a forked child."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            _held.discard(self)


def is_free(directory: Path) -> bool:
    """Tell whether nobody holds a directory: whoever did is done, or dead."""
    try:
        Lock(directory).release()
    except BusyError:
        return False
    return True


def _refusal(directory: Path, error: OSError) -> ConfigError:
    if isinstance(error, BlockingIOError):
        return BusyError(
            f"directory: another run is writing to {directory}; wait for it or choose another"
        )
    return ConfigError(
        f"directory: {directory} cannot be locked ({error.strerror}); choose one on a file system "
        "that knows locks"
    )


def _drop_inherited() -> None:
    """Let go in a forked child: a worker that outlives its parent must not keep others out."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_drop_inherited)
