"""Checkpoints of a run: written completely or not at all; the newest good one is found."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fedcraft.atomic import sync
from fedcraft.errors import CheckpointError
from fedcraft.runs.statefile import read_state, write_state

Accept = Callable[[dict[str, Any]], None]
_PREFIX = "round-"
_TEMPORARY = ".unfinished-"
_REPLACED = ".replaced-"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, ``directory/round-000123``, newest ``keep`` of them.

    A checkpoint is written under a temporary name, forced to the disk and renamed, so that a crash
    at any moment, or a full disk, leaves the earlier ones unchanged.
    """

    directory: Path
    keep: int = 2

    def save(self, round_number: int, state: Mapping[str, Any]) -> Path:
        """Write one checkpoint, then delete those beyond ``keep``."""
        target = self.path(round_number)
        try:
            self._write(target, state)
        except (OSError, SafetensorError) as error:
            kept = self.rounds()
            earlier = (
                f"the one of round {kept[-1]} is intact" if kept else "there is no earlier one"
            )
            raise CheckpointError(
                f"{target} cannot be written: {error}; {earlier}. Free some space or change the "
                "run's directory, then resume"
            ) from error
        self._prune()
        return target

    def rounds(self) -> list[int]:
        """Return the rounds that have a checkpoint, oldest first."""
        if not self.directory.is_dir():
            return []
        names = [entry.name for entry in self.directory.iterdir()]
        return sorted(int(n[len(_PREFIX) :]) for n in names if _is_checkpoint(n))

    def path(self, round_number: int) -> Path:
        """Return the path of the checkpoint of a round."""
        return self.directory / f"{_PREFIX}{round_number:06d}"

    def read(self, round_number: int) -> dict[str, Any]:
        """Read the checkpoint of one round."""
        path = self.path(round_number)
        state = read_state(path)
        if state.get("round") != round_number:
            raise CheckpointError(f"{path} holds a checkpoint of round {state.get('round')}")
        return state

    def latest(
        self, accept: Accept | None = None, warn: Callable[[str], None] = warnings.warn
    ) -> dict[str, Any] | None:
        """Read the newest good checkpoint, with a warning for every bad one that is passed over.

        ``accept`` may also check files that the checkpoint names, and raise ``CheckpointError``.
        None if the run has no checkpoint; ``CheckpointError`` if it has some and none is good.
        """
        self._restore()
        problems = []
        for round_number in reversed(self.rounds()):
            try:
                state = self.read(round_number)
                if accept is not None:
                    accept(state)
                return state
            except CheckpointError as error:
                problems.append(f"{self.path(round_number).name}: {error}")
                warn(f"checkpoint passed over: {problems[-1]}")
        if problems:
            raise CheckpointError(
                f"no checkpoint of {self.directory} can be used: {'; '.join(problems)}. Repeat the "
                "run in another directory, with fedcraft run CONFIG --out DIRECTORY"
            )
        return None

    def sweep(self) -> None:
        """Delete the temporary files of killed processes; only the sole writer may call this."""
        self._restore()
        for entry in self.directory.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(entry, ignore_errors=True)

    def _write(self, target: Path, state: Mapping[str, Any]) -> None:
        self.directory.mkdir(exist_ok=True)  # not its parents: a run directory may be deleted
        self.sweep()
        temporary = self.directory / f"{_TEMPORARY}{target.name}-{os.getpid()}"
        try:
            temporary.mkdir()
            write_state(temporary, state)
            sync(temporary)
            if target.exists():
                target.rename(self.directory / f"{_REPLACED}{target.name}")
            temporary.rename(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            self._restore()
            raise
        sync(self.directory)
        self._restore()

    def _prune(self) -> None:
        for round_number in self.rounds()[: -self.keep]:
            # Renamed first: a crash while deleting must not leave something that looks complete.
            doomed = self.directory / f"{_TEMPORARY}{round_number}"
            self.path(round_number).rename(doomed)
            shutil.rmtree(doomed)

    def _restore(self) -> None:
        """Restore a checkpoint that was moved aside for a new one, unless the new one exists."""
        for aside in self.directory.glob(f"{_REPLACED}*"):
            target = self.directory / aside.name.removeprefix(_REPLACED)
            if target.exists():
                shutil.rmtree(aside)
            else:
                aside.rename(target)


def _is_checkpoint(name: str) -> bool:
    return name.startswith(_PREFIX) and name[len(_PREFIX) :].isdigit()
