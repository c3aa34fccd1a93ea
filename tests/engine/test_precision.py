"""``precision = "bfloat16"``: the products of local training, and nothing else, lose digits."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedcraft.engine import run
from fedcraft.methods import method

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


class Products(TorchDispatchMode):
    """Notes the types of the factors of all matrix products."""

    def __init__(self):
        super().__init__()
        self.types = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name().split(".")[0] in _PRODUCTS:
            self.types.add(args[-1].dtype)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


@pytest.fixture
def trained(federation, network, settings):
    def train(name="fedavg", **options):
        choice = {"rounds": 2, "executor": "serial", "diagnostics_every": 0, **options}
        return run(method(name), federation, network, settings(**choice)).vector

    return train


@pytest.mark.parametrize("executor", ["serial", "vectorized"])
def test_training_multiplies_in_bfloat16(executor, trained):
    with Products() as seen:
        trained(executor=executor, workers=1, precision="bfloat16")

    assert torch.bfloat16 in seen.types


def test_float32_is_the_default_and_has_no_other_products(trained):
    with Products() as seen:
        plain = trained()

    assert seen.types <= {torch.float32, torch.float64}
    assert torch.equal(plain, trained(precision="float32"))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "ditto", "fedrep", "perfedavg", "moon"])
def test_every_kind_of_client_trains_close_to_float32(name, trained):
    whole, half = trained(name), trained(name, precision="bfloat16")

    assert half.dtype == torch.float32
    assert not torch.equal(half, whole)
    assert torch.cosine_similarity(half, whole, dim=0) > 0.999


def test_all_executors_honour_it(trained):
    serial = trained(precision="bfloat16")

    assert torch.equal(serial, trained(precision="bfloat16", executor="processes", workers=2))
    beside = trained(precision="bfloat16", executor="vectorized", workers=1)
    assert torch.cosine_similarity(beside, serial, dim=0) > 0.999


def test_a_run_continues_only_in_its_own_precision(settings):
    assert "precision" not in settings().identity()
    assert settings(precision="bfloat16").identity()["precision"] == "bfloat16"
