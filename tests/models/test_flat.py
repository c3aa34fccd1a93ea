"""A flat model is the same model: same outputs, same steps, one vector."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcraft.errors import InputError
from fedcraft.models import FlatModel, build, seeded
from fedcraft.updates import Layout

SHAPES = {"mlp": (20,), "cnn": (3, 32, 32), "resnet20": (3, 32, 32)}


def batch(name: str) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, *SHAPES[name], generator=draw)
    return inputs, torch.randint(0, 10, (5,), generator=draw)


def pair(name: str) -> tuple[FlatModel, nn.Module]:
    module = build(name, input_shape=SHAPES[name], classes=10, seed=2)
    return FlatModel(copy.deepcopy(module)), module


@pytest.mark.parametrize("name", SHAPES)
def test_flat_model_walks_with_torchs_own_sgd(name: str) -> None:
    flat, module = pair(name)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    inputs, labels = batch(name)
    for step in range(3):
        with seeded(step):
            flat.descend(F.cross_entropy(flat(inputs), labels), 0.05)
        with seeded(step):
            optimiser.zero_grad()
            F.cross_entropy(module(inputs), labels).backward()
            optimiser.step()
    expected = nn.utils.parameters_to_vector(module.parameters())
    torch.testing.assert_close(flat.vector, expected, atol=1e-6, rtol=1e-5)


def test_order_is_that_of_the_layout() -> None:
    flat, module = pair("resnet20")
    layout = Layout.from_module(module)
    assert len(flat) == layout.dimension
    for slot in layout.tensors:
        expected = dict(module.named_parameters())[slot.name]
        assert torch.equal(flat.vector[slot.start : slot.stop].view(slot.shape), expected)


def test_parameters_are_contiguous_views_so_that_load_is_one_copy() -> None:
    flat, _ = pair("cnn")
    assert all(p.is_contiguous() for p in flat.module.parameters())
    values = torch.randn_like(flat.vector)
    flat.load(values)
    assert torch.equal(nn.utils.parameters_to_vector(flat.module.parameters()), values)
    with pytest.raises(InputError, match="vector must have shape"):
        flat.load(values[:-1])


def test_channels_last_module_keeps_the_order_of_coordinates() -> None:
    module = build("cnn", input_shape=SHAPES["cnn"], classes=10, seed=2)
    plain = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    flat = FlatModel(module.to(memory_format=torch.channels_last))
    assert torch.equal(flat.vector, plain)
    inputs, labels = batch("cnn")
    other, _ = pair("cnn")
    for one, format in ((flat, torch.channels_last), (other, torch.contiguous_format)):
        with seeded(1):
            outputs = one(inputs.contiguous(memory_format=format))
            one.descend(F.cross_entropy(outputs, labels), 0.1)
    torch.testing.assert_close(flat.vector, other.vector, atol=1e-6, rtol=1e-3)


def test_frozen_parameters_and_buffers_are_not_geometry() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    flat = FlatModel(module)
    assert len(flat) == 4 + 4 + 8 + 2
    frozen = module[0].weight.clone()
    flat.load(torch.ones(len(flat)))
    assert torch.equal(module[0].weight, frozen)
    saved = flat.buffers()
    assert set(saved) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    flat(torch.randn(6, 3))
    assert flat.buffers()["1.num_batches_tracked"] == 1
    flat.load_buffers(saved)
    assert flat.buffers()["1.num_batches_tracked"] == 0
    with pytest.raises(InputError, match="buffers must be"):
        flat.load_buffers({})


def test_tied_parameters_are_counted_once_and_get_both_gradients() -> None:
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    module[1].weight = module[0].weight
    flat = FlatModel(module)
    assert len(flat) == 9
    x = torch.randn(2, 3)
    free = module[0].weight.detach().clone().requires_grad_()
    (x @ free.T @ free.T).sum().backward()
    flat.descend(flat(x).sum(), 0.1)
    torch.testing.assert_close(flat.vector.view(3, 3), free.detach() - 0.1 * free.grad)


def test_a_flat_model_holds_its_parameters_once() -> None:
    flat, _ = pair("mlp")
    assert all(p.grad is None for p in flat.parameters)
    kept = [value for value in vars(flat).values() if isinstance(value, Tensor)]
    assert [tensor.numel() for tensor in kept] == [len(flat)]


def test_parameters_the_loss_does_not_reach_stay() -> None:
    flat = FlatModel(nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)]))
    before = flat.vector.clone()
    flat.descend(flat.module[0](torch.ones(1, 2)).sum(), 1.0)
    assert not torch.equal(flat.vector[:3], before[:3])
    assert torch.equal(flat.vector[3:], before[3:])


def test_modules_without_one_kind_of_trainable_floats_are_refused() -> None:
    with pytest.raises(InputError, match="trainable"):
        FlatModel(nn.ReLU())
    with pytest.raises(InputError, match="one float type"):
        FlatModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
