"""One run: from a configuration to a run directory that holds everything needed to repeat it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from torch import nn

from fedcraft import engine
from fedcraft.data import Federation
from fedcraft.errors import BusyError, ConfigError
from fedcraft.experiments.build import (
    build_federation,
    build_method,
    build_model,
    build_settings,
)
from fedcraft.experiments.config import Config
from fedcraft.experiments.files import (
    CONFIG_FILE,
    ConfigLike,
    load_config,
    read_toml,
    write_config,
)
from fedcraft.experiments.places import at_home
from fedcraft.experiments.plan import run_id
from fedcraft.experiments.result import Result
from fedcraft.experiments.tracking import trackers
from fedcraft.methods import Method

__all__ = ["RUNS", "prepare", "resume", "run"]

RUNS = Path("runs")


def run(
    config: ConfigLike = None,
    *,
    out: str | Path | None = None,
    callbacks: Iterable[engine.Callback] = (),
    **overrides: Any,
) -> Result:
    """Train as ``config`` says and return the run.

    ``config`` is a :class:`Config`, a mapping, the path of a TOML file or of an earlier run, or
    nothing for the defaults; keyword arguments win over it. ``out`` is the run directory, a new one
    under ``runs/`` if left out; a directory that holds a run already is never written to, and one
    whose run could not start is free again.

    >>> result = fedcraft.run(method="fedavg", rounds=20)      # doctest: +SKIP
    >>> result.clients().query("metric == 'accuracy'")         # doctest: +SKIP
    """
    settled = load_config(config, overrides)
    _directory_of(settled, out)  # one that is taken is told before the data are read
    parts = _Parts.of(settled)
    directory = prepare(settled, out)
    written = Result(directory)
    try:
        return _train(written, written.config, parts, callbacks)
    except BusyError:
        raise
    except BaseException:
        _give_back(directory)
        raise


def prepare(config: Config, out: str | Path | None = None) -> Path:
    """Make the run directory and write its configuration."""
    directory = _directory_of(config, out)
    directory.mkdir(parents=True, exist_ok=True)
    write_config(config, directory / CONFIG_FILE)
    return directory


def _directory_of(config: Config, out: str | Path | None) -> Path:
    """Return the run directory that is asked for, if it is free."""
    directory = _free(RUNS / run_id(config)) if out is None else at_home(out)
    if (directory / CONFIG_FILE).exists():
        raise ConfigError(
            f"out: {directory} holds a run already. Give another folder, or continue that run: "
            f"fedcraft resume {quote(str(directory))}"
        )
    return directory


def _give_back(directory: Path) -> None:
    """Let the corrected command have the folder of a run that never started; drop an empty one."""
    started = ("status.json", "checkpoints")
    if not any((directory / name).exists() for name in started):
        (directory / CONFIG_FILE).unlink(missing_ok=True)
        with suppress(OSError):  # what else is in it stays
            directory.rmdir()


def resume(
    directory: str | Path,
    *,
    rounds: int | None = None,
    callbacks: Iterable[engine.Callback] = (),
) -> Result:
    """Bring a run to its end, from its last checkpoint or from the start; a finished one is left.

    The result is the same, bit for bit, as if it had never been interrupted. More ``rounds`` than
    the run was planned for train it further to the model it would have had, had it been planned
    so; where ``evaluate_every`` does not divide its old rounds, it keeps the evaluation at its old
    end.
    """
    result = _own_run(at_home(directory))
    config = result.config
    if rounds is not None and rounds != config.rounds:
        config = _prolonged(result, rounds)
    elif result.state == "finished":
        return result
    return _train(result, config, _Parts.of(config), callbacks)


class _Parts(NamedTuple):
    """What a configuration names; whatever is wrong with it is told when they are made."""

    method: Method
    federation: Federation
    model: nn.Module
    settings: engine.Settings

    @classmethod
    def of(cls, config: Config) -> _Parts:
        federation = build_federation(config)
        model = build_model(config, federation.dataset)
        return cls(build_method(config), federation, model, build_settings(config))


def _train(
    result: Result, config: Config, parts: _Parts, callbacks: Iterable[engine.Callback]
) -> Result:
    settle = _Settle(result.config, config)
    watchers = (settle, *trackers(config, result.directory), *callbacks)
    engine.run(*parts, result.directory, callbacks=watchers, resume=True)
    return Result(result.directory)


def _own_run(directory: Path) -> Result:
    """Refuse what no run of ours wrote: an empty file is a valid configuration, of another run."""
    path = directory / CONFIG_FILE
    if "method" not in read_toml(path):
        raise ConfigError(
            f"{path}: method: expected the method of this run, found none: the file was damaged, "
            f"or {directory} is no run directory. Start the run again in another folder"
        )
    return Result(directory)


def _prolonged(result: Result, rounds: int) -> Config:
    if rounds < result.config.rounds:
        raise ConfigError(
            f"rounds: expected at least the {result.config.rounds} that {result.directory} is "
            f"planned for, found {rounds}. Start a new run for fewer"
        )
    return result.config.but(rounds=rounds)


class _Settle(engine.Callback):
    """Writes down what has been settled, once the directory is locked and before the first round.

    That is a new number of rounds, and the executor that ``auto`` chose, because a repetition must
    not choose otherwise: ``serial`` and ``processes`` give the same bits, ``vectorized`` others,
    and ``auto`` looks at a clock.
    """

    def __init__(self, written: Config, config: Config) -> None:
        self._written, self._config = written, config

    def on_start(self, info: engine.RunInfo) -> None:
        auto = self._config.executor == "auto"
        settled = self._config.but(executor=info.executor) if auto else self._config
        if settled != self._written and info.directory is not None:
            write_config(settled, info.directory / CONFIG_FILE)


def _free(wanted: Path) -> Path:
    """Return ``wanted``, or the first of ``wanted-2``, ``wanted-3``, ... that holds no run."""
    number = 1
    while True:
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        if not (path / CONFIG_FILE).exists():
            return path
        number += 1
