"""The peak memory of a run does not include earlier peaks."""

from __future__ import annotations

import numpy as np
import pytest

from fedcraft.engine.profiling import PeakMemory, _peak_bytes
from fedcraft.engine.simulation import run
from fedcraft.methods import method

_MEGABYTES = 200


def _allocate_and_free():
    np.ones(_MEGABYTES * 2**17)


@pytest.fixture(autouse=True)
def _forgetful():
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        pytest.skip("this system cannot forget a peak")


def test_a_gauge_sees_what_was_freed_again_but_not_what_came_before_it():
    start = PeakMemory().peak([])
    gauge = PeakMemory()
    _allocate_and_free()
    high = gauge.peak([])

    assert high > start + 0.9 * _MEGABYTES
    assert PeakMemory().peak([]) < start + 0.5 * _MEGABYTES
    assert gauge.peak([]) == high


def test_two_equal_runs_have_equal_peaks_whatever_was_freed_between(federation, model, settings):
    def peak():
        return run(method("fedavg"), federation, model, settings()).metrics[-1]["peak_memory_mb"]

    first = peak()
    _allocate_and_free()
    assert _peak_bytes() / 2**20 > first + 0.9 * _MEGABYTES
    assert peak() == pytest.approx(first, abs=0.2 * _MEGABYTES)
