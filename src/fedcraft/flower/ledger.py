"""The run directory of a federation: the simulator's tables and checkpoints, for real clients."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import tomli_w
from flwr.app import ArrayRecord

from fedcraft.aggregators import Certificate
from fedcraft.engine.directory import RunDirectory, environment
from fedcraft.engine.files import write_atomically, write_json
from fedcraft.engine.fleet import Scores
from fedcraft.engine.settings import Settings
from fedcraft.errors import StateError
from fedcraft.flower import keys
from fedcraft.flower.arrays import tensors
from fedcraft.flower.intake import Accepted
from fedcraft.flower.record import FEDERATION, Plain, writable

__all__ = ["Ledger"]

_CONFIG = "config.toml"
_MARKS = (_CONFIG, "status.json", "checkpoints")
_NO_METRIC = frozenset({keys.CLIENT, keys.EXAMPLES, keys.STATE_LOST})


class Ledger:
    """What ``fedcraft report`` reads, written by the server of a federation.

    Without a path nothing is written and there is nothing to resume from. A directory that cannot
    be this run's is left as it is.
    """

    def __init__(self, path: Path | None, settings: Settings, config: Plain) -> None:
        self._settings, self._config = settings, config
        self._begun = False
        if path is not None:
            _refuse_others(path)
        keep = settings.keep_checkpoints
        self.directory = None if path is None else RunDirectory(path, keep_checkpoints=keep)

    def find(self) -> Plain | None:
        """Return the newest checkpoint, which must be one of this very run; None for a start."""
        if self.directory is None:
            return None
        state = self.directory.checkpoints.latest()
        if state is not None:
            self._check_same(state["config"])
        elif self.directory.metrics.size > 0:
            self._check_repeatable(self.directory)
        return state

    def begin(self, state: Plain | None) -> None:
        """Bring the tables to where the checkpoint is, and say what runs here."""
        if self.directory is None:
            return
        self.directory.cut(None if state is None else state["tables"])
        path = self.directory.path
        write_json(path / "environment.json", environment())
        write_atomically(path / _CONFIG, tomli_w.dumps(self._config).encode())
        done = 0 if state is None else state["round"]
        self.directory.log(f"resumed after round {done}" if state else "started")
        self.directory.status(state="running", round=done, reason="", fedcraft=version("fedcraft"))
        self._begun = True

    def add_reports(
        self, round_number: int, replies: Iterable[Accepted], split: str = "train"
    ) -> None:
        """Write the numbers that every client reported, of training or a split, to clients.csv."""
        if self.directory is not None:
            self.directory.clients.rows(
                (round_number, reply.client, split, name, value, int(reply.weight))
                for reply in replies
                for name, value in reply.metrics.items()
                if name not in _NO_METRIC and isinstance(value, (int, float))
            )

    def add_scores(self, round_number: int, scores: Mapping[str, Scores]) -> None:
        """Write an evaluation of all clients to clients.csv."""
        if self.directory is not None:
            self.directory.write_scores(round_number, scores)

    def add_round(self, row: Plain, certificate: Certificate | None) -> None:
        """Write one round to metrics.jsonl, and what its step did to whom to conflicts.csv."""
        if self.directory is None:
            return
        self.directory.metrics.row(row)
        if certificate is not None and self._settings.diagnoses(row["round"]):
            self.directory.write_certificate(row["round"], certificate.rows())

    def save(self, round_number: int, state: Plain) -> None:
        """Write a checkpoint of the round, with the sizes of the tables it belongs to."""
        if self.directory is not None:
            whole = {**state, "config": self._config, "round": round_number}
            self.directory.checkpoints.save(
                round_number, {**whole, "tables": self.directory.sync()}
            )
            self.directory.status(round=round_number)

    def finish(self, record: ArrayRecord) -> None:
        """Write the final model."""
        if self.directory is not None:
            self.directory.save_model(tensors(record))

    def close(self, state: str, reason: str, round_number: int) -> None:
        """Say how the run ended, if it ever began, and let go of the directory."""
        if self.directory is None:
            return
        with closing(self.directory) as directory:
            if self._begun:
                directory.status(state=state, reason=reason, round=round_number)
                directory.log(f"{state} after round {round_number}: {reason or 'all rounds done'}")

    def _check_repeatable(self, directory: RunDirectory) -> None:
        """Raise unless these rounds, which nothing can go on from, are this run's to repeat."""
        self._check_same(_config_of(directory.path))
        if directory.read_status().get("state") == "finished":
            raise StateError(
                f"run_dir: {directory.path} holds a finished run without its checkpoints; nothing "
                "was changed. Choose another directory"
            )

    def _check_same(self, found: Plain) -> None:
        saved: Plain = writable(found)  # earlier versions kept None
        for name in sorted(saved.keys() | self._config.keys()):
            if name != "rounds" and saved.get(name) != self._config.get(name):
                raise StateError(
                    f"run_dir: it holds a run with {name} = {saved.get(name)!r}, now it is "
                    f"{self._config.get(name)!r}; take the old value to go on, or another directory"
                )


def _refuse_others(path: Path) -> None:
    """Raise if a directory holds anything but a federation's run, before a file is touched."""
    taken = any((path / name).exists() for name in _MARKS)
    if taken and _config_of(path).get("dataset") != FEDERATION:
        raise StateError(
            f"run_dir: {path} already holds something else than a federation's run; nothing was "
            "changed. Choose another directory"
        )


def _config_of(path: Path) -> Plain:
    try:
        return tomllib.loads((path / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or not one that a run has written
        return {}
