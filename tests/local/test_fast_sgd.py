"""Steps written out by hand are those of autograd."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from fedcraft.local.fast_sgd import convolution
from fedcraft.local.fast_sgd.model import SequentialModel, scratch_model
from fedcraft.models import build
from fedcraft.models.flat import FlatModel
from fedcraft.models.resnet import Block

_SHAPES = {
    "mlp": ("mlp", (1, 28, 28), 62),
    "cnn on CIFAR": ("cnn", (3, 32, 32), 10),
    "cnn on FEMNIST": ("cnn", (1, 28, 28), 62),
    "cnn on wide images": ("cnn", (3, 40, 24), 5),
    "resnet20": ("resnet20", (3, 32, 32), 10),
    "resnet56 on small images": ("resnet56", (3, 16, 12), 10),
}


def _pair(module):
    return FlatModel(copy.deepcopy(module)), scratch_model(copy.deepcopy(module))


def _step(model, batch, loss):
    start = model.vector.clone()
    torch.manual_seed(7)
    value = model.step(*batch, loss, 0.1)
    return value, model.vector - start


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("name", _SHAPES)
def test_a_chains_step_is_autograds_dropout_included(name, count):
    kind, shape, classes = _SHAPES[name]
    plain, chain = _pair(build(kind, input_shape=shape, classes=classes, seed=1))
    draw = torch.Generator().manual_seed(2)
    batch = (
        torch.randn(count, *shape, generator=draw),
        torch.randint(0, classes, (count,), generator=draw),
    )
    assert isinstance(chain, SequentialModel)

    (expected, right), (found, moved) = (_step(m, batch, cross_entropy) for m in (plain, chain))

    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert (moved - right).norm() < 1e-5 * right.norm()


def test_a_sequence_may_contain_norms_padding_strides_and_residual_blocks():
    torch.manual_seed(3)
    module = nn.Sequential(
        nn.Conv2d(2, 6, 5, stride=2, padding=1),
        nn.GroupNorm(3, 6),
        nn.ReLU(),
        Block(6, 10, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(10, 4),
    )
    plain, chain = _pair(module)
    batch = torch.randn(5, 2, 20, 16), torch.tensor([0, 1, 2, 3, 0])
    assert isinstance(chain, SequentialModel)
    (_, right), (_, moved) = (_step(m, batch, cross_entropy) for m in (plain, chain))

    assert (moved - right).norm() < 1e-5 * right.norm()


def test_a_chain_takes_any_loss():
    plain, chain = _pair(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False)))
    batch = torch.randn(5, 3), torch.randn(5, 2)
    (_, right), (_, moved) = (_step(m, batch, mse_loss) for m in (plain, chain))

    assert torch.allclose(moved, right, atol=1e-7)


def test_a_chain_leaves_the_batch_alone():
    _, chain = _pair(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(3, 2), nn.ReLU()))
    inputs = torch.randn(4, 3)
    before = inputs.clone()
    chain.step(inputs, torch.tensor([0, 1, 0, 1]), cross_entropy, 0.1)

    assert torch.equal(inputs, before)


def test_evaluation_through_a_chain_is_the_modules():
    plain, chain = _pair(build("cnn", input_shape=(3, 32, 32), classes=10, seed=1))
    inputs = torch.randn(9, 3, 32, 32)
    for model in (plain, chain):
        model.module.eval()
    with torch.no_grad():
        assert torch.allclose(plain(inputs), chain(inputs), atol=1e-5)


class _Custom(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) * 2


def _tied():
    layers = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
    layers[2].weight = layers[0].weight
    return nn.Sequential(*layers)


_LINEAR = nn.Linear(4, 4)
_NO_CHAINS = {
    "subclassed layer": lambda: nn.Sequential(_Custom(4, 2)),
    "unknown layer": lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
    "dilated convolution": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2)),
    "mirrored border": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, 1, 1, padding_mode="reflect")),
    "norm of rows": lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Linear(4, 2)),
    "overlapping pooling": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 2)),
    "shared layer": lambda: nn.Sequential(_LINEAR, nn.ReLU(), _LINEAR),
    "shared weight": _tied,
    "double precision": lambda: nn.Sequential(nn.Linear(4, 2)).double(),
    "linear on images": lambda: nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(16, 2)),
    "buffers": lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)),
}


@pytest.mark.parametrize("kind", _NO_CHAINS)
def test_what_is_not_a_chain_of_known_layers_is_left_to_autograd(kind):
    assert not isinstance(scratch_model(_NO_CHAINS[kind]()), SequentialModel)


def test_a_hook_inside_a_residual_network_is_left_to_autograd():
    network = build("resnet20", input_shape=(3, 32, 32), classes=10, seed=1)
    network.stage2[1].norm2.register_forward_hook(lambda *_: None)

    assert not isinstance(scratch_model(network), SequentialModel)


def test_frozen_parameters_and_hooks_are_left_to_autograd():
    frozen, hooked = (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)) for _ in range(2))
    frozen[0].weight.requires_grad_(False)
    hooked[0].register_forward_hook(lambda *_: None)

    assert not isinstance(scratch_model(frozen), SequentialModel)
    assert not isinstance(scratch_model(hooked), SequentialModel)


# (batch, channels in, channels out, side, kernel): one tile, a tile and its ring, too large
@pytest.mark.parametrize("shape", [(9, 16, 8, 12, 5), (9, 20, 8, 14, 5), (8, 16, 4, 16, 5)])
def test_the_fourier_route_gives_the_same_convolution_and_gradients(shape):
    count, channels, outputs, side, kernel = shape
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, channels, side, side, generator=draw).double().requires_grad_()
    weight = torch.randn(outputs, channels, kernel, kernel, generator=draw).double()
    weight.requires_grad_()
    bias = torch.randn(outputs, generator=draw).double()
    expected = nn.functional.conv2d(inputs, weight, bias)
    gradient = torch.randn(expected.shape, generator=draw).double()
    expected.backward(gradient)
    images, kernels, slope = inputs.detach().float(), weight.detach().float(), gradient.float()

    if torch._nnpack_available():
        assert convolution.fourier(images, kernels)
    assert _near(convolution.forward(images, kernels, bias.float()), expected)
    assert _near(convolution.weight_gradient(images, kernels, slope), weight.grad)
    assert _near(convolution.input_gradient(images, kernels, slope), inputs.grad)


def _near(found, expected):
    return (found.double() - expected).norm() < 1e-5 * expected.norm()
