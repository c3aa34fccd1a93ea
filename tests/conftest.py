"""What every test may use: the golden files, and a comparison in their own terms.

A golden file holds inputs and outputs of a reference implementation (see ``golden/README.md``).
A test asks for them in one of two ways::

    @pytest.mark.golden("fedavgm-*.npz")      # once for every file that matches
    def test_...(golden_case): ...

    def test_...(golden):
        case = golden("simplex-a.npz")

Both name the files in plain strings, so ``test_golden_coverage.py`` can read from the sources which
files are used, whichever tests happen to run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"
# Ctrl-C must mean something here and in what tests start, also where cron or nohup ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A command that runs in this process would change how it frees memory, which other tests measure.
os.environ["FEDCRAFT_KEEP_MEMORY"] = "0"


class GoldenCase:
    """One golden file: ``case["beta"]``, and ``case.rounds`` without the prefix ``r{t}_``."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        with np.load(path, allow_pickle=False) as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}

    def __getitem__(self, name: str) -> Any:
        value = self.arrays[name]
        return value.item() if value.ndim == 0 else value

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    @property
    def rounds(self) -> Iterator[dict[str, Any]]:
        for index in range(self["n_rounds"]):
            prefix = f"r{index}_"
            names = [name for name in self.arrays if name.startswith(prefix)]
            yield {name.removeprefix(prefix): self[name] for name in names}


def load_golden(name: str) -> GoldenCase:
    return GoldenCase(GOLDEN / name)


def deviation(found: Any, expected: Any) -> float:
    """max |found - expected| / max |expected|: the measure of the golden tolerances."""
    expected = np.asarray(expected, dtype=np.float64)
    scale = np.abs(expected).max()
    error = np.abs(np.asarray(found, dtype=np.float64) - expected).max()
    return float(error / scale) if scale > 0 else float(error)


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    config.addinivalue_line("markers", "golden(*patterns): run once for every golden file named")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_case" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("golden")
    patterns = marker.args if marker is not None else ()
    names = sorted({path.name for pattern in patterns for path in GOLDEN.glob(pattern)})
    if not names:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: no golden file for {patterns}")
    ids = [name.removesuffix(".npz") for name in names]
    metafunc.parametrize("golden_case", names, indirect=True, ids=ids)


@pytest.fixture
def golden_case(request: pytest.FixtureRequest) -> GoldenCase:
    return load_golden(request.param)


@pytest.fixture
def golden() -> Callable[[str], GoldenCase]:
    return load_golden


@pytest.fixture
def relative_error() -> Callable[[Any, Any], float]:
    return deviation
