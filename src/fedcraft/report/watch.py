"""A live page: serves the report of a folder on this computer while runs go on."""

from __future__ import annotations

import hashlib
import html
import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, unquote, urlsplit

from fedcraft.errors import ConfigError, DataError, FedcraftError
from fedcraft.report.page import page, waiting_page
from fedcraft.runs import Run
from fedcraft.runs.find import run_folders, runs_in

LOOPBACK = "127.0.0.1"
_PORT = 8420
_READ = {".toml", ".json", ".jsonl", ".csv", ".txt"}
_NOT_SHOWN = {"log.txt", "seal.txt"}
_RUNS = "/runs/"
_REST = 4.0  # times what making the page took
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Snapshot:
    """A page, the version of the files that it was made from, and what was left out of it."""

    version: str
    html: str
    problem: str = ""


class LivePage:
    """The page about the runs in a folder; made anew only when their files have changed.

    Making it takes at most a fifth of the time: a large page of fast runs is made less often.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"{folder} should be a folder of runs, but it is not a folder.")
        self.folder = folder.resolve()
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[str, list[Run]]] = {}
        self._snapshot: Snapshot | None = None
        self._rest_until = 0.0

    def snapshot(self) -> Snapshot:
        """Return the newest page."""
        with self._lock:
            if self._snapshot is None or time.monotonic() >= self._rest_until:
                self._snapshot = self._newest()
            return self._snapshot

    def _newest(self) -> Snapshot:
        stamps = self._stamps()
        version = hashlib.sha256("\n".join(stamps.values()).encode()).hexdigest()[:16]
        if self._snapshot is not None and self._snapshot.version == version:
            return self._snapshot
        began = time.monotonic()
        made = self._made(version, stamps)
        now = time.monotonic()
        self._rest_until = now + _REST * (now - began)
        return made

    def file(self, way: str) -> Path | None:
        """Return a run's folder or one of its text files by the way that links have."""
        folders = {self._way(folder): folder for folder in run_folders(self.folder)}
        if way.rstrip("/") in folders:
            return folders[way.rstrip("/")]
        parent, _, name = way.rpartition("/")
        files = text_files(folders[parent]) if parent in folders else []
        return next((path for path in files if path.name == name), None)

    def _way(self, folder: Path) -> str:
        way = folder.relative_to(self.folder).as_posix()
        return self.folder.name if way == "." else way

    def _link(self, run: Run) -> str:
        known = run.directory.is_dir() and run.directory.is_relative_to(self.folder)
        return f"{_RUNS[1:]}{quote(self._way(run.directory))}/" if known else ""

    def _stamps(self) -> dict[Path, str]:
        """Return names, sizes and times of the files that the page is made from, by folder."""
        return {folder: _stamp(folder) for folder in run_folders(self.folder)}

    def _made(self, version: str, stamps: Mapping[Path, str]) -> Snapshot:
        runs, problems = self._runs(stamps)
        problem = f"Left out for now: {problems[0]}" if problems else ""
        if not runs:
            message = problem or f"No run has started yet in the folder {self.folder.name}."
            return Snapshot(version, waiting_page(message, version), problem)
        try:
            return Snapshot(version, page(runs, link=self._link, version=version), problem)
        except (FedcraftError, OSError, ValueError, KeyError) as error:
            # A run may be written while it is read. The last page stays until the files change.
            before = self._snapshot.html if self._snapshot else waiting_page(str(error), version)
            return Snapshot(version, before, str(error))

    def _runs(self, stamps: Mapping[Path, str]) -> tuple[list[Run], list[str]]:
        """Return the runs that can be read, and why others cannot; unchanged ones as before."""
        problems = []
        for folder, stamp in stamps.items():
            if self._known.get(folder, ("", []))[0] == stamp:
                continue
            try:
                self._known[folder] = stamp, [run for run in runs_in(folder) if _checked(run)]
            except (FedcraftError, OSError, ValueError) as error:
                self._known.pop(folder, None)
                problems.append(str(error))
        return [run for f in stamps if f in self._known for run in self._known[f][1]], problems


def serve(live: LivePage, port: int | None = None) -> ThreadingHTTPServer:
    """Return a server on this computer only; ``serve_forever`` of it answers.

    Without a port it takes 8420, or any free one where that is taken; 0 takes any free one.
    """
    handler = type("_LiveHandler", (_Handler,), {"live": live})
    for candidate in (_PORT, 0) if port is None else (port,):
        try:
            return ThreadingHTTPServer((LOOPBACK, candidate), handler)
        except OSError as error:
            taken = error
    raise ConfigError(
        f"--port: {port} cannot be used ({taken.strerror}). Leave it out, or use 0 for a free one"
    )


def text_files(folder: Path) -> list[Path]:
    """Return the readable files of a run: no checkpoints, no models, nothing outside of it."""
    found = [entry for entry in _files(folder) if not entry.is_symlink()]
    return [Path(entry.path) for entry in found if Path(entry.name).suffix in _READ]


def _files(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted((entry for entry in found if entry.is_file()), key=lambda entry: entry.name)


def _stamp(folder: Path) -> str:
    facts = [str(folder)]
    for entry in _files(folder):
        if entry.name in _NOT_SHOWN or Path(entry.name).suffix not in _READ:
            continue
        with suppress(FileNotFoundError):  # a temporary file
            facts.append(f"{entry.name} {entry.stat().st_size} {entry.stat().st_mtime_ns}")
    return "\n".join(facts)


def _checked(run: Run) -> Run:
    """Read everything that a page needs once, so that a damaged run is found alone."""
    for name in ("clients", "conflicts", "cosines", "labels"):
        run.source.table(name)
    _ = run.values, run.records, run.status, run.environment
    return run


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD from this computer, and changes nothing."""

    live: ClassVar[LivePage]
    server_version = "fedcraft"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page, its version, or a text file of a run."""
        port = self.connection.getsockname()[1]
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            # A name that another site points here would let that site read the page.
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "This page is for this computer only.")
            return
        path = unquote(urlsplit(self.path).path)
        if path == "/":
            self._send(HTTPStatus.OK, self.live.snapshot().html, "text/html")
        elif path == "/version":
            self._send(HTTPStatus.OK, self._version(), "application/json")
        elif path.startswith(_RUNS):
            self._send_run(self.live.file(path.removeprefix(_RUNS)))
        else:
            self._send(HTTPStatus.NOT_FOUND, "There is no such page.")

    do_HEAD = do_GET

    def _version(self) -> str:
        newest = self.live.snapshot()
        return json.dumps({"version": newest.version, "problem": newest.problem})

    def _send_run(self, path: Path | None) -> None:
        if path is None:
            self._send(HTTPStatus.NOT_FOUND, "There is no such file.")
        elif path.is_dir():
            self._send(HTTPStatus.OK, _listing(path), "text/html")
        else:
            self._send(HTTPStatus.OK, path.read_text(encoding="utf-8", errors="replace"))

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a line per request would hide the address."""


def _listing(folder: Path) -> str:
    name = html.escape(folder.name)
    files = "".join(
        f'<li><a href="{quote(path.name)}">{html.escape(path.name)}</a> '
        f"({path.stat().st_size:,} bytes)</li>"
        for path in text_files(folder)
    )
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{name}</title><style>body{{font:1rem/1.6 system-ui;margin:2rem}}</style>"
        f'<h1>{name}</h1><p><a href="/">Back to the report</a></p><ul>{files}</ul></html>'
    )
