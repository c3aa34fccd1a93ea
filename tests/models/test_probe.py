"""A model that makes no logits of the data is told so before it is trained."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedcraft.errors import ConfigError
from fedcraft.models.probe import require_logits


class Made(nn.Module):
    """Whatever a function makes of a batch."""

    def __init__(self, make: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.make = make

    def forward(self, inputs: Tensor) -> object:
        return self.make(self, inputs)


def logits(count: int) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda _, inputs: inputs.new_zeros(len(inputs), count)


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (nn.Linear(9, 3), r"RuntimeError: mat1 and mat2 .*2x4 and 9x3"),
        (nn.Linear(4, 2), r"one of shape \(2, 2\)"),
        (Made(lambda _, inputs: (inputs, inputs)), "a tuple"),
        (Made(lambda me, inputs: (inputs,) if me.training else inputs), "a tuple"),
        (Made(lambda _, inputs: inputs.sum(1)), r"one of shape \(2,\)"),
        (Made(lambda _, inputs: inputs[:1]), r"one of shape \(1, 4\)"),
        (Made(lambda _, inputs: inputs[..., None]), r"one of shape \(2, 4, 1\)"),
    ],
)
def test_what_is_no_logits_is_named_with_what_went_in(module: nn.Module, found: str) -> None:
    expected = r"model 'my:Net': given a batch of shape \(2, 4\), expected .*\(2, 3\).*found "
    with pytest.raises(ConfigError, match=expected + found):
        require_logits("my:Net", module, input_shape=(4,), classes=3)


@pytest.mark.parametrize("count", [3, 5])
def test_spare_logits_are_fine(count: int) -> None:
    require_logits("my:Net", Made(logits(count)), input_shape=(4,), classes=3)


def test_the_model_and_the_random_streams_stay_as_they_are() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).eval()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    stream = torch.get_rng_state()
    require_logits("my:Net", module, input_shape=(4,), classes=3)
    assert torch.equal(torch.get_rng_state(), stream)
    assert not module.training
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
