"""FedRep: a shared body, and a head that never leaves the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from fedcraft.errors import InputError, require
from fedcraft.local.descent import Solver, descend
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask
from fedcraft.models.flat import FlatModel, trainable

_HEAD = "head"


class FedRep(LocalObjective):
    """``head_epochs`` on the client's head with the body fixed, then the body with the head fixed.

    ``head`` names the head's parameters or modules, one or several; the last module that owns a
    parameter if left out. ``body_epochs`` is the task's number of epochs if left out. Momentum,
    and weight decay on everything but biases, as in the authors' code; their CIFAR runs train the
    head for 10 epochs. A fixed tensor does not move (under torch < 2 theirs still drifts by
    momentum).

    The uploaded row is zero on the head's coordinates, so the server's head stays that of theta_0
    and a layer-wise rule sees an inactive layer there. Reports A_i of the body's descent.
    """

    personal = True

    def __init__(
        self,
        *,
        head: str | Sequence[str] | None = None,
        head_epochs: int = 10,
        body_epochs: int | None = None,
        momentum: float = 0.5,
        weight_decay: float = 1e-4,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        names = [head] if isinstance(head, str) else head
        named = names is None or (
            isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
        )
        require(named, "head", "a name in quotes or a list of them", head)
        require(head_epochs >= 0, "head_epochs", "a number >= 0", head_epochs)
        fine = body_epochs is None or body_epochs >= 0
        require(fine, "body_epochs", "a number >= 0 or None", body_epochs)
        self.head = None if names is None else tuple(names)
        self.head_epochs, self.body_epochs = head_epochs, body_epochs
        self.solver = Solver(momentum, weight_decay, decay_biases=False)

    def check(self, module: nn.Module) -> None:
        """Raise ``InputError`` if ``head`` is not a part of ``module``, or all of it."""
        _split(module, self.head)

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        split = _split(model.module, self.head)
        model.load(self.personal_vector(model, task))
        body_epochs = task.epochs if self.body_epochs is None else self.body_epochs
        stream = task.batches(self.head_epochs + body_epochs)
        on_head = islice(stream, self.head_epochs * task.batches_per_epoch)
        shared = (self.loss, task.lr)
        descend(model, on_head, *shared, solver=self.solver, parameters=split.head)
        done = descend(model, stream, *shared, solver=self.solver, parameters=split.body)
        own = model.vector[split.mask]
        model.vector[split.mask] = task.theta[split.mask]
        return LocalResult(len(task.data), done.steps, done.train_loss, state={_HEAD: own})

    def personal_vector(self, model: FlatModel, task: LocalTask) -> Tensor:
        """Return the shared body with the client's own head (theta_0's before its first round)."""
        split = _split(model.module, self.head)
        vector = task.theta.clone()
        vector[split.mask] = task.kept(_HEAD, task.start()[split.mask])
        return vector


@dataclass(frozen=True)
class _Split:
    """The parameters of head and body, and which coordinates of the flat vector are the head's."""

    head: dict[str, nn.Parameter]
    body: dict[str, nn.Parameter]
    mask: Tensor


def _split(module: nn.Module, head: tuple[str, ...] | None) -> _Split:
    named = dict(trainable(module))
    wanted = head if head is not None else (_owner(next(reversed(named))),)
    _check_head(wanted, list(named))
    in_head = {name: _belongs(name, wanted) for name in named}
    return _Split(
        {name: p for name, p in named.items() if in_head[name]},
        {name: p for name, p in named.items() if not in_head[name]},
        torch.cat([torch.full((p.numel(),), in_head[name]) for name, p in named.items()]),
    )


def _check_head(wanted: tuple[str, ...], names: list[str]) -> None:
    unknown = [part for part in wanted if not any(_belongs(name, (part,)) for name in names)]
    modules = list(dict.fromkeys(_owner(name) or name for name in names))
    if unknown or not wanted:
        raise InputError(
            f"head: expected modules or parameters of the model, found {unknown}; its modules with "
            f"parameters are {modules}"
        )
    if all(_belongs(name, wanted) for name in names):
        raise InputError(
            "head: expected a part of the model that leaves a body to share, found the whole "
            f"model, {modules}"
        )


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _belongs(name: str, wanted: tuple[str, ...]) -> bool:
    # Everything belongs to the module without a name, the model itself.
    return any(part in ("", name) or name.startswith(f"{part}.") for part in wanted)
