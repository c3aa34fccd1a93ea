"""The run directory of a federation: the simulator's tables and checkpoints, for real clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
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
from fedcraft.flower.intake import LARGEST_SIZE, Accepted
from fedcraft.metrics import summarise

__all__ = ["Ledger", "Plain", "scores_of", "summary"]

Plain = dict[str, Any]
_NO_METRIC = frozenset({keys.CLIENT, keys.EXAMPLES, keys.STATE_LOST})
_ALIASES = {"eval_acc": keys.ACCURACY, "eval_accuracy": keys.ACCURACY, "eval_loss": keys.TEST_LOSS}
_SPLITS = {"": "test", "train-": "train", "validation-": "validation"}


class Ledger:
    """What ``fedcraft report`` reads, written by the server of a federation.

    Without a path nothing is written and there is nothing to resume from.
    """

    def __init__(self, path: Path | None, settings: Settings, config: Plain) -> None:
        self._settings, self._config = settings, config
        keep = settings.keep_checkpoints
        self.directory = None if path is None else RunDirectory(path, keep_checkpoints=keep)

    def resume(self) -> Plain | None:
        """Return the newest checkpoint, which must be one of this very run; None for a start."""
        if self.directory is None:
            return None
        state = self.directory.checkpoints.latest()
        if state is not None:
            self._check_same(state["config"])
        self.directory.cut(None if state is None else state["tables"])
        path = self.directory.path
        write_json(path / "environment.json", environment())
        write_atomically(path / "config.toml", tomli_w.dumps(_without_none(self._config)).encode())
        done = 0 if state is None else state["round"]
        self.directory.log(f"resumed after round {done}" if state else "started")
        self.directory.status(state="running", round=done, reason="", fedcraft=version("fedcraft"))
        return state

    def add_reports(self, round_number: int, replies: Iterable[Accepted]) -> None:
        """Write what every client said about its training to clients.csv."""
        if self.directory is not None:
            self.directory.clients.rows(
                (round_number, reply.client, "train", name, value, int(reply.weight))
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
        """Say how the run ended, and let go of the directory."""
        if self.directory is not None:
            self.directory.status(state=state, reason=reason, round=round_number)
            self.directory.log(f"{state} after round {round_number}: {reason or 'all rounds done'}")
            self.directory.close()

    def _check_same(self, saved: Mapping[str, Any]) -> None:
        for name in sorted(saved.keys() | self._config.keys()):
            if name != "rounds" and saved.get(name) != self._config.get(name):
                raise StateError(
                    f"run_dir: it holds a run with {name} = {saved.get(name)!r}, now it is "
                    f"{self._config.get(name)!r}; take the old value to go on, or another directory"
                )


def scores_of(replies: Sequence[Accepted]) -> dict[str, Scores]:
    """Return, by split, the accuracy and loss of every client that reports both."""
    named = [{_ALIASES.get(n, n): v for n, v in reply.metrics.items()} for reply in replies]
    scores = {}
    for prefix, split in _SPLITS.items():
        wanted = [prefix + name for name in (keys.TEST_LOSS, keys.ACCURACY, keys.EXAMPLES)]
        rows = {
            reply.client: [float(metrics[name]) for name in wanted]
            for reply, metrics in zip(replies, named, strict=True)
            if all(isinstance(metrics.get(name), (int, float)) for name in wanted)
        }
        tested = {client: row for client, row in rows.items() if _sound(row)}
        if tested:
            loss, accuracy, samples = np.asarray(list(tested.values())).T
            clients = np.asarray(list(tested))
            scores[split] = Scores(clients, loss, accuracy, samples.astype(np.int64))
    return scores


def _sound(row: Sequence[float]) -> bool:
    """Tell whether a client's numbers are finite and of at least one sample."""
    return bool(np.isfinite(row).all()) and 1 <= row[-1] <= LARGEST_SIZE


def summary(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the numbers of an evaluation as the simulator does."""
    found = {
        f"{split}_loss": float(np.average(score.loss, weights=score.samples))
        for split, score in scores.items()
    }
    if "test" in scores:
        found |= summarise(scores["test"].accuracy, scores["test"].samples)
    return found


def _without_none(config: Plain) -> Plain:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if value is not None
    }
