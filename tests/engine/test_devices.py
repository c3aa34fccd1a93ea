"""Clients train on the device that the run names: a pretended one, since tests have no GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from fedcraft.engine import run, simulation
from fedcraft.methods import method

DEVICE = torch.device("meta")  # where nothing can be computed: what the mode misses fails
_COPIES = ("aten::copy_", "aten::_to_copy")
_INDEXING = ("aten::index", "aten::index_put_")  # their second argument may be on the CPU
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::linear", "aten::convolution")


class PretendedDevice(TorchDispatchMode):
    """Computes on the CPU and refuses what a real device refuses: operands in two places.

    Tensors that were moved to the device, and all that is computed from them, are on it. Their
    memory is kept until the end, so that no address is used twice.
    """

    def __init__(self):
        super().__init__()
        self.placed, self.products, self.elsewhere = {}, 0, []

    def holds(self, tensor):
        return tensor.untyped_storage().data_ptr() in self.placed

    def _place(self, tensors):
        for tensor in tensors:
            memory = tensor.untyped_storage()
            if memory.nbytes():
                self.placed[memory.data_ptr()] = memory

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), function._schema.name
        moved = kwargs.get("device") == DEVICE
        if moved:
            kwargs["device"] = torch.device("cpu")
        operands = (args[0], *args[2:]) if name in _INDEXING else args
        used = [t for t in tree_flatten((operands, kwargs))[0] if isinstance(t, torch.Tensor)]
        known = [self.holds(t) for t in used if t.ndim and t.numel()]
        if any(known) and not all(known) and name not in _COPIES:
            raise RuntimeError(f"{name}: expected all tensors on one device, found two")
        out = function(*args, **kwargs)
        made = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
        if moved or (any(known) and name not in _COPIES):
            self._place(made)
        if name in _PRODUCTS:
            self.products += 1
            self.elsewhere += [] if any(known) else [name]
        return out


def test_the_pretended_device_refuses_operands_in_two_places():
    with PretendedDevice() as device:
        there = torch.ones(2, 2).to(DEVICE)
        assert device.holds(there @ there)
        assert not device.holds(torch.empty(2, 2).copy_(there))
        with pytest.raises(RuntimeError, match="found two"):
            there @ torch.ones(2, 2)


@pytest.fixture
def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 10))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "ditto", "fedrep", "perfedavg", "scaffold"])
def test_every_product_of_a_client_is_on_the_device(
    name, federation, network, settings, monkeypatch
):
    choice = settings(
        rounds=2, executor="serial", evaluate_every=1, nonfinite="drop", diagnostics_every=0
    )
    expected = run(method(name), federation, network, choice)
    monkeypatch.setattr(simulation, "device_of", lambda _: DEVICE)
    monkeypatch.setattr(simulation, "warn_of_python_state", lambda *_: None)  # tries the CPU
    with PretendedDevice() as device:
        found = run(method(name), federation, network, choice)

    assert torch.equal(found.vector, expected.vector)
    pair = (found.scores["test"].accuracy, expected.scores["test"].accuracy)
    assert pair[0].tolist() == pair[1].tolist()
    assert device.products > 0
    assert not device.elsewhere
