"""Freed memory stays with the process, and the numbers stay the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

_STEPS = """
import resource, torch
from fedcraft.linalg.numerics import keep_freed_memory, one_thread
one_thread()
keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
values = torch.arange(1e6)
total = 0
for step in range(60):
    before = before if step > 10 else faults()
    layers = [values * k for k in range(8)]
    total = total + sum(layer.sum() for layer in layers)
    del layers
print(faults() - before, total.item())
"""


def _run(keep):
    done = subprocess.run(
        [sys.executable, "-c", _STEPS],
        env={"FEDCRAFT_KEEP_MEMORY": keep, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    faults, total = done.stdout.split()
    return int(faults), total


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc gives memory back")
def test_a_process_keeps_what_it_frees_unless_told_not_to():
    (kept, same), (fetched, total) = _run("1"), _run("0")
    assert same == total
    # 50 steps with 8 tensors of 4 MB: 390,000 pages of 4 kB, which glibc fetches again and again.
    assert kept < fetched / 10
