"""One torch thread, no denormals, and memory that stays: what all processes of a run share."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h


def one_thread() -> None:
    """Set this process to one torch thread and flush denormals to zero.

    Two threads in each of two workers on two cores cost a factor 10 to 100; denormals are slow.
    """
    torch.set_num_threads(1)
    for kind in (np.float32, np.float64):
        np.finfo(kind)  # numpy tests denormals once and would warn that they are flushed
    torch.set_flush_denormal(True)


def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to 256 MB, for its next tensors.

    glibc gives blocks above 128 kB back to the system and fetches them again, page by page, in
    every training step: a sixth of a ResNet's time. The results are the same. Does nothing where
    there is no glibc, or with FEDCRAFT_KEEP_MEMORY=0.
    """
    if not sys.platform.startswith("linux") or os.environ.get("FEDCRAFT_KEEP_MEMORY") == "0":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**25)  # the most that every glibc accepts
        mallopt(_TRIM_THRESHOLD, 2**28)
        mallopt(_TOP_PAD, 2**26)  # grow in large steps


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
