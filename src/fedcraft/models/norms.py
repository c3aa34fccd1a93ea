"""Replacing BatchNorm, whose running statistics mix the clients' data, by GroupNorm."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedcraft.errors import InputError


def has_batchnorm(module: nn.Module) -> bool:
    """Tell whether any part of the module is a BatchNorm."""
    return any(isinstance(part, _BatchNorm) for part in module.modules())


def replace_batchnorm(module: nn.Module) -> nn.Module:
    """Replace every BatchNorm by GroupNorm with one group, in place; scale and shift are kept.

    Returns the module (a new one only if ``module`` itself is a BatchNorm).
    """
    if isinstance(module, _BatchNorm):
        return _group_norm(module)
    for name, child in list(module.named_children()):
        setattr(module, name, replace_batchnorm(child))
    return module


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    if isinstance(norm, nn.modules.lazy.LazyModuleMixin):
        raise InputError("a lazy BatchNorm does not know its channels yet; run one batch first")
    swapped = nn.GroupNorm(1, norm.num_features, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        swapped.load_state_dict({"weight": norm.weight, "bias": norm.bias})
        swapped.to(norm.weight.device, norm.weight.dtype)
    return swapped.train(norm.training)
