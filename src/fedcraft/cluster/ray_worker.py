"""A worker in a cluster: one process with one torch thread, kept for the whole run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fedcraft.cluster import serialization
from fedcraft.cluster.serialization import (
    Broadcast,
    PackedJob,
    PackedTensor,
    UnitInput,
    UnitOutput,
)
from fedcraft.engine.executors.job import Command
from fedcraft.engine.executors.units import UnitFailure, UnitRunner
from fedcraft.errors import ClientError
from fedcraft.linalg.numerics import keep_freed_memory, one_thread


class RayWorker:
    """A Ray actor that runs units with the same runner as every other executor.

    It keeps only the job between two tasks, so that any worker can repeat any unit.
    """

    def prepare(self, packed: PackedJob) -> tuple[str, int]:
        """Take over the job; return the name of the node and the process id."""
        import ray

        one_thread()
        keep_freed_memory()
        job, self._workspace = serialization.unpack_job(packed)
        self._runner = UnitRunner(job, self._workspace)
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def run(
        self, command: Command, inputs: Sequence[UnitInput], model: Broadcast, initial: PackedTensor
    ) -> list[UnitOutput] | UnitFailure:
        """Run some units of a phase, at most one per slot."""
        serialization.unpack_broadcast(self._workspace, model, initial)
        outputs = []
        for slot, found in enumerate(inputs):
            unit = serialization.unpack_input(self._workspace, slot, found)
            try:
                self._runner.run(command, unit)
            except ClientError as error:
                return UnitFailure(error.client, str(error))
            evaluates = command.kind == "evaluate"
            place = self._runner.shard(command, unit) if evaluates else slot
            outputs.append(serialization.pack_output(self._workspace, command, place))
        return outputs
