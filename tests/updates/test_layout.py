"""A layout groups parameters as the paper's code does, and flattens without loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedcraft
from fedcraft.errors import InputError
from fedcraft.updates import Layout, Updates, merge_buffers


class Block(nn.Module):
    """A residual block as torchvision registers it: conv, norm, conv, norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 2, 3, bias=False)
        self.bn1 = nn.GroupNorm(1, 2)
        self.conv2 = nn.Conv2d(2, 2, 3, bias=False)
        self.bn2 = nn.GroupNorm(1, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, bias=False)
        self.norm = nn.GroupNorm(1, 2)
        self.block = Block()
        self.linear = nn.Linear(4, 3)


def test_a_layer_is_a_module_with_the_norm_that_follows_its_convolution():
    layout = Layout.from_module(Net())
    assert layout.names == ("conv", "block.conv1", "block.conv2", "linear")
    assert layout.sizes == (18 + 4, 36 + 4, 36 + 4, 12 + 3)


def test_tensor_and_whole_layouts_are_one_argument_away():
    net = Net()
    assert len(Layout.from_module(net, "tensor")) == len(list(net.parameters()))
    whole = Layout.from_module(net, "whole")
    assert whole.names == ("all",)
    assert whole.dimension == sum(p.numel() for p in net.parameters())


def test_a_norm_without_a_convolution_before_it_is_its_own_layer():
    net = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2))
    assert Layout.from_module(net).names == ("0", "1")


def test_frozen_parameters_and_buffers_are_not_geometry():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[0].bias.requires_grad_(False)
    layout = Layout.from_module(net)
    assert [slot.name for slot in layout.tensors] == ["0.weight", "1.weight", "1.bias"]


def test_flatten_and_unflatten_are_inverse():
    net = Net()
    layout = Layout.from_module(net)
    vector = layout.flatten(net.state_dict())
    for name, tensor in layout.unflatten(vector).items():
        assert torch.equal(tensor, net.state_dict()[name])


@pytest.mark.parametrize("shape", [(500,), (3,), (1, 117)])
def test_a_vector_of_another_length_is_not_cut_to_fit(shape):
    layout = Layout.from_module(Net())
    assert layout.dimension == 117
    with pytest.raises(InputError, match="vector: expected 117 numbers"):
        layout.unflatten(torch.zeros(shape))


def test_a_slice_without_an_end_needs_the_dimension():
    assert Layout.from_slices([slice(0, 2), slice(2, None)], 5).sizes == (2, 3)
    with pytest.raises(InputError, match="layers: expected whole numbers, found None"):
        Layout.from_slices([slice(0, 2), slice(2, None)])


def test_updates_that_are_not_a_matrix_of_floats_are_named():
    with pytest.raises(InputError, match="matrix: expected a torch tensor"):
        Updates.from_arrays([[1.0, 2.0]])
    with pytest.raises(InputError, match="matrix: expected float32 or float64"):
        Updates.from_arrays(torch.ones(2, 2, dtype=torch.float16))
    with pytest.raises(InputError, match="weights: expected numbers"):
        Updates.from_arrays(torch.ones(2, 2), weights=[1.0, None])


@pytest.mark.parametrize("spoil", ["missing", "shape"])
def test_a_state_dict_that_does_not_fit_is_named(spoil):
    net = Net()
    layout, state = Layout.from_module(net), dict(net.state_dict())
    if spoil == "missing":
        del state["linear.bias"]
    else:
        state["linear.bias"] = torch.zeros(7)
    with pytest.raises(InputError, match=r"linear\.bias"):
        layout.flatten(state)


def test_a_module_without_trainable_floats_has_no_layout():
    with pytest.raises(InputError, match="no trainable float"):
        Layout.from_module(nn.ReLU())


def test_updates_from_modules_and_state_dicts_are_the_same_rows():
    torch.manual_seed(0)
    server, clients = Net(), [Net(), Net()]
    layout = Layout.from_module(server)
    rows = Updates.from_modules(server, clients, weights=[1, 3])
    again = Updates.from_state_dicts(
        [c.state_dict() for c in clients], layout=layout, broadcast=server.state_dict()
    )
    assert torch.equal(rows.matrix, again.matrix)
    expected = layout.flatten(server.state_dict()) - layout.flatten(clients[0].state_dict())
    assert torch.equal(rows.matrix[0], expected)
    step = fedcraft.aggregator("craft").aggregate(rows)
    assert step.certificate.layers.names == layout.names


def test_buffers_are_averaged_or_kept_and_counters_are_never_averaged():
    server = {"mean": torch.zeros(2), "count": torch.tensor(3)}
    clients = [
        {"mean": torch.tensor([1.0, 1.0]), "count": torch.tensor(9)},
        {"mean": torch.tensor([3.0, 5.0]), "count": torch.tensor(11)},
    ]
    merged = merge_buffers(server, clients, [1, 3])
    assert torch.equal(merged["mean"], torch.tensor([2.5, 4.0]))
    assert int(merged["count"]) == 3
    assert torch.equal(merge_buffers(server, clients, [1, 3], "keep")["mean"], server["mean"])
    with pytest.raises(InputError, match="policy"):
        merge_buffers(server, clients, [1, 3], "sum")
