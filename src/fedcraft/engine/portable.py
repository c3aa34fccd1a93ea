"""A job on its way to a process that was not forked: the samples stay in shared memory."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedcraft.data import Federation
from fedcraft.engine.job import Job
from fedcraft.engine.shared import SharedTensor

__all__ = ["Portable"]


class Portable:
    """A job without its data set, and the tensors of the data set in shared memory: one copy.

    What remains is pickled: indices, the module, the objective.
    """

    def __init__(self, job: Job) -> None:
        self._inputs, self._labels = _shared(job.tensors.inputs), _shared(job.tensors.labels)
        hollow = replace(job.tensors, inputs=torch.empty(0), labels=torch.empty(0))
        self._job = replace(job, federation=_without_samples(job.federation), tensors=hollow)

    def unpack(self) -> Job:
        """Return the job with its samples."""
        tensors = self._job.tensors
        whole = replace(tensors, inputs=self._inputs.tensor, labels=self._labels.tensor)
        return replace(self._job, tensors=whole)


def _shared(tensor: Tensor) -> SharedTensor:
    shared = SharedTensor(tuple(tensor.shape), tensor.dtype)
    shared.tensor.copy_(tensor)
    return shared


def _without_samples(federation: Federation) -> Federation:
    """Return a federation whose data set is gone: workers ask it for indices alone."""
    hollow: Any = copy.copy(federation)
    object.__setattr__(hollow, "dataset", None)
    found: Federation = hollow
    return found
