"""FedBN: normalisation layers that never leave the client."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedcraft.errors import InputError
from fedcraft.local.descent import descend
from fedcraft.local.objective import LocalResult, LocalTask, prefixed, unprefixed
from fedcraft.local.sgd import PlainSGD
from fedcraft.models.flat import FlatModel, trainable
from fedcraft.updates.layout import NORMS

_NORMS, _BUFFER = "norms", "buffer."


class FedBN(PlainSGD):
    """Plain SGD; the parameters and running statistics of norm layers stay with the client

    (Li et al. 2021, arXiv:2102.07623). The client starts a round from theta_t with its own norm
    layers (theta_0's at first) and is evaluated with them. The uploaded row is zero on their
    coordinates, so the server's stay those of theta_0 and a layer-wise rule sees an inactive layer
    there. Batch, group, instance and layer norms count. Cost: as plain SGD; keeps the norm layers.
    """

    personal = True

    def check(self, module: nn.Module) -> None:
        """Raise ``InputError`` if ``module`` has no norm layer with parameters, or nothing else."""
        mask = _norm_mask(module)
        if not bool(mask.any()) or bool(mask.all()):
            raise InputError(
                "model: FedBN keeps norm layers on the clients and shares the rest, but this model "
                f"has {'only' if bool(mask.any()) else 'no'} norm layers with parameters"
            )

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        mask = _norm_mask(model.module)
        model.load(self.personal_vector(model, task))
        done = descend(model, task.batches(), self.loss, task.lr, solver=self.solver)
        own = {_NORMS: model.vector[mask], **prefixed(_BUFFER, model.buffers())}
        model.vector[mask] = task.theta[mask]
        return LocalResult(len(task.data), done.steps, done.train_loss, state=own)

    def personal_vector(self, model: FlatModel, task: LocalTask) -> Tensor:
        """Return theta_t with the client's norm layers, whose statistics are loaded into model."""
        mask, vector = _norm_mask(model.module), task.theta.clone()
        vector[mask] = task.kept(_NORMS, task.start()[mask])
        statistics = unprefixed(_BUFFER, task.state or {})
        if statistics:
            model.load_buffers(statistics)
        return vector


def _norm_mask(module: nn.Module) -> Tensor:
    """Return which coordinates of the flat vector belong to norm layers."""
    norms = {name for name, part in module.named_modules() if isinstance(part, NORMS)}
    owned = [(name.rpartition(".")[0] in norms, p.numel()) for name, p in trainable(module)]
    return torch.cat([torch.full((size,), inside) for inside, size in owned])
