"""Method and settings of a federation's run: checked, recorded, compared when it is resumed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcraft.aggregators.craft import Craft
from fedcraft.config.overrides import TrainingKeys
from fedcraft.config.settings import Settings
from fedcraft.errors import InputError, StateError
from fedcraft.flower.messages import keys
from fedcraft.methods import Method, Override
from fedcraft.methods import method as method_by_name
from fedcraft.methods.method import stable
from fedcraft.runs.seal import read_checked
from fedcraft.runs.writer import NullWriter, open_writer

FEDERATION = "federation"  # in place of a data set's name: the server never sees the data
_MARKS = ("config.toml", "status.json", "checkpoints")
_NOT_SENT = ("clients_per_round", "dropout", "nonfinite")  # what only the simulator has
_SENT = {
    keys.LR: "client_lr",
    keys.EPOCHS: "local_epochs",
    keys.BATCH: "batch_size",
    keys.SEED: "seed",
}
# Over a network a round is long, so every one is kept. An evaluation by the clients is another
# message to each of them and takes as long as training: Flower's own strategies do it every round.
_DEFAULTS: TrainingKeys = {
    "evaluate_every": 5,
    "evaluate_train_loss": False,
    "diagnostics_every": 1,
    "checkpoint_every": 1,
}


def method_of(given: object, *more: object) -> Method:
    """Return the method that a strategy is given, by name or as it is."""
    if not more and isinstance(given, str):
        return method_by_name(given)
    if not more and isinstance(given, Method):
        return given
    raise InputError(
        f"method: expected a name or a Method, found {', '.join(map(repr, (given, *more)))}; give "
        "the arguments of Flower's strategies by name, as in fraction_train=0.5"
    )


def size_capped(method: Method, guard: Override) -> Method:
    """Do not trust the sizes that clients claim, where nothing else was asked for."""
    plain = guard is None and method.guard.name == "none"
    craft = plain and isinstance(method.build()[1], Craft)
    return method.overridden(guard="size_cap") if craft else method


def settings_of(method: Method, clients_per_round: int, training: TrainingKeys) -> Settings:
    """Return the settings of a federation; an error names an unknown key."""
    known = list(TrainingKeys.__annotations__)
    for name in training:
        if name not in known:
            raise InputError(f"{name}: unknown key; expected one of {', '.join(known)}")
    if method.buffered:
        raise InputError(
            f"method: {method.name} needs the virtual clock, which only the simulator has; here "
            "rounds are synchronous. Choose fedavg."
        )
    given: dict[str, Any] = {**_DEFAULTS, **training}
    if given.get("look_ahead") is None:
        given["look_ahead"] = method.look_ahead
    return Settings(
        clients_per_round=clients_per_round,
        client_lr=method.client_lr,
        server_lr=method.server_lr,
        checkpoint_minutes=0,
        **given,
    )


def recorded_config(
    method: Method, settings: Settings, train_config: Mapping[str, Any], **others: Any
) -> dict[str, Any]:
    """Return a run's settings for config.toml, as its clients get them: ``train_config`` wins."""
    sent = {_SENT[name]: value for name, value in train_config.items() if name in _SENT}
    if keys.LR in train_config:
        sent["lr_decay"] = 1.0  # the same rate in every round
    if keys.SEED in train_config:
        sent["cohort_seed"] = settings.seed  # the strategy's seed still draws the clients
    config: dict[str, Any] = writable(
        {
            "method": method.name,
            "dataset": FEDERATION,
            "rounds": settings.rounds,
            **{key: value for key, value in settings.identity().items() if key not in _NOT_SENT},
            **sent,
            **others,
            "train_config": train_config,
            **{name: {"name": part.name, **part.params} for name, part in method.parts.items()},
        }
    )
    return config


def writable(value: Any) -> Any:
    """Return a setting as TOML and JSON can express it.

    Functions and objects become text that is the same in every process; None and bytes are left
    out.
    """
    if isinstance(value, Mapping):
        return {str(name): writable(item) for name, item in value.items() if _expressible(item)}
    if isinstance(value, (list, tuple)):
        return [writable(item) for item in value if _expressible(item)]
    return value if isinstance(value, (bool, int, float, str)) else str(stable(value))


def _expressible(value: object) -> bool:
    return value is not None and not isinstance(value, bytes)


def open_run(path: Path | None, keep_checkpoints: int) -> NullWriter:
    """Return the writer of a run directory, which must be new or that of a federation."""
    taken = path is not None and any((path / name).exists() for name in _MARKS)
    if path is not None and taken and _config_in(path).get("dataset") != FEDERATION:
        raise StateError(
            f"run_dir: {path} is in use, but not by a federation; nothing was "
            "changed. Choose another directory"
        )
    return open_writer(path, keep_checkpoints=keep_checkpoints, resume=True)


def find_checkpoint(writer: NullWriter, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the newest checkpoint, which must be of a run with this config; None for a new run.

    Rounds after the checkpoint are repeated, unless the run is finished.
    """
    state = writer.find_checkpoint(("config",))
    if state is not None:
        _check_same(state["config"], config)
    elif writer.path is not None and (writer.path / "metrics.jsonl").exists():
        _check_same(_config_in(writer.path), config)
        if json.loads(read_checked(writer.path / "status.json")).get("state") == "finished":
            raise StateError(
                f"run_dir: {writer.path} holds a finished run without its checkpoints; nothing was "
                "changed. Choose another directory"
            )
    return state


def _check_same(found: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    saved = writable(found)  # earlier versions kept None
    for name in sorted(saved.keys() | config.keys()):
        if name != "rounds" and saved.get(name) != config.get(name):
            raise StateError(
                f"run_dir: it holds a run with {name} = {saved.get(name)!r}, now it is "
                f"{config.get(name)!r}; use the old value to continue it, or another directory"
            )


def _config_in(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is none, or a run did not write it
        return {}
