"""One run: from a configuration to a run directory that holds everything needed to repeat it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import Unpack

from fedcraft import engine
from fedcraft.config.build import build_attack, build_federation, build_method, build_model
from fedcraft.config.overrides import ObjectKeys, Overrides
from fedcraft.config.paths import at_home, new_folder
from fedcraft.config.schema import Config
from fedcraft.config.toml import CONFIG_FILE, ConfigLike, config_text, load_config
from fedcraft.errors import ConfigError
from fedcraft.runs import Run
from fedcraft.runs.verify import check
from fedcraft.studies.plan import run_id
from fedcraft.studies.tracking import require_tracking, trackers

RUNS = Path("runs")


def run(
    config: ConfigLike = None,
    *,
    out: str | Path | None = None,
    callbacks: Iterable[engine.Callback] = (),
    **overrides: Unpack[Overrides],
) -> Run:
    """Train as ``config`` says and return the run.

    ``config`` is a :class:`Config`, a mapping, the path of a TOML file or of an earlier run, or
    nothing for the defaults; keyword arguments win over it. Data set, model, method and its parts
    may be Python objects: a :class:`Dataset`, arrays ``(inputs, labels[, owners])``, a data frame,
    a module or a function that makes one, a :class:`Method`, an aggregation rule or its class.
    ``out`` is the run directory, a new one under ``runs/`` if left out; a directory that holds a
    run already is never written to; one whose run could not start may be used again.

    >>> result = fedcraft.run(method="fedavg", rounds=20)      # doctest: +SKIP
    >>> result.clients().query("metric == 'accuracy'")         # doctest: +SKIP
    """
    settled = load_config(config, dict(overrides))
    directory = _directory_of(settled, out)  # one that is taken is reported before data are read
    _train(directory, settled, callbacks, resume=False)
    return Run(directory)


def _directory_of(config: Config, out: str | Path | None) -> Path:
    """Return the requested run directory if it is free."""
    directory = _free(RUNS / run_id(config)) if out is None else new_folder(out)
    if (directory / CONFIG_FILE).exists():
        raise ConfigError(
            f"out: {directory} holds a run already. Give another folder, or continue that run: "
            f"fedcraft resume {quote(str(directory))}"
        )
    return directory


def resume(
    directory: str | Path,
    *,
    rounds: int | None = None,
    callbacks: Iterable[engine.Callback] = (),
    **objects: Unpack[ObjectKeys],
) -> Run:
    """Finish a run, from its last checkpoint or from the start; a finished one is returned.

    The result is the same, bit for bit, as if the run had never been interrupted. With more
    ``rounds`` than planned, the run continues to the model it would have had with that plan; where
    ``evaluate_every`` does not divide its old rounds, it keeps the evaluation at its old end. A run
    that was started with Python objects (``custom`` in its config.toml) needs the same ``objects``
    again.
    """
    result = _own_run(at_home(directory))
    config = result.config.with_objects(dict(objects)) if objects else result.config
    if rounds is not None and rounds != config.rounds:
        config = _prolonged(result, config, rounds)
    elif result.state == "finished" and not check(result.directory):
        return result
    _train(result.directory, config, callbacks, resume=True)
    return Run(result.directory)


def _train(
    directory: Path, config: Config, callbacks: Iterable[engine.Callback], *, resume: bool
) -> None:
    def text(executor: str) -> bytes:
        """Name the executor that ``auto`` chose, because a repetition must use the same one.

        ``serial`` and ``processes`` give the same bits, ``vectorized`` others, and ``auto`` depends
        on whether there is a GPU.
        """
        chosen = config.but(executor=executor) if config.executor == "auto" else config
        return config_text(chosen)

    require_tracking(config)
    federation = build_federation(config)
    model = build_model(config, federation.dataset)
    engine.run(
        build_method(config),
        federation,
        model,
        config,
        directory,
        attack=build_attack(config),
        callbacks=(*trackers(config, directory), *callbacks),
        resume=resume,
        config=text,
    )


def _own_run(directory: Path) -> Run:
    """Refuse a file that no run wrote: an empty file would be the configuration of another run."""
    run = Run(directory)
    if not (directory / CONFIG_FILE).exists():
        inside = next(iter(sorted(directory.glob(f"*/{CONFIG_FILE}"))), None)
        fix = f"Name one of the runs in it, such as {inside.parent}" if inside else "Name another"
        raise ConfigError(f"{directory} is not a run directory: it has no {CONFIG_FILE}. {fix}")
    if not run.is_run:
        raise ConfigError(
            f"{directory / CONFIG_FILE}: method: expected the method of this run, found none: the "
            f"file was damaged, or {directory} is not a run directory. Start the run in another "
            "folder"
        )
    return run


def _prolonged(result: Run, config: Config, rounds: int) -> Config:
    if rounds < config.rounds:
        raise ConfigError(
            f"rounds: expected at least the {config.rounds} that {result.directory} is "
            f"planned for, found {rounds}. Start a new run for fewer"
        )
    return config.but(rounds=rounds)


def _free(wanted: Path) -> Path:
    """Return ``wanted``, or the first of ``wanted-2``, ``wanted-3``, ... that holds no run."""
    others = (wanted.with_name(f"{wanted.name}-{number}") for number in count(2))
    return next(path for path in chain([wanted], others) if not (path / CONFIG_FILE).exists())
