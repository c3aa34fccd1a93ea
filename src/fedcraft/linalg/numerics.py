"""One torch thread and no denormals: the arithmetic that every executor shares, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def one_thread() -> None:
    """Set this process to one torch thread and flush denormals to zero.

    Two threads in each of two workers on two cores cost a factor 10 to 100; denormals are slow.
    """
    torch.set_num_threads(1)
    for kind in (np.float32, np.float64):
        np.finfo(kind)  # numpy tests denormals once and would warn that they are flushed
    torch.set_flush_denormal(True)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run a block under :func:`one_thread` and restore the process afterwards."""
    threads = torch.get_num_threads()
    one_thread()
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
