"""The files of a run directory: locked, sealed, and written in an order that survives a crash."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from fedcraft.atomic import sweep, to_json
from fedcraft.errors import ConfigError
from fedcraft.runs.lock import Lock
from fedcraft.runs.seal import SEAL_FILE, STATUS_FILE, Digest, Seal, SealWriter
from fedcraft.runs.tables import Table

CONFIG_FILE = "config.toml"
MODEL_FILE = "model.safetensors"
CONFLICTS = (
    "round", "layer", "min_cosine", "mean_cosine", "conflicts_average", "conflicts_reference",
    "conflicts_after", "residual", "rank", "active", "correction_norm",
)  # fmt: skip
COHORTS = (
    "round", "client", "weight", "norm", "agreement", "cosine", "alignment", "influence",
    "left_out",
)  # fmt: skip
TABLES = {
    "metrics": "metrics.jsonl",
    "clients": "clients.csv",
    "conflicts": "conflicts.csv",
    "cosines": "cosines.csv",
    "cohorts": "cohorts.csv",
}
_HEADERS = {
    "clients": "round,client,split,metric,value,n\n",
    "conflicts": ",".join(CONFLICTS) + "\n",
    "cosines": "round,client,layer,cosine\n",
    "cohorts": ",".join(COHORTS) + "\n",
}
LOG_FILE = "log.txt"


class RunDirectory:
    """A run directory under its lock, which is taken before anything is written.

    Every file is covered by the seal (:mod:`fedcraft.runs.seal`), and no write happens in a
    directory that was deleted or renamed. ``resume`` allows a directory that holds a run.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        self.tables: dict[str, Table] = {}
        self.notes: list[str] = []
        self._status: dict[str, Any] = {}
        self._confirmed: dict[str, Digest] = {}
        self._seal: SealWriter | None = None
        self._is_new = not path.exists()
        self.lock = Lock(path)
        try:
            self._check(resume)
        except BaseException:
            self.close()
            raise

    def _check(self, resume: bool) -> None:
        marks = (CONFIG_FILE, STATUS_FILE, TABLES["metrics"], "checkpoints")
        if not resume and any((self.path / name).exists() for name in marks):
            raise ConfigError(
                f"directory: {self.path} already holds a run; continue it with resume=True or "
                "choose another directory"
            )
        if not resume:
            self._clear()
        self._before = Seal.load(self.path)
        with suppress(FileNotFoundError):
            self._before.read(CONFIG_FILE)  # a damaged one would make it another run
        for folder in (self.path, self.path / "states"):
            sweep(folder)

    def _clear(self) -> None:
        """Delete the files of a start that was killed before it wrote its configuration."""
        for name in (*Seal.parse(self.path).files, SEAL_FILE):
            if Path(name).name == name:
                (self.path / name).unlink(missing_ok=True)

    @property
    def sealed(self) -> bool:
        """Tell whether the run that was found here has a seal; runs of fedcraft 0.1.0 have none."""
        return self._before.text is not None

    def holds(self, name: str, content: bytes) -> bool:
        """Tell whether a file was found with this content, intact and sealed."""
        return name in self._before.files and self.intact(name) == content

    @property
    def begun(self) -> bool:
        """Tell whether this process has begun to write."""
        return self._seal is not None

    def intact(self, name: str, then: str = "it is written again") -> bytes | None:
        """Return a file as it was found; None if it is missing or, with a warning, damaged."""
        wrong = self._before.problem(name)
        if wrong:
            self.warn(f"{self.path / name} {wrong}; {then}")
            return None
        try:
            return self._before.read(name)
        except FileNotFoundError:
            return None

    def warn(self, message: str) -> None:
        """Warn the user, and the readers of the log."""
        warnings.warn(message, stacklevel=2)
        self.notes.append(f"warning: {message}")

    def begin(self, contents: Mapping[str, bytes], kept: Mapping[str, Any], **status: Any) -> None:
        """Write files and status, cut the tables to the checkpoint, and open them."""
        self.lock.check()
        self.intact(LOG_FILE, "its readable part is kept")
        log = self.path / LOG_FILE
        sizes = {name: table_size(kept.get(name, 0)) for name in TABLES}
        sizes["log"] = log.stat().st_size if log.exists() else 0
        self._seal = SealWriter(self.path, self._before)
        self.replace(contents)
        self.status(**status, seal=SEAL_FILE)
        for name, file in {**TABLES, "log": LOG_FILE}.items():
            self.tables[name] = Table(self.path / file, sizes[name])
        self.confirm()  # before they are cut: a reader never expects more rows than there are
        for name, table in self.tables.items():
            table.open(_HEADERS.get(name, ""))
        self.confirm()
        for note in self.notes:
            self.log(note)

    def replace(self, contents: Mapping[str, bytes], *, durable: bool = True) -> None:
        """Write whole files."""
        self.lock.check()
        if self._seal is not None:
            self._seal.replace(contents, durable=durable)

    def status(self, **fields: Any) -> None:
        """Update status.json."""
        self._status.update(fields, updated=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        self.replace({STATUS_FILE: to_json(self._status)}, durable="state" in fields)

    def log(self, message: str) -> None:
        """Append a dated line to log.txt."""
        self.lock.check()
        self.tables["log"].write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
        self.confirm()

    def confirm(self) -> None:
        """Seal the rows that were added to the tables."""
        digests = {table.path.name: table.digest for table in self.tables.values()}
        new = {name: d for name, d in digests.items() if self._confirmed.get(name) != d}
        if self._seal is not None and new:
            self._seal.rows(new)
            self._confirmed = digests

    def sync(self) -> dict[str, list[int | str]]:
        """Force the tables to the disk; return their sizes and digests for a checkpoint."""
        self.confirm()
        for table in self.tables.values():
            table.sync()
        if self._seal is not None:
            self._seal.sync()
        return {name: list(self.tables[name].digest) for name in TABLES}

    def shut(self) -> None:
        """Seal the directory of a run that ended in order."""
        self.sync()
        if self._seal is not None:
            self._seal.shut()

    def close(self) -> None:
        """Close the files and let other processes in, even if some cannot be closed in order."""
        with ExitStack() as stack:
            stack.callback(self._leave)
            if self._seal is not None:
                stack.callback(self._seal.close)
            for table in self.tables.values():
                stack.callback(table.close)

    def _leave(self) -> None:
        """Release the lock; delete a directory that was made for a run that never began."""
        unused = self._is_new and not self.begun
        self.lock.release(remove=unused)
        if unused:
            with suppress(OSError):
                self.path.rmdir()


def place_config(path: Path, content: bytes) -> None:
    """Write config.toml, sealed, for a run that starts later, into a directory without one.

    ``BusyError`` if another process is writing to the directory.
    """
    lock = Lock(path)
    try:
        if not (path / CONFIG_FILE).exists():
            seal = SealWriter(path)
            seal.replace({CONFIG_FILE: content})
            seal.sync()
            seal.close()
    finally:
        lock.release()


def table_size(known: Any) -> int:
    """Return the size of a table in a checkpoint; fedcraft 0.1.0 kept nothing else."""
    size: int = known if isinstance(known, int) else known[0]
    return size
