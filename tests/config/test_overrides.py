"""The typed keyword arguments are the keys of the schema, and a type checker knows them."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

import fedcraft
from fedcraft.config.overrides import ObjectKeys, Overrides, TrainingKeys
from fedcraft.config.schema import Config
from fedcraft.config.settings import Settings

SOURCE = Path(fedcraft.__file__).parent
TYPED = ("__init__.py", "studies/run.py", "studies/compare.py", "config/overrides.py")
CHECKED = [SOURCE / name for name in TYPED]
PROGRAM = """
import fedcraft
fedcraft.run(rounds=2, client_lr=0.1, executor="serial", aggregator={"tau": 0.0})
fedcraft.run(round=2)
fedcraft.run(rounds="2")
fedcraft.resume("runs/a", model="mlp")
fedcraft.resume("runs/a", rate=0.1)
fedcraft.compare(["craft"], round=2)
"""


def test_overrides_are_the_keys_of_the_schema() -> None:
    assert set(Overrides.__annotations__) == set(Config.model_fields)
    assert set(TrainingKeys.__annotations__) < set(Settings.model_fields)
    assert set(ObjectKeys.__annotations__) < set(Overrides.__annotations__)


def test_types_of_overrides_are_those_of_the_schema() -> None:
    typed = typing.get_type_hints(Overrides)
    for key in set(Config.model_fields) - set(ObjectKeys.__annotations__):
        own = {a for a in _parts(Config.model_fields[key].annotation) if a is not type(None)}
        assert own <= set(_parts(typed[key])) | {dict[str, typing.Any]}, key


def _parts(kind: typing.Any) -> list[typing.Any]:
    """Return the alternatives of a type, without what narrows them."""
    if typing.get_origin(kind) is typing.Annotated:
        return _parts(typing.get_args(kind)[0])
    if type(None) in typing.get_args(kind):
        return [part for inner in typing.get_args(kind) for part in _parts(inner)]
    return [kind]


def test_type_checker_finds_a_misspelt_key(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    flags = ["--follow-imports=skip", "--no-incremental", "--config-file=", "--no-error-summary"]
    flags += ["--ignore-missing-imports", "--disable-error-code=misc"]
    found, _, _ = api.run([*flags, str(program), *map(str, CHECKED)])
    errors = [line for line in found.splitlines() if f"{program.name}:" in line and "error" in line]
    lines = {int(line.split(":")[1]): line for line in errors}
    assert set(lines) == {4, 5, 7, 8}, found
    assert '"round"' in lines[4]
    assert '"rate"' in lines[7]
