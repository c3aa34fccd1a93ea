"""The writer of a run: to a run directory, or to memory only."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from fedcraft.atomic import to_json
from fedcraft.errors import CheckpointError, DamageError
from fedcraft.local.store import ClientStates, StateIndex
from fedcraft.metrics.scores import Scores
from fedcraft.runs.about import environment, rounding_differences
from fedcraft.runs.checkpoint import Checkpoints
from fedcraft.runs.directory import (
    COHORTS,
    CONFIG_FILE,
    CONFLICTS,
    MODEL_FILE,
    TABLES,
    RunDirectory,
)
from fedcraft.runs.seal import STATUS_FILE, Digest
from fedcraft.runs.tables import check_start, plain

_ENVIRONMENT, _RESUMED = "environment.json", "resumed.json"
_ACCOUNT = "privacy.json"
_STATUS_SECONDS = 2.0
_SECONDS_PER_MINUTE = 60.0

Row = Mapping[str, Any]


class NullWriter:
    """Keeps a run's rows and last scores in memory and writes nothing."""

    path: Path | None = None
    states: Path | None = None
    """The folder of client states above the memory budget."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._scores: tuple[int, dict[str, Scores]] = (-1, {})

    def find_checkpoint(self, needed: Sequence[str] = ()) -> dict[str, Any] | None:
        """Return the newest good checkpoint, which has all keys ``needed``; None for a new run."""
        return None

    def begin(
        self,
        checkpoint: Mapping[str, Any] | None,
        *,
        config: bytes | None = None,
        files: Callable[[], Mapping[str, bytes]] = dict,
        **about: Any,
    ) -> None:
        """Cut the tables to the checkpoint, and describe the run.

        ``config`` is the content of config.toml, ``files`` makes others that never change, by name;
        ``about`` goes to status.json and, with the environment, to environment.json.
        """

    def add_round(
        self,
        row: Row,
        layers: Iterable[Row] = (),
        cohort: Iterable[Row] = (),
        cosines: Iterable[Sequence[object]] = (),
    ) -> None:
        """Add a round to metrics.jsonl, and what its certificate says to the other tables.

        That is conflicts.csv (by layer), cohorts.csv (by client) and cosines.csv (by both).
        Of two rows of one round the later one counts.
        """
        if self.rows and self.rows[-1]["round"] == row["round"]:
            self.rows.pop()
        self.rows.append(plain(row))

    def add_scores(self, round_number: int, scores: dict[str, Scores]) -> None:
        """Add an evaluation of all clients to clients.csv."""
        self._scores = round_number, scores

    def add_values(self, rows: Iterable[Iterable[object]]) -> None:
        """Add rows (round, client, split, metric, value, samples) to clients.csv."""

    def scores_of(self, round_number: int) -> dict[str, Scores] | None:
        """Return the scores of a round if they are the last ones of this process."""
        return self._scores[1] if self._scores[0] == round_number else None

    def checkpoint_due(self, round_number: int, every: int, minutes: float) -> bool:
        """Tell whether a checkpoint should follow this round."""
        return False

    def save_checkpoint(self, state: Row, states: ClientStates | None = None) -> None:
        """Write a checkpoint of ``state["round"]``, with the states of the clients."""

    def prune(self, states: ClientStates) -> None:
        """Delete the states that no checkpoint names: of old rounds, or of attempts that failed."""

    def save_account(self, account: Row) -> None:
        """Write the account of the privacy budget, before clients are asked."""

    def find_account(self) -> dict[str, Any] | None:
        """Return the account that was found; None if there is none, or none that is intact."""
        return None

    def save_model(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the final model by parameter and buffer name."""

    def end(self, state: str, reason: str, round_number: int, *, diverged: bool = False) -> None:
        """Record how the run ended."""

    def log(self, message: str) -> None:
        """Append a dated line to log.txt."""

    def close(self) -> None:
        """Close the files and release the lock."""


class RunWriter(NullWriter):
    """Writes a run directory, which it locks before anything else.

    Where ``resume`` finds damaged files that can be made again, it reports them and makes them
    again; other damage is an error.
    """

    path: Path
    states: Path

    def __init__(self, path: Path, *, keep_checkpoints: int = 2, resume: bool = False) -> None:
        super().__init__()
        self.path, self.states = path, path / "states"
        self.directory = RunDirectory(path, resume=resume)
        self.checkpoints = Checkpoints(path / "checkpoints", keep_checkpoints)
        self.checkpoints.sweep()
        self._indices: dict[int, StateIndex] = {}
        self._checkpointed = -1
        self._last_checkpoint = self._last_status = time.monotonic()

    def find_checkpoint(self, needed: Sequence[str] = ()) -> dict[str, Any] | None:
        def accept(state: dict[str, Any]) -> None:
            missing = [name for name in ("tables", *needed) if name not in state]
            if missing:
                raise CheckpointError(
                    f"it is not a run's checkpoint: {', '.join(missing)} is missing"
                )
            ClientStates(self.states).load(state.get("clients", {}))
            for name, known in state["tables"].items():
                expected = known if isinstance(known, int) else Digest(*known)
                check_start(self.path / TABLES[name], expected)

        state = self.checkpoints.latest(accept, self.directory.warn)
        self._checkpointed = -1 if state is None else state["round"]
        if state is not None:
            self._indices[state["round"]] = state.get("clients", {})
        last = self._last_checkpoint_known()
        if self._checkpointed < last and last not in self.checkpoints.rounds():
            origin = "the beginning" if state is None else f"round {self._checkpointed}"
            self.directory.warn(
                f"{self.path}: the checkpoint of round {last} is lost; the run continues from "
                f"{origin}"
            )
        return state

    def _last_checkpoint_known(self) -> int:
        """Return the last checkpoint that the status mentions, -1 if it mentions none."""
        status = self.directory.intact(STATUS_FILE)
        with suppress(ValueError, AttributeError, TypeError):  # of a run that has no seal
            return int(json.loads(status or "{}").get("checkpoint", -1))
        return -1

    def begin(
        self,
        checkpoint: Mapping[str, Any] | None,
        *,
        config: bytes | None = None,
        files: Callable[[], Mapping[str, bytes]] = dict,
        **about: Any,
    ) -> None:
        done = 0 if checkpoint is None else checkpoint["round"]
        contents = self._missing(files()) | self._environment(done, about)
        if config is not None and not self.directory.holds(CONFIG_FILE, config):
            contents[CONFIG_FILE] = config
        self.directory.begin(
            contents,
            {} if checkpoint is None else checkpoint["tables"],
            state="running",
            round=done,
            reason="",
            diverged=False,
            checkpoint=done or -1,
            fedcraft=version("fedcraft"),
            **about,
        )
        self.log(f"resumed after round {done}" if done else "started")
        self.rows = _read_rows(self.path / TABLES["metrics"])

    def _missing(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files to write: new and damaged ones, and all of a run without a seal."""
        found = {name: self.directory.intact(name) for name in (*files, MODEL_FILE)}
        if self.directory.sealed:
            return {name: text for name, text in files.items() if found[name] is None}
        return {name: text for name, text in found.items() if text is not None} | dict(files)

    def _environment(self, done: int, about: Mapping[str, Any]) -> dict[str, bytes]:
        """Return environment.json; of a resumed run it is kept, and resumed.json has one more."""
        now = {**environment(), **about}
        before = self.directory.intact(_ENVIRONMENT)
        if before is None:
            return {_ENVIRONMENT: to_json(now)}
        earlier = json.loads(self.directory.intact(_RESUMED) or "[]")
        changed = rounding_differences(before, now)
        if changed:
            self.directory.warn(
                f"{self.path}: this run began in another environment: {', '.join(changed)}; from "
                "here on its last bits may differ from those of a run that was never interrupted"
            )
        return {_ENVIRONMENT: before, _RESUMED: to_json([*earlier, {"round": done, **now}])}

    def add_round(
        self,
        row: Row,
        layers: Iterable[Row] = (),
        cohort: Iterable[Row] = (),
        cosines: Iterable[Sequence[object]] = (),
    ) -> None:
        super().add_round(row)
        self.directory.lock.check()
        number, tables = row["round"], self.directory.tables
        tables["metrics"].json(row)
        tables["conflicts"].rows([number, *(q[c] for c in CONFLICTS[1:])] for q in layers)
        tables["cohorts"].rows([number, *(k.get(c, "") for c in COHORTS[1:])] for k in cohort)
        tables["cosines"].rows((number, *cells) for cells in cosines)
        self.directory.confirm()
        if time.monotonic() - self._last_status > _STATUS_SECONDS:
            self._last_status = time.monotonic()
            self.directory.status(round=row["round"])

    def add_scores(self, round_number: int, scores: dict[str, Scores]) -> None:
        super().add_scores(round_number, scores)
        for split, score in scores.items():
            columns = (score.clients.tolist(), score.samples.tolist())
            for metric in ("accuracy", "loss"):
                values = getattr(score, metric).tolist()
                self.add_values(
                    (round_number, client, split, metric, value, n)
                    for client, n, value in zip(*columns, values, strict=True)
                )

    def add_values(self, rows: Iterable[Iterable[object]]) -> None:
        self.directory.tables["clients"].rows(rows)

    def checkpoint_due(self, round_number: int, every: int, minutes: float) -> bool:
        if every and round_number % every == 0:
            return True
        waited = time.monotonic() - self._last_checkpoint
        return minutes > 0 and waited >= minutes * _SECONDS_PER_MINUTE

    def save_checkpoint(self, state: Row, states: ClientStates | None = None) -> None:
        number = state["round"]
        if number == self._checkpointed:
            return
        self.directory.lock.check()
        try:
            index = {} if states is None else states.save()
            tables = self.directory.sync()
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{self.path}: cannot be written: {error}; free some space, then resume"
            ) from error
        self.checkpoints.save(number, {**state, "clients": index, "tables": tables})
        self._last_checkpoint, self._checkpointed = time.monotonic(), number
        self.directory.status(round=number, checkpoint=number)
        self._indices[number] = index
        if states is not None:
            self.prune(states)

    def save_account(self, account: Row) -> None:
        self.directory.replace({_ACCOUNT: to_json(account)})

    def find_account(self) -> dict[str, Any] | None:
        found = self.directory.intact(_ACCOUNT, "without it the run cannot continue")
        account: dict[str, Any] | None = None if found is None else json.loads(found)
        return account

    def prune(self, states: ClientStates) -> None:
        kept = {}
        for number in self.checkpoints.rounds():
            if number in self._indices:
                kept[number] = self._indices[number]
                continue
            with suppress(CheckpointError):  # a damaged one names no states
                kept[number] = self.checkpoints.read(number).get("clients", {})
        self._indices = kept
        states.prune(kept.values())

    def save_model(self, tensors: Mapping[str, Tensor]) -> None:
        content = save({name: tensor.clone() for name, tensor in tensors.items()})
        self.directory.replace({MODEL_FILE: content})

    def end(self, state: str, reason: str, round_number: int, *, diverged: bool = False) -> None:
        if self.directory.begun:
            self.directory.status(state=state, reason=reason, round=round_number, diverged=diverged)
            self.log(f"{state} after round {round_number}: {reason or 'all rounds done'}")
            self.directory.shut()

    def log(self, message: str) -> None:
        self.directory.log(message)

    def close(self) -> None:
        self.directory.close()


def open_writer(path: Path | None, *, keep_checkpoints: int, resume: bool) -> NullWriter:
    """Return the writer of a run directory, or without a path one that keeps rows in memory."""
    if path is None:
        return NullWriter()
    return RunWriter(path, keep_checkpoints=keep_checkpoints, resume=resume)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return list({row["round"]: row for row in rows}.values())
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(f"{path}: its rows cannot be read: {error!r}") from error
