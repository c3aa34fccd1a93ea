"""Made run directories, shared by the tests of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fedcraft.methods import methods
from fedcraft.report import load_runs, write_page
from fedcraft.runs import Run
from tests.report import made_runs


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five methods with two seeds, Ditto and Ditto + CRAFT over a grid of learning rates."""
    return made_runs.write_comparison(tmp_path_factory.mktemp("comparison") / "runs")


@pytest.fixture(scope="session")
def runs(comparison: Path) -> list[Run]:
    return load_runs(comparison)


@pytest.fixture(scope="session")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Every method there is."""
    names = [row.name for row in methods()]
    return load_runs(made_runs.write_all_methods(tmp_path_factory.mktemp("crowd") / "runs", names))


@pytest.fixture(scope="session")
def text(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the comparison."""
    return write_page(runs, tmp_path_factory.mktemp("page") / "deep" / "page.html").read_text()


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Write one run: ``make_run("name", method="craft", level=0.8)``; ``keys`` go to its config."""

    def write(name: str, keys: Mapping[str, object] | None = None, **knobs: object) -> Path:
        folder = made_runs.write_run(tmp_path / name, made_runs.Made(**knobs))
        made_runs.add_keys(folder, **(keys or {}))
        return folder

    return write


@pytest.fixture
def plan_run(tmp_path: Path) -> Callable[..., Path]:
    """Write the directory of a run that has not started."""
    return lambda name, **knobs: made_runs.write_plan(tmp_path / name, made_runs.Made(**knobs))
