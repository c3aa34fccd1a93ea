"""What a run remembers of itself: in memory always, in a run directory where there is one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from fedcraft.aggregators import Certificate
from fedcraft.data import Federation
from fedcraft.engine.checkpoint import Checkpoints
from fedcraft.engine.directory import RunDirectory
from fedcraft.engine.fleet import Scores
from fedcraft.engine.settings import Settings
from fedcraft.engine.tables import plain
from fedcraft.errors import CheckpointError, ConfigError
from fedcraft.local.store import ClientStates, StateIndex

__all__ = ["Journal"]

_STATUS_SECONDS = 2.0
_NEEDED = ("round", "server", "clients", "tables", "split_hash", "identity", "executor")
_SECONDS_PER_MINUTE = 60.0


class Journal:
    """The rows of a run, its last scores, and when the next checkpoint is due."""

    def __init__(self, path: Path | None, settings: Settings, *, resume: bool) -> None:
        self._settings = settings
        keep = settings.keep_checkpoints
        self.directory = None if path is None else RunDirectory(path, keep_checkpoints=keep)
        self.rows: list[dict[str, Any]] = []
        self._scores: dict[str, Scores] = {}
        self._scored = -1
        self._indices: dict[int, StateIndex] = {}
        self._checkpointed = -1
        self._last_checkpoint = self._last_status = time.monotonic()
        if self.directory is not None and self.directory.used and not resume:
            self.directory.close()
            raise ConfigError(
                f"directory: {path} already holds a run; continue it with resume=True or choose "
                "another directory"
            )

    def find_checkpoint(self, split_hash: str) -> dict[str, Any] | None:
        """Return the state to resume from, or None for a start from the beginning."""
        if self.directory is None:
            return None
        state = self.directory.checkpoints.latest(self._accept)
        if state is None:
            return None
        if state["split_hash"] != split_hash:
            raise CheckpointError(
                f"{self.directory.path}: its checkpoints belong to another split of the data "
                f"({state['split_hash'][:12]}, now {split_hash[:12]}); nothing was changed"
            )
        self._checkpointed = state["round"]
        self._indices[state["round"]] = state["clients"]
        return state

    def _accept(self, state: Mapping[str, Any]) -> None:
        missing = [name for name in _NEEDED if name not in state]
        if missing:
            raise CheckpointError(f"it is not a run's checkpoint: {', '.join(missing)} is missing")
        if self.directory is not None:
            ClientStates(self.directory.states).load(state["clients"])

    def begin(
        self, federation: Federation, checkpoint: Mapping[str, Any] | None, about: dict[str, Any]
    ) -> None:
        """Bring the tables to where the checkpoint is, and say what runs here."""
        if self.directory is None:
            return
        self.directory.cut(None if checkpoint is None else checkpoint["tables"])
        self.rows = _read_rows(self.directory.metrics.path)
        self.directory.begin(federation, about)
        self.directory.status(
            state="running",
            round=0 if checkpoint is None else checkpoint["round"],
            rounds=self._settings.rounds,
            reason="",
            split_hash=federation.split_hash,
            fedcraft=version("fedcraft"),
            **about,
        )

    def add_round(self, row: dict[str, Any], certificate: Certificate | None) -> None:
        """Write one round to the tables; of two rows of one round the later counts."""
        number = row["round"]
        if self.rows and self.rows[-1]["round"] == number:
            self.rows.pop()
        self.rows.append(plain(row))
        if self.directory is None:
            return
        self.directory.metrics.row(row)
        if certificate is not None and self._settings.diagnoses(number):
            self.directory.write_certificate(number, certificate.rows())
        if time.monotonic() - self._last_status > _STATUS_SECONDS:
            self._last_status = time.monotonic()
            self.directory.status(round=number)

    def add_scores(self, round_number: int, scores: dict[str, Scores]) -> None:
        """Write one evaluation of all clients."""
        self._scores, self._scored = scores, round_number
        if self.directory is not None:
            self.directory.write_scores(round_number, scores)

    def scores_of(self, round_number: int) -> dict[str, Scores] | None:
        """Return the scores of a round if they are the last ones this process has seen."""
        return self._scores if self._scored == round_number else None

    def checkpoint_due(self, round_number: int) -> bool:
        """Tell whether a checkpoint should follow this round."""
        if self.directory is None:
            return False
        every, minutes = self._settings.checkpoint_every, self._settings.checkpoint_minutes
        if every and round_number % every == 0:
            return True
        waited = time.monotonic() - self._last_checkpoint
        return minutes is not None and waited >= minutes * _SECONDS_PER_MINUTE

    def save_checkpoint(self, state: Mapping[str, Any], states: ClientStates) -> None:
        """Write a checkpoint with the clients' states and the sizes of the tables it belongs to."""
        if self.directory is None:
            return
        number, checkpoints = state["round"], self.directory.checkpoints
        if number == self._checkpointed:
            return
        try:
            index, sizes = states.save(), self.directory.sync()
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{self.directory.path}: cannot be written: {error}; free some space, then resume"
            ) from error
        checkpoints.save(number, {**state, "clients": index, "tables": sizes})
        self._last_checkpoint, self._checkpointed = time.monotonic(), number
        self.directory.status(round=number)
        self._indices[number] = index
        self.prune(states)

    def prune(self, states: ClientStates) -> None:
        """Delete the states that no checkpoint names: of old rounds, or of attempts that failed."""
        if self.directory is not None:
            states.prune(self._kept_indices(self.directory.checkpoints))

    def _kept_indices(self, checkpoints: Checkpoints) -> list[StateIndex]:
        """Return the indices of all checkpoints on disk: what they name must stay."""
        kept = {}
        for number in checkpoints.rounds():
            if number in self._indices:
                kept[number] = self._indices[number]
                continue
            with suppress(CheckpointError):  # a damaged one names nothing
                kept[number] = checkpoints.read(number).get("clients", {})
        self._indices = kept
        return list(kept.values())

    def end(self, state: str, reason: str, round_number: int) -> None:
        """Say how the run ended."""
        if self.directory is not None:
            self.directory.status(state=state, reason=reason, round=round_number)
            self.directory.log(f"{state} after round {round_number}: {reason or 'all rounds done'}")

    def save_model(self, tensors: Mapping[str, Tensor]) -> Path | None:
        """Write the final model."""
        return None if self.directory is None else self.directory.save_model(tensors)

    def log(self, message: str) -> None:
        """Write a line to the log."""
        if self.directory is not None:
            self.directory.log(message)

    def close(self) -> None:
        """Close the files."""
        if self.directory is not None:
            self.directory.close()


def _read_rows(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({row["round"]: row for row in rows}.values())
