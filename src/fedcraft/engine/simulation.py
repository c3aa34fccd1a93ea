"""Trains a model from a method and a federation in one call, and writes its tables."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcraft.aggregators import Aggregator
from fedcraft.attacks import Attack, Attackers
from fedcraft.config.paths import at_home
from fedcraft.config.settings import Settings
from fedcraft.data import Federation
from fedcraft.engine.callbacks import Callback, RunInfo
from fedcraft.engine.client_manager import ClientManager
from fedcraft.engine.executors.choose import device_of, make_executor, resolve
from fedcraft.engine.executors.job import SPLITS, DataSource, Job, Workspace, default_data
from fedcraft.engine.interrupt import Halt, Interrupted, interruptible
from fedcraft.engine.loop import Loop
from fedcraft.engine.participation import participation
from fedcraft.engine.sampling import Sampler, draw_clients
from fedcraft.engine.server import Server
from fedcraft.engine.stopping import require_test_samples
from fedcraft.engine.trained import TrainedModel
from fedcraft.errors import CheckpointError, ConfigError
from fedcraft.linalg.numerics import keep_freed_memory, single_threaded
from fedcraft.local import LocalObjective
from fedcraft.local.store import ClientStates
from fedcraft.methods import Method
from fedcraft.methods.method import stable
from fedcraft.models.layer_names import layer_names
from fedcraft.models.probe import warn_of_python_state
from fedcraft.runs.about import federation_files, layer_file
from fedcraft.runs.writer import NullWriter, open_writer
from fedcraft.updates import Layout

ModelSource = nn.Module | Callable[[], nn.Module]
ConfigText = Callable[[str], bytes]
_EVALUATION_SLOTS = 64
_NEEDED = ("round", "server", "clients", "split_hash", "identity", "executor")


def run(
    method: Method,
    federation: Federation,
    model: ModelSource,
    settings: Settings,
    directory: str | Path | None = None,
    *,
    callbacks: Iterable[Callback] = (),
    resume: bool = False,
    client_data: DataSource = default_data,
    sampler: Sampler = draw_clients,
    config: ConfigText | None = None,
    attack: Attack | None = None,
) -> TrainedModel:
    """Train ``model`` on ``federation`` with ``method``: T rounds of the paper's Algorithm 1.

    ``model`` is a module, or a function that makes one; it is copied, not changed. With a
    ``directory`` everything is written there as it happens, and ``resume=True`` continues from its
    newest good checkpoint to the same bits as a run that was never interrupted; without one
    nothing is kept. Clients are aggregated in the order of their ids, so the result does not
    depend on the order of training. ``sampler`` may draw the cohorts in another way, and
    ``client_data`` may prescribe what a client sees in a round. ``config`` makes the content of
    config.toml from the name of the executor; it is written once the directory is locked.
    ``attack`` says what hostile clients do.

    Raises ``Interrupted`` after Ctrl-C, ``ClientError`` with the traceback of a client, and the
    errors of :mod:`fedcraft.errors` for everything else; the directory is then still resumable.
    """
    # Errors that can be known in advance are raised before any work.
    sampler(settings, len(federation), 0)
    require_test_samples(settings, federation)
    device_of(settings)
    path = None if directory is None else at_home(directory)
    with ExitStack() as stack:
        stack.enter_context(single_threaded())
        keep_freed_memory()
        stop_requested = stack.enter_context(interruptible())
        setup = _Setup(method, federation, model, settings, client_data, config, attack, sampler)
        keep = settings.keep_checkpoints
        writer = open_writer(path, keep_checkpoints=keep, resume=resume)
        stack.callback(writer.close)
        checkpoint = writer.find_checkpoint(_NEEDED) if resume else None
        setup.check(checkpoint)
        loop = setup.loop(writer, checkpoint, tuple(callbacks), stop_requested, stack)
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
        config: ConfigText | None,
        attack: Attack | None,
        sampler: Sampler,
    ) -> None:
        if settings.look_ahead is None:
            settings = settings.but(look_ahead=method.look_ahead)
        if method.buffered:
            settings = settings.but(clock=method.clock(settings.clock))
        self.participation = participation(settings, federation, sampler)
        self.settings, self.federation, self.config = settings, federation, config
        self.objective, self.aggregator, self.optimizer = method.build(settings.server_lr)
        module = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        self.objective.check(module)
        _check_sent(self.objective, self.aggregator)
        self.layout = Layout.from_module(module, settings.layers)
        self._layer_names = layer_names(module, self.layout.names)
        self.theta = self.layout.flatten(dict(module.named_parameters())).clone()
        self.identity = self._identity(method, attack)
        self.attackers: Attackers | None = None
        if attack is not None:
            self.attackers = Attackers.of(attack, len(federation), settings.seed)
        self.buffers = {name: value.clone() for name, value in module.named_buffers()} or None
        self.job = self._job(module, client_data)
        few = np.arange(min(2, len(self.job.tensors)))
        warn_of_python_state(module, self.job.tensors.gather(few)[0])
        self.executor = ""

    def _identity(self, method: Method, attack: Attack | None) -> dict[str, Any]:
        """What a run that resumes must have in common with the one that was interrupted."""
        shapes = " ".join(f"{t.name}{list(t.shape)}" for t in self.layout.tensors)
        return {
            **self.settings.identity(),
            **{name: part.signature for name, part in method.parts.items()},
            **({} if attack is None else {"attack": str(stable(attack))}),
            "model": f"{self.theta.numel()} parameters, {zlib.crc32(shapes.encode()):08x}",
        }

    def _job(self, module: nn.Module, client_data: DataSource) -> Job:
        tensors = self.federation.tensors()
        if self.attackers is not None:
            tensors = self.attackers.poisoned(tensors, self.federation)
        return Job(
            module=module,
            objective=self.objective,
            federation=self.federation,
            tensors=tensors,
            epochs=self.settings.local_epochs,
            batch_size=self.settings.batch_size,
            seed=self.settings.seed,
            evaluate_batch=self.settings.evaluate_batch,
            data=client_data,
            device=device_of(self.settings),
            precision=getattr(torch, self.settings.precision),
        )

    def check(self, checkpoint: Mapping[str, Any] | None) -> None:
        """Refuse to continue from the checkpoint of another run."""
        if checkpoint is None:
            return
        split, found = self.federation.split_hash, checkpoint["split_hash"]
        if found != split:
            raise CheckpointError(
                "the checkpoint belongs to another split of the data "
                f"({found[:12]}, now {split[:12]}); nothing was changed"
            )
        then, now = checkpoint["identity"], self.identity
        names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        changed = ", ".join(f"{k} was {then.get(k)!r}, is {now.get(k)!r}" for k in names)
        if changed:
            raise CheckpointError(
                f"the checkpoint belongs to a run with other settings: {changed}; start a new run, "
                "or resume with the old ones"
            )

    def loop(
        self,
        writer: NullWriter,
        checkpoint: Mapping[str, Any] | None,
        callbacks: Sequence[Callback],
        stop_requested: Callable[[], bool],
        stack: ExitStack,
    ) -> Loop:
        """Make the executor, which ``stack`` closes, and the loop; load the checkpoint if any."""
        remembered = None if checkpoint is None else checkpoint["executor"]
        workspace = self._workspace()
        workspace.initial.copy_(self.theta)
        self.executor = resolve(self.settings, self.job, remembered)
        states = ClientStates(writer.states, memory_mb=self.settings.state_memory_mb)
        executor = make_executor(self.executor, self.settings, self.job, workspace, stop_requested)
        stack.callback(executor.close)
        model = self.theta, self.layout, self.settings, self.buffers
        side_by_side = self.executor == "vectorized"
        loop = Loop(
            settings=self.settings,
            clients=ClientManager(self.job, workspace, executor, side_by_side=side_by_side),
            server=Server(self.aggregator, self.optimizer, *model, len(self.federation)),
            states=states,
            writer=writer,
            callbacks=callbacks,
            stop_requested=stop_requested,
            participation=self.participation,
            attackers=self.attackers,
            extra={"identity": self.identity, "executor": self.executor},
        )
        self._begin(loop, checkpoint)
        return loop

    def _begin(self, loop: Loop, checkpoint: Mapping[str, Any] | None) -> None:
        if checkpoint is not None:
            loop.load_state_dict(checkpoint)
        loop.writer.prune(loop.states)  # before anything is written: the disk may be full
        loop.writer.begin(
            checkpoint,
            config=None if self.config is None else self.config(self.executor),
            files=lambda: federation_files(self.federation) | layer_file(self._layer_names),
            rounds=self.settings.rounds,
            split_hash=self.federation.split_hash,
            executor=self.executor,
            workers=loop.clients.executor.size,
            **({} if self.attackers is None else {"hostile": self.attackers.clients.tolist()}),
        )
        for callback in loop.callbacks:
            callback.on_start(self._info(loop))

    def carry_out(self, loop: Loop) -> TrainedModel:
        """Run the loop, and report how it ended to the writer and the callbacks."""
        try:
            result = self._complete(loop)
        except Interrupted:
            self._end(loop, "interrupted", "by the user")
            raise
        except BaseException as error:
            with suppress(OSError, CheckpointError):  # the first error says more
                self._end(loop, "failed", f"{type(error).__name__}: {error}".splitlines()[0])
            raise
        self._end(loop, result.state, loop.reason)
        return result

    def _complete(self, loop: Loop) -> TrainedModel:
        """Run the loop and write its model; after Ctrl-C, a checkpoint."""
        try:
            state = loop.run()
        except Halt:
            loop.save()
            raise Interrupted(loop.round, loop.writer.path) from None
        loop.save()
        result = self._result(loop, state)
        loop.writer.save_model(result.tensors)
        return result

    def _end(self, loop: Loop, state: str, reason: str) -> None:
        try:
            loop.writer.end(state, reason, loop.round, diverged=loop.diverged)
        finally:
            for callback in loop.callbacks:
                callback.on_end(state, reason)

    def _result(self, loop: Loop, state: str) -> TrainedModel:
        vector = loop.server.output
        return TrainedModel(
            state=state,
            reason=loop.reason,
            round=loop.round,
            vector=vector,
            tensors={**self.layout.unflatten(vector), **(loop.server.buffers or {})},
            metrics=loop.writer.rows,
            scores=loop.writer.scores_of(loop.round) or loop.evaluate(),
            executor=self.executor,
            directory=loop.writer.path,
            client_names=self.federation.client_names,
        )

    def _workspace(self) -> Workspace:
        slots = max(self.participation.at_once, _EVALUATION_SLOTS)
        samples = {split: int(getattr(self.federation, split).indices.size) for split in SPLITS}
        return Workspace(
            slots=slots,
            dimension=self.theta.numel(),
            dtype=self.theta.dtype,
            samples=samples,
            units=max(slots, len(self.job.shards(SPLITS))),
            buffer_bytes=_bytes(self.buffers or {}),
        )

    def _info(self, loop: Loop) -> RunInfo:
        settings = self.settings
        model = self.theta.numel() * self.theta.element_size()
        data = _bytes({"inputs": self.job.tensors.inputs, "labels": self.job.tensors.labels})
        flying = loop.participation.at_once - settings.clients_per_round
        models = settings.clients_per_round + 2 * flying + 4 + 2 * loop.clients.executor.size
        return RunInfo(
            settings=settings,
            clients=len(self.federation),
            dimension=self.theta.numel(),
            executor=self.executor,
            workers=loop.clients.executor.size,
            first_round=loop.round,
            memory_mb=round((model * models + data) / 2**20, 1),
            directory=loop.writer.path,
        )


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    # Slots align every tensor to 64 bytes.
    return sum(-(-t.numel() * t.element_size() // 64) * 64 for t in tensors.values())


def _check_sent(objective: LocalObjective, rule: Aggregator) -> None:
    """Refuse clients that need more from the server than its rule sends."""
    missing = ", ".join(sorted(objective.receives - rule.sends))
    if missing:
        name = type(objective).__name__
        raise ConfigError(
            f"aggregator: {name} needs {missing} from the server beside the model, which "
            f"{type(rule).__name__} does not send; use the rule {name.lower()!r}"
        )
