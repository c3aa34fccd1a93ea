"""A model that returns anything but logits is refused before it is trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedcraft.errors import ConfigError
from fedcraft.models import build
from fedcraft.models.probe import require_logits, warn_of_python_state


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
def test_what_is_not_logits_is_named_with_what_went_in(module: nn.Module, found: str) -> None:
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


class Counting(nn.Module):
    """Keeps a number of its calls: in a Python attribute, or in a buffer."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        if kept == "buffer":
            self.register_buffer("calls", torch.zeros(()))
        else:
            self.calls = {"number": 0, "list": [], "tensor": torch.zeros(2)}.get(kept)
        self.kept = kept

    def forward(self, inputs: Tensor) -> Tensor:
        if self.kept == "list":
            self.calls.append(len(inputs))
        else:
            self.calls = (0 if self.calls is None else self.calls) + 1
        output: Tensor = self.inner(inputs)
        return output


@pytest.mark.parametrize("kept", ["number", "list", "tensor", "new"])
def test_state_that_a_run_would_neither_save_nor_share_is_named(kept: str) -> None:
    model = nn.Sequential(Counting(kept))
    before = repr(model[0].calls)
    with pytest.warns(UserWarning, match=r"calling it changes 0\.calls, which is not"):
        warn_of_python_state(model, torch.zeros(2, 4))
    assert repr(model[0].calls) == before


@pytest.mark.parametrize("name", ["buffer", "mlp", "cnn", "resnet20"])
def test_buffers_and_the_built_in_models_cause_no_warning(name: str) -> None:
    shape = (4,) if name in ("buffer", "mlp") else (3, 32, 32)
    model = Counting(name) if name == "buffer" else build(name, input_shape=shape, classes=3)
    unfit, random = nn.Linear(9, 3), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_python_state(model, torch.zeros(2, *shape))
        warn_of_python_state(unfit, torch.zeros(2, 4))  # training raises this error
    assert torch.equal(torch.get_rng_state(), random)
