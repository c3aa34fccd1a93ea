"""The peak memory of a run does not include earlier peaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_MEGABYTES = 200
# In new processes: one that has run a thousand tests has holes in its heap, which it never returns.
_START = f"""
import json, tempfile
import numpy as np
import fedcraft
from fedcraft.engine.profiling import PeakMemory, _peak_bytes

def allocate_and_free():
    np.ones({_MEGABYTES} * 2**17)
"""
_GAUGES = """
start = PeakMemory().peak([])
gauge = PeakMemory()
allocate_and_free()
high = gauge.peak([])
print(json.dumps([start, high, PeakMemory().peak([]), gauge.peak([])]))
"""
_RUNS = """
def peak():
    keys = dict(dataset="digits", rounds=1, executor="serial")
    run = fedcraft.run(method="fedavg", out=tempfile.mkdtemp() + "/run", **keys)
    return run.records[-1]["peak_memory_mb"]

peak()  # imports and caches
first = peak()
allocate_and_free()
print(json.dumps([first, _peak_bytes() / 2**20, peak()]))
"""


@pytest.fixture(autouse=True)
def _forgetful():
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        pytest.skip("this system cannot forget a peak")


def _measured(code: str) -> list[float]:
    paths = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "FEDCRAFT_KEEP_MEMORY": "0", "PYTHONPATH": paths}
    command = [sys.executable, "-c", _START + code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_gauge_sees_what_was_freed_again_but_not_what_came_before_it():
    start, high, later, same = _measured(_GAUGES)
    assert high > start + 0.9 * _MEGABYTES
    assert later < start + 0.5 * _MEGABYTES
    assert same == high


def test_two_equal_runs_have_equal_peaks_whatever_was_freed_between():
    first, between, second = _measured(_RUNS)
    assert between > first + 0.9 * _MEGABYTES
    assert second == pytest.approx(first, abs=0.2 * _MEGABYTES)
