"""The lock of a run directory: one writer at a time, in this process or another."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fedcraft.errors import BusyError, CheckpointError, ConfigError

_NAME = ".lock"
_held: set[Lock] = set()


class Lock:
    """Locks a directory, made if necessary, until it is released or this process ends.

    The lock is that of ``flock``, which belongs to the open file. POSIX locks belong to the
    process: they admit a second run of it, and end when any copy of the file is closed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: int | None = None
        while not self._take():
            self.release()  # the file was deleted between opening and locking it

    def _take(self) -> bool:
        self._directory.mkdir(parents=True, exist_ok=True)
        _held.add(self)
        try:
            self._file = os.open(self._directory / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:  # the directory was deleted just now
            return False
        except OSError as error:
            self.release()
            raise _refusal(self._directory, error) from error
        return self._in_place()

    def _in_place(self) -> bool:
        try:
            found = os.stat(self._directory / _NAME)
        except OSError:
            return False
        return self._file is not None and os.path.samestat(found, os.fstat(self._file))

    def check(self) -> None:
        """Raise ``CheckpointError`` if the directory or its lock file was deleted or renamed."""
        if not self._in_place():
            raise CheckpointError(
                f"directory: {self._directory} or its lock file {_NAME} was deleted, renamed or "
                "replaced while a run was writing to it; the run ends here. If you renamed the "
                "directory, resume the run under its new name"
            )

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, and optionally delete its file; a second call does nothing."""
        if self._file is not None:
            if remove and self._in_place():
                (self._directory / _NAME).unlink()
            os.close(self._file)
            self._file = None
        _held.discard(self)


def is_free(directory: Path) -> bool:
    """Tell whether no process is writing to a directory. Nothing is created or changed."""
    try:
        file = os.open(directory / _NAME, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError):
            return False
        raise _refusal(directory, error) from error
    finally:
        os.close(file)
    return True


def _refusal(directory: Path, error: OSError) -> ConfigError:
    if isinstance(error, BlockingIOError):
        return BusyError(
            f"directory: another run is writing to {directory}; wait for it or choose another"
        )
    return ConfigError(
        f"directory: {directory} cannot be locked ({error.strerror}); choose one on a file system "
        "that supports locks"
    )


def _drop_inherited() -> None:
    """Release the lock in a forked child: a worker that outlives its parent must not hold it."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_drop_inherited)
