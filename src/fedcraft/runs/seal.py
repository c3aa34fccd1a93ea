"""The seal of a run directory: the size and SHA-256 of every file, checked by every reader.

``seal.txt`` only grows. Each line has a kind, a size, a SHA-256, a file name and a check value that
covers the line and all lines before it; of several lines about one file the last one counts:

* ``rows``: the table starts with this many bytes of this digest. The rest was never confirmed;
  a process that is killed leaves such a tail, and readers ignore it.
* ``next``: the file is about to be replaced by this content, or to be written for the first time.
* ``file``: the file has this content.
* ``open`` and ``shut``: a process started to write; it ended in order, so that no table has a tail.

Run directories of fedcraft 0.1.0 have no seal and are read unchecked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedcraft.atomic import AppendOnly, write_atomically
from fedcraft.errors import DamageError

SEAL_FILE, STATUS_FILE = "seal.txt", "status.json"
_START = "fedcraft seal 1"
_CHECK_DIGITS = 16
_ATTEMPTS = 5  # a writer may replace files while a reader checks them


class Digest(NamedTuple):
    """The size and SHA-256 of a content."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Digest:
        return cls(len(content), hashlib.sha256(content).hexdigest())


@dataclass
class Seal:
    """The content of ``seal.txt``, and checked reading of the files that it covers."""

    directory: Path
    text: bytes | None = None
    rows: dict[str, Digest] = field(default_factory=dict)
    files: dict[str, list[Digest | None]] = field(default_factory=dict)
    shut: bool = False
    check: str = _START
    damage: str = ""
    statuses: set[Digest] = field(default_factory=set)  # all that status.json ever was

    @classmethod
    def load(cls, directory: Path) -> Seal:
        """Read the seal of a directory; ``DamageError`` if it is damaged."""
        seal = cls.parse(directory)
        if seal.damage:
            raise DamageError(
                f"{directory / SEAL_FILE} {seal.damage}, so no file of the run can be checked. "
                f"{_advice(directory)}"
            )
        return seal

    @classmethod
    def parse(cls, directory: Path) -> Seal:
        """Read the seal of a directory up to its ``damage``, if it has any."""
        path = directory / SEAL_FILE
        seal = cls(directory, _content(path))
        if seal.text is None and SEAL_FILE.encode() in (_content(directory / STATUS_FILE) or b""):
            seal.damage = "is missing"  # runs of fedcraft 0.1.0 never had one
        for number, line in enumerate(seal.lines(), 1):
            try:
                seal._take(line.decode("ascii"))
            except ValueError:
                seal.damage = f"is damaged in line {number}"
                break
        return seal

    def lines(self) -> list[bytes]:
        """Return the complete lines; the last one may be torn."""
        return [] if self.text is None else self.text.split(b"\n")[:-1]

    def _take(self, line: str) -> None:
        kind, size, sha256, name, check = line.split(" ")
        self.check = _chained(self.check, f"{kind} {size} {sha256} {name}")
        if check != self.check:
            raise ValueError
        found = Digest(int(size), sha256)
        if kind in ("open", "shut"):
            self.shut = kind == "shut"
        elif kind == "rows":
            self.rows[name] = found
        else:
            before = self.files.get(name, [None])
            self.files[name] = [*before, found] if kind == "next" else [found]
            self.statuses |= {found} if name == STATUS_FILE else set()

    def read(self, name: str) -> bytes:
        """Return a file's checked content, of a table its confirmed rows.

        ``DamageError`` if it is not what the run wrote, ``FileNotFoundError`` if the run has not
        written it. Without a seal the content is returned unchecked.
        """
        content, wrong = self._look(name)
        if wrong:
            raise DamageError(f"{self.directory / name} {wrong}. {_advice(self.directory)}")
        if content is None:
            raise FileNotFoundError(f"{self.directory / name} does not exist")
        return content

    def problem(self, name: str) -> str:
        """Return what is wrong with a file, such as ``is missing``; empty if it is intact."""
        return self._look(name)[1]

    def _look(self, name: str) -> tuple[bytes | None, str]:
        seal = self
        for _ in range(_ATTEMPTS):
            content = _content(self.directory / name)
            wrong = seal._wrong(name, content) or seal._lost_end(name, content)
            again = Seal.load(self.directory) if wrong else seal
            if again.text == seal.text:
                break
            seal = again  # a process is writing: look again
        if content is not None and not wrong and name in seal.rows:
            content = content[: seal.rows[name].size]
        return content, wrong

    def _wrong(self, name: str, content: bytes | None) -> str:
        """Return what is wrong with a content; nothing if it is what the run wrote."""
        if name in self.rows:
            return self._wrong_rows(self.rows[name], content)
        accepted = self.files.get(name, [])
        found = None if content is None else Digest.of(content)
        if not accepted or found in accepted:
            return ""
        if found is None:
            return "is missing"
        return f"is not what the run wrote: {_differs(accepted[-1] or found, found)}"

    def _wrong_rows(self, sealed: Digest, content: bytes | None) -> str:
        if content is None:
            return "is missing" if sealed.size else ""  # not made yet, or nothing is lost
        found = Digest.of(content[: sealed.size])
        if found != sealed:
            return f"is damaged: {_differs(sealed, found)}"
        if self.shut and len(content) > sealed.size:
            return f"was changed: {len(content) - sealed.size} bytes were added after the end"
        return ""

    def _lost_end(self, name: str, content: bytes | None) -> str:
        """Return that the seal was cut: lines are lost that confirm a table's end and the status.

        A process that is killed leaves rows that are not confirmed, but a status that is.
        """
        if name not in self.rows or len(content or b"") <= self.rows[name].size:
            return ""
        status = _content(self.directory / STATUS_FILE)
        found = None if status is None else Digest.of(status)
        # A process may have written it since this seal was read, so check the newest one too.
        if found in self.statuses or found in Seal.load(self.directory).statuses:
            return ""
        return f"has rows that {SEAL_FILE} does not confirm, nor does it confirm {STATUS_FILE}"

    def tail(self, name: str) -> int:
        """Return how many bytes at the end of a table were never confirmed."""
        path = self.directory / name
        return max(path.stat().st_size - self.rows[name].size, 0) if path.exists() else 0


class SealWriter:
    """Appends to ``seal.txt``. One process at a time, under the lock."""

    def __init__(self, directory: Path, seal: Seal | None = None) -> None:
        self._directory = directory
        seal = seal or Seal.load(directory)
        self._check = seal.check
        self._file = AppendOnly(directory / SEAL_FILE, sum(len(line) + 1 for line in seal.lines()))
        self._append([("open", Digest(0, "-"), "-")])

    def rows(self, tables: Mapping[str, Digest]) -> None:
        """Confirm that tables start with these contents."""
        self._append([("rows", digest, name) for name, digest in tables.items()])

    def replace(self, contents: Mapping[str, bytes], *, durable: bool = True) -> None:
        """Write whole files; if the process dies on the way, a reader accepts old and new ones."""
        digests = {name: Digest.of(content) for name, content in contents.items()}
        self._append([("next", digest, name) for name, digest in digests.items()])
        for name, content in contents.items():
            write_atomically(self._directory / name, content, durable=durable)
        self.accept(digests)

    def accept(self, digests: Mapping[str, Digest]) -> None:
        """Confirm files in their present state."""
        self._append([("file", digest, name) for name, digest in digests.items()])

    def shut(self) -> None:
        """Confirm that the run ended in order."""
        self._append([("shut", Digest(0, "-"), "-")])
        self._file.sync()

    def sync(self) -> None:
        """Force the lines to the disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, entries: list[tuple[str, Digest, str]]) -> None:
        text, check = "", self._check
        for kind, digest, name in entries:
            line = f"{kind} {digest.size} {digest.sha256} {name}"
            check = _chained(check, line)
            text += f"{line} {check}\n"
        self._file.write(text.encode("ascii"))
        self._check = check


def read_checked(path: Path) -> bytes:
    """Return the checked content of one file of a run; see :meth:`Seal.read`."""
    return Seal.load(path.parent).read(path.name)


def _chained(previous: str, line: str) -> str:
    return hashlib.sha256(f"{previous}\n{line}".encode()).hexdigest()[:_CHECK_DIGITS]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _differs(sealed: Digest, found: Digest) -> str:
    if sealed.size != found.size:
        return f"expected {sealed.size} bytes, found {found.size}"
    return f"expected SHA-256 {sealed.sha256[:12]}, found {found.sha256[:12]}"


def _advice(directory: Path) -> str:
    return (
        "Restore it from a copy, let fedcraft resume write it again if it can, or, if you changed "
        f"it on purpose, accept all present files with fedcraft verify --accept {directory}"
    )
