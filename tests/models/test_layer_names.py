"""Layers have names that a reader of the report understands."""

from __future__ import annotations

from torch import nn

from fedcraft.models import build
from fedcraft.models.layer_names import layer_names
from fedcraft.updates import Layout


def names(module: nn.Module, group: str = "layer") -> list[str]:
    return list(layer_names(module, Layout.from_module(module, group).names).values())


def test_numbers_become_kinds_and_places() -> None:
    cnn = build("cnn", input_shape=(3, 32, 32), classes=10)
    assert names(cnn) == ["Conv 1", "Conv 2", "Linear 1", "Linear 2", "Linear 3"]


def test_single_tensors_name_their_module() -> None:
    stack = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    wanted = ["Linear 1 weight", "Linear 1 bias", "Linear 2 weight", "Linear 2 bias"]
    assert names(stack, "tensor") == wanted


def test_names_that_say_something_are_kept() -> None:
    resnet = build("resnet20", input_shape=(3, 32, 32), classes=10)
    layers = Layout.from_module(resnet).names
    assert names(resnet) == list(layers)
    assert names(nn.Sequential(nn.Linear(4, 2)), "whole") == ["all"]
