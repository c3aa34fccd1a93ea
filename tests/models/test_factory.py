"""The paper's models: their sizes, their layers, their seeds, and how others come in."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcraft.errors import ConfigError, InputError
from fedcraft.models import build, has_batchnorm, models, replace_batchnorm, seeded
from fedcraft.models.resnet import Block
from fedcraft.updates import Layout

CIFAR = (3, 32, 32)


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("mlp", (1, 28, 28), 62, 784 * 200 + 200 + 200 * 200 + 200 + 200 * 62 + 62),
        ("mlp", (64,), 10, 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("cnn", CIFAR, 10, 797_962),
        ("cnn", CIFAR, 100, 797_962 + 193 * 90),
        ("resnet20", CIFAR, 10, 269_722),
        ("resnet20", CIFAR, 100, 269_722 + 65 * 90),
        ("resnet56", CIFAR, 10, 853_018),
        ("resnet110", CIFAR, 10, 1_727_962),
    ],
)
def test_model_has_the_papers_number_of_parameters(
    name: str, shape: tuple[int, ...], classes: int, expected: int
) -> None:
    module = build(name, input_shape=shape, classes=classes)
    assert size(module) == expected
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


def test_hidden_widths_can_be_chosen() -> None:
    module = build("mlp", input_shape=(6,), classes=3, hidden=(5, 5))
    shapes = [tuple(p.shape) for p in module.parameters()]
    assert shapes == [(5, 6), (5,), (5, 5), (5,), (3, 5), (3,)]


def test_cnn_drops_out_before_the_relu() -> None:
    kinds = [type(layer).__name__ for layer in build("cnn", input_shape=CIFAR, classes=10)]
    assert kinds[7:] == ["Linear", "Dropout", "ReLU", "Linear", "Dropout", "ReLU", "Linear"]
    module = build("cnn", input_shape=CIFAR, classes=10)
    assert [layer.p for layer in module.modules() if isinstance(layer, nn.Dropout)] == [0.2, 0.5]


def test_cnn_fits_other_image_sizes() -> None:
    module = build("cnn", input_shape=(1, 28, 28), classes=62)
    assert module(torch.zeros(3, 1, 28, 28)).shape == (3, 62)


@pytest.mark.parametrize(("name", "blocks"), [("resnet20", 3), ("resnet56", 9), ("resnet110", 18)])
def test_resnet_has_n_blocks_a_stage_and_one_group_norms(name: str, blocks: int) -> None:
    module = build(name, input_shape=CIFAR, classes=10)
    assert [len(getattr(module, f"stage{k}")) for k in (1, 2, 3)] == [blocks] * 3
    norms = [part for part in module.modules() if isinstance(part, nn.GroupNorm)]
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    assert {norm.num_groups for norm in norms} == {1}
    assert len(norms) == len(convolutions) == 6 * blocks + 1
    assert all(part.bias is None for part in convolutions)
    assert [b.stride for b in module.modules() if isinstance(b, Block)].count(2) == 2


def test_resnet_layers_for_craft_are_one_per_convolution_and_the_head() -> None:
    layout = Layout.from_module(build("resnet20", input_shape=CIFAR, classes=10))
    assert len(layout) == 20
    assert layout.sizes[:2] == (432 + 32, 2304 + 32)
    assert layout.sizes[-1] == 650


def test_shortcut_takes_every_second_pixel_and_pads_channels_evenly() -> None:
    x = torch.randn(2, 16, 8, 8)
    around = Block(16, 32, 2)._around(x)
    assert around.shape == (2, 32, 4, 4)
    assert torch.equal(around[:, 8:24], x[:, :, ::2, ::2])
    assert not around[:, :8].any()
    assert not around[:, 24:].any()


def test_resnet_weights_start_kaiming_normal() -> None:
    module = build("resnet20", input_shape=CIFAR, classes=10, seed=3)
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            fan_in = part.weight[0].numel()
            assert part.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.15)


def test_samples_do_not_see_each_other() -> None:
    x = torch.randn(6, *CIFAR, generator=torch.Generator().manual_seed(0))
    for name in ("cnn", "resnet20"):
        module = build(name, input_shape=CIFAR, classes=10).eval()
        together, alone = module(x), torch.cat([module(sample[None]) for sample in x])
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20"])
def test_seed_decides_the_weights_and_the_global_state_is_untouched(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (build(name, input_shape=CIFAR, classes=10, seed=s) for s in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    vectors = [nn.utils.parameters_to_vector(m.parameters()) for m in (first, again, other)]
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])


def test_weights_do_not_depend_on_the_global_state() -> None:
    with seeded(1):
        one = build("mlp", input_shape=(4,), classes=2, seed=0)
    with seeded(2):
        two = build("mlp", input_shape=(4,), classes=2, seed=0)
    assert torch.equal(next(one.parameters()), next(two.parameters()))


def test_seeded_block_repeats_dropout_and_restores_even_after_an_error() -> None:
    drop, x, before = nn.Dropout(0.5), torch.ones(50), torch.get_rng_state()
    draws: list[Tensor] = []
    for seed in (5, 5, 6):
        with seeded(seed):
            draws.append(drop(x))
    with pytest.raises(RuntimeError), seeded(1):
        raise RuntimeError
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def user_code(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("user_code")
    monkeypatch.setitem(sys.modules, "user_code", module)
    return module


def test_user_class_gets_shape_and_classes_if_it_takes_them(user_code: Any) -> None:
    class Net(nn.Linear):
        def __init__(self, input_shape: tuple[int, ...], classes: int, bias: bool = True) -> None:
            super().__init__(input_shape[0], classes, bias)

    user_code.Net = Net
    module = build("user_code:Net", input_shape=(4,), classes=3, bias=False)
    assert [tuple(p.shape) for p in module.parameters()] == [(3, 4)]


def test_user_factory_without_those_arguments_is_called_without(user_code: Any) -> None:
    user_code.make = lambda: nn.Linear(2, 5)
    user_code.greedy = lambda **given: nn.Linear(*given["input_shape"], given["classes"])
    assert size(build("user_code:make", input_shape=(2,), classes=5)) == 15
    assert size(build("user_code:greedy", input_shape=(2,), classes=5)) == 15


def test_user_model_is_seeded_too(user_code: Any) -> None:
    user_code.make = lambda: nn.Linear(2, 5)
    one, two = (build("user_code:make", input_shape=(2,), classes=5, seed=4) for _ in range(2))
    assert torch.equal(one.weight, two.weight)


def test_batchnorm_is_warned_about_and_swapped_on_request(user_code: Any) -> None:
    user_code.make = lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Sequential(nn.BatchNorm2d(8, affine=False))
    )
    with pytest.warns(UserWarning, match="replace_batchnorm"):
        module = build("user_code:make", input_shape=CIFAR, classes=8)
    with torch.no_grad():
        module[1].weight.fill_(3.0)
    swapped = replace_batchnorm(module)
    assert swapped is module
    assert not has_batchnorm(module)
    assert (module[1].num_groups, module[1].num_channels) == (1, 8)
    assert module[1].weight.tolist() == [3.0] * 8
    assert module[2][0].weight is None
    assert list(module.buffers()) == []
    assert module(torch.zeros(1, *CIFAR)).shape == (1, 8, 30, 30)


def test_an_object_is_not_a_factory_even_if_it_can_be_called(user_code: Any) -> None:
    user_code.made = nn.Linear(4, 3)
    with pytest.raises(ConfigError, match=r"'user_code:made' must be a class.* object of Linear"):
        build("user_code:made", input_shape=(4,), classes=3)


def test_bare_batchnorm_is_swapped_and_a_lazy_one_refused() -> None:
    assert isinstance(replace_batchnorm(nn.BatchNorm1d(3).eval()), nn.GroupNorm)
    assert not replace_batchnorm(nn.BatchNorm1d(3).eval()).training
    with pytest.raises(InputError, match="lazy"):
        replace_batchnorm(nn.Sequential(nn.LazyBatchNorm2d()))


def test_papers_models_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in models():
            build(name, input_shape=CIFAR, classes=10)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("resnet22", {}, InputError, "Did you mean 'resnet20'"),
        ("no_such_package:Net", {}, InputError, "cannot be imported"),
        ("torch.nn:NoSuchLayer", {}, InputError, "cannot be imported"),
        ("torch:__version__", {}, ConfigError, "must be a class or function"),
        ("builtins:list", {}, ConfigError, "list"),
        ("fedcraft.models:seeded", {"seed_": 1}, ConfigError, "seed_"),
        ("mlp", {"hiden": (3,)}, ConfigError, "hiden"),
        ("mlp", {"hidden": (3, 0)}, InputError, "hidden: expected a list of widths"),
        ("mlp", {"classes": 0}, InputError, "classes"),
        ("mlp", {"input_shape": ()}, InputError, "input_shape"),
        ("cnn", {"input_shape": (64,)}, InputError, "channels, height, width"),
        ("cnn", {"input_shape": (1, 8, 8)}, InputError, "at least 16 x 16"),
        ("resnet20", {"input_shape": (64,)}, InputError, "channels, height, width"),
        ("resnet20", {"depth": 21}, InputError, r"6 n \+ 2"),
    ],
)
def test_impossible_model_is_a_clear_error(
    name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"input_shape": CIFAR, "classes": 10} | options
    with pytest.raises(error, match=message):
        build(name, **given)
