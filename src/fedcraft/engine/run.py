"""One call from a method, a federation and a model to a trained model and its tables."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedcraft.data import Federation
from fedcraft.engine.callbacks import Callback, Callbacks, RunInfo
from fedcraft.engine.crew import Halt
from fedcraft.engine.executors import device_of, hire, resolve
from fedcraft.engine.fleet import Fleet
from fedcraft.engine.identity import signature
from fedcraft.engine.interrupt import Interrupted, interruptible
from fedcraft.engine.job import SPLITS, DataSource, Desk, Job, own_order, shards
from fedcraft.engine.journal import Journal
from fedcraft.engine.loop import Loop
from fedcraft.engine.numerics import settled
from fedcraft.engine.result import Result
from fedcraft.engine.sampling import Sampler, draw_clients
from fedcraft.engine.server import Server
from fedcraft.engine.settings import Settings
from fedcraft.engine.stopping import require_judges
from fedcraft.errors import CheckpointError
from fedcraft.local.store import ClientStates
from fedcraft.methods import Method
from fedcraft.updates import Layout

__all__ = ["run"]

ModelSource = nn.Module | Callable[[], nn.Module]
_EVALUATION_SLOTS = 64


def run(
    method: Method,
    federation: Federation,
    model: ModelSource,
    settings: Settings,
    directory: str | Path | None = None,
    *,
    callbacks: Iterable[Callback] = (),
    resume: bool = False,
    client_data: DataSource = own_order,
    sampler: Sampler = draw_clients,
) -> Result:
    """Train ``model`` on ``federation`` with ``method``: T rounds of the paper's Algorithm 1.

    ``model`` is a module, or a function that makes one; it is copied, not changed. With a
    ``directory`` everything is written there as it happens, and ``resume=True`` continues from its
    newest good checkpoint to the same bits as a run that was never interrupted; without one
    nothing is kept. Clients are aggregated in the order of their ids, so the result does not
    depend on who trained when. ``sampler`` may draw the cohorts in a way of its own, and
    ``client_data`` prescribe what a client sees in a round.

    Raises ``Interrupted`` after Ctrl-C, ``ClientError`` with a client's own traceback, and the
    errors of :mod:`fedcraft.errors` for everything else; the directory is then still resumable.
    """
    # What cannot go well is said before any work.
    sampler(settings, len(federation), 0)
    require_judges(settings, federation)
    device_of(settings)
    path = None if directory is None else Path(directory)
    with ExitStack() as stack:
        stack.enter_context(settled())
        halted = stack.enter_context(interruptible())
        setup = _Setup(method, federation, model, settings, client_data)
        journal = Journal(path, settings, resume=resume)
        stack.callback(journal.close)
        checkpoint = journal.find_checkpoint(federation.split_hash) if resume else None
        setup.check(checkpoint)
        loop = setup.loop(journal, checkpoint, Callbacks(callbacks), halted, sampler)
        stack.callback(loop.fleet.close)
        return setup.carry_out(loop)


class _Setup:
    """The parts of a run, made once."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        model: ModelSource,
        settings: Settings,
        client_data: DataSource,
    ) -> None:
        self.settings, self.federation = settings, federation
        self.objective, self.aggregator, self.optimizer = method.build(settings.server_lr)
        parts = {"local": method.local, "aggregator": method.aggregator, "server": method.server}
        module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        self.objective.check(module)
        self.layout = Layout.from_module(module, settings.layers)
        self.theta = self.layout.flatten(dict(module.named_parameters())).clone()
        shapes = " ".join(f"{t.name}{list(t.shape)}" for t in self.layout.tensors)
        model_id = f"{self.theta.numel()} parameters, {zlib.crc32(shapes.encode()):08x}"
        self.identity = {
            **settings.identity(),
            **{name: signature(part) for name, part in parts.items()},
            "model": model_id,
        }
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        self.buffers = buffers or None
        self.job = Job(
            module=module,
            objective=self.objective,
            federation=federation,
            tensors=federation.tensors(),
            epochs=settings.local_epochs,
            batch_size=settings.batch_size,
            seed=settings.seed,
            evaluate_batch=settings.evaluate_batch,
            data=client_data,
            device=device_of(settings),
        )
        self.executor = ""

    def check(self, checkpoint: Mapping[str, Any] | None) -> None:
        """Refuse to continue a run that was another one."""
        if checkpoint is None:
            return
        then = checkpoint["identity"]
        changed = [name for name, value in self.identity.items() if then.get(name) != value]
        if changed:
            listed = ", ".join(f"{k} was {then.get(k)!r}, is {self.identity[k]!r}" for k in changed)
            raise CheckpointError(
                f"the checkpoint belongs to a run with other settings: {listed}; start a new run, "
                "or resume with the old ones"
            )

    def loop(
        self,
        journal: Journal,
        checkpoint: Mapping[str, Any] | None,
        callback: Callback,
        halted: Callable[[], bool],
        sampler: Sampler,
    ) -> Loop:
        """Hire the crew and put everything in its place, at the checkpoint if there is one."""
        remembered = None if checkpoint is None else checkpoint["executor"]
        desk = self._desk()
        desk.initial.copy_(self.theta)
        self.executor = resolve(self.settings, self.job, desk, remembered)
        place = None if journal.directory is None else journal.directory.states
        states = ClientStates(place, memory_mb=self.settings.state_memory_mb)
        crew = hire(self.executor, self.settings, self.job, desk, halted)
        server = Server(
            self.aggregator,
            self.optimizer,
            self.theta,
            self.layout,
            buffers=self.buffers,
            buffer_policy=self.settings.buffers,
        )
        fleet = Fleet(self.job, desk, crew, side_by_side=self.executor == "vectorized")
        loop = Loop(self.settings, fleet, server, states, journal, callback, halted, sampler)
        loop.extra = {"identity": self.identity, "executor": self.executor}
        try:
            self._begin(loop, checkpoint)
        except BaseException:
            crew.close()
            raise
        return loop

    def _begin(self, loop: Loop, checkpoint: Mapping[str, Any] | None) -> None:
        if checkpoint is not None:
            loop.load_state_dict(checkpoint)
        loop.journal.prune(loop.states)  # before anything is written: the disk may be full
        about = {"executor": self.executor, "workers": loop.fleet.crew.size}
        loop.journal.begin(self.federation, checkpoint, about)
        loop.callback.on_start(self._info(loop))

    def carry_out(self, loop: Loop) -> Result:
        """Run the loop to its end, whatever that is, and say so everywhere."""
        try:
            result = self._complete(loop)
        except Interrupted:
            self._end(loop, "interrupted", "by the user")
            raise
        except BaseException as error:
            with suppress(OSError):  # a full disk: what filled it says more
                self._end(loop, "failed", f"{type(error).__name__}: {error}".splitlines()[0])
            raise
        self._end(loop, result.state, loop.reason)
        return result

    def _complete(self, loop: Loop) -> Result:
        """Run the loop and write what it leaves behind; after Ctrl-C, a checkpoint."""
        try:
            state = loop.run()
        except Halt:
            loop.save()
            where = loop.journal.directory
            raise Interrupted(loop.round, None if where is None else where.path) from None
        loop.save()
        result = self._result(loop, state)
        loop.journal.save_model(result.tensors)
        return result

    def _end(self, loop: Loop, state: str, reason: str) -> None:
        try:
            loop.journal.end(state, reason, loop.round)
        finally:
            loop.callback.on_end(state, reason)

    def _result(self, loop: Loop, state: str) -> Result:
        vector = loop.server.output
        return Result(
            state=state,
            reason=loop.reason,
            round=loop.round,
            vector=vector,
            tensors={**self.layout.unflatten(vector), **(loop.server.buffers or {})},
            metrics=loop.journal.rows,
            scores=loop.journal.scores_of(loop.round) or loop.evaluate(),
            executor=self.executor,
            directory=None if loop.journal.directory is None else loop.journal.directory.path,
            client_names=self.federation.client_names,
        )

    def _desk(self) -> Desk:
        slots = max(self.settings.clients_per_round, _EVALUATION_SLOTS)
        samples = {split: int(getattr(self.federation, split).indices.size) for split in SPLITS}
        return Desk(
            slots=slots,
            dimension=self.theta.numel(),
            dtype=self.theta.dtype,
            samples=samples,
            units=max(slots, len(shards(self.job, SPLITS))),
            buffer_bytes=_bytes(self.buffers or {}),
        )

    def _info(self, loop: Loop) -> RunInfo:
        settings, directory = self.settings, loop.journal.directory
        model = self.theta.numel() * self.theta.element_size()
        data = _bytes({"inputs": self.job.tensors.inputs, "labels": self.job.tensors.labels})
        models = settings.clients_per_round + 4 + 2 * loop.fleet.crew.size
        return RunInfo(
            settings=settings,
            clients=len(self.federation),
            dimension=self.theta.numel(),
            executor=self.executor,
            workers=loop.fleet.crew.size,
            first_round=loop.round,
            memory_mb=round((model * models + data) / 2**20, 1),
            directory=None if directory is None else directory.path,
        )


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    # Slots align every tensor to 64 bytes.
    return sum(-(-t.numel() * t.element_size() // 64) * 64 for t in tensors.values())
