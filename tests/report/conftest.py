"""Made run directories, shared by the tests of the report."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from fedcraft.methods import methods
from fedcraft.report import load_runs
from fedcraft.runs import Run


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


_made = _load("made_runs")


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five methods with two seeds, Ditto and Ditto + CRAFT over a grid of learning rates."""
    return _made.write_comparison(tmp_path_factory.mktemp("comparison") / "runs")


@pytest.fixture(scope="session")
def runs(comparison: Path) -> list[Run]:
    return load_runs(comparison)


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Every method there is."""
    names = [row.name for row in methods()]
    return load_runs(_made.write_all_methods(tmp_path_factory.mktemp("crowd") / "runs", names))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Write one run: ``make_run("name", method="craft", level=0.8)``; ``keys`` go to its config."""

    def write(name: str, keys: Mapping[str, object] | None = None, **knobs: object) -> Path:
        folder = _made.write_run(tmp_path / name, _made.Made(**knobs))
        _made.add_keys(folder, **(keys or {}))
        return folder

    return write


@pytest.fixture
def plan_run(tmp_path: Path) -> Callable[..., Path]:
    """Write the directory of a run that has not started."""
    return lambda name, **knobs: _made.write_plan(tmp_path / name, _made.Made(**knobs))
