"""MOON: representations drawn to the global model's, away from the last local model's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, cross_entropy

from fedcraft.errors import InputError, require
from fedcraft.local.descent import mean_loss
from fedcraft.local.objective import LocalObjective, LocalResult, LocalTask
from fedcraft.models.flat import FlatModel, trainable

_PREVIOUS = "previous"


class Moon(LocalObjective):
    """theta <- theta - lr grad of f_i + mu l, with the model-contrastive loss

        l = -log exp(cos(z, z_t) / T) / (exp(cos(z, z_t) / T) + exp(cos(z, z_prev) / T))

    (Li et al. 2021, arXiv:2103.16257), averaged over the batch. z, z_t and z_prev are the
    inputs of the network's last layer under the local model, the broadcast one and the client's
    last local one (the broadcast one in its first round, where l is a constant). Cost: two more
    forward passes per batch; keeps one vector.

    * ``mu``: 1, the default of the released code, which suggests to search from 0.001 to 10 and
      takes 5 for CIFAR-10; ``temperature``: T = 0.5, as there.

    The authors add a projection head to the network and compare its outputs; here the network stays
    as it is. The two fixed models are in evaluation mode.
    """

    def __init__(self, *, mu: float = 1.0, temperature: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        require(mu >= 0, "mu", "a number >= 0", mu)
        require(temperature > 0, "temperature", "a positive number", temperature)
        # Not ``mu``: that is a proximal term's, which other code may take into account.
        self.contrast, self.temperature = mu, temperature

    def check(self, module: nn.Module) -> None:
        """Raise ``InputError`` if the network's last layer is all of it."""
        _head(module)

    def _run(self, model: FlatModel, task: LocalTask) -> LocalResult:
        fixed = [task.theta, task.kept(_PREVIOUS, task.theta)]
        losses = []
        seen: list[Tensor] = []
        hook = _head(model.module).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            for inputs, labels in task.batches():
                towards, away = (_represent(model.module, v, inputs, seen) for v in fixed)
                value = self.loss(model(inputs), labels)
                value = value + self.contrast * self._contrast(seen.pop(), towards, away)
                model.descend(value, task.lr)
                losses.append(value.detach())
        finally:
            hook.remove()
        state = {_PREVIOUS: model.vector.clone()}
        return LocalResult(len(task.data), len(losses), mean_loss(losses), state=state)

    def _contrast(self, own: Tensor, towards: Tensor, away: Tensor) -> Tensor:
        own = own.flatten(1)
        scores = torch.stack([cosine_similarity(own, z) for z in (towards, away)], dim=1)
        first = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return cross_entropy(scores / self.temperature, first)


@torch.no_grad()
def _represent(module: nn.Module, vector: Tensor, inputs: Tensor, seen: list[Tensor]) -> Tensor:
    """Return what the last layer sees under another model; the module's own stays."""
    named = trainable(module)
    parts = torch.split(vector, [parameter.numel() for _, parameter in named])
    values = {name: part.view(p.shape) for (name, p), part in zip(named, parts, strict=True)}
    module.eval()
    functional_call(module, values, (inputs,))
    module.train()
    return seen.pop().flatten(1)


def _head(module: nn.Module) -> nn.Module:
    """Return the module that owns the last trainable parameter."""
    owner = trainable(module)[-1][0].rpartition(".")[0]
    if not owner:
        raise InputError("model: MOON compares the inputs of the last layer, but there is only one")
    return module.get_submodule(owner)
