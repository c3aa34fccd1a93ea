"""What every aggregation rule promises, whatever its name: one suite over all of them.

The rules, and what is expected of each beyond that, stand in ``conftest.py``.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedcraft import aggregate_files
from fedcraft.errors import InputError, NonFiniteError

LAYERS = [5, 1, 6]
DIMENSION = sum(LAYERS)


def make_round(seed, count=4, dtype=np.float64):
    """A round's arguments, with everything that any rule may need."""
    draw = np.random.default_rng(seed)
    return {
        "updates": (draw.normal(size=(count, DIMENSION)) + 0.2).astype(dtype),
        "weights": draw.uniform(1, 9, size=count),
        "losses": draw.uniform(0.1, 3, size=count),
        "steps": draw.integers(1, 7, size=count).astype(np.float64),
        "client_ids": draw.permutation(10)[:count].tolist(),
        "layers": LAYERS,
        "client_lr": 0.05,
    }


def rounds(count, dtype=np.float64):
    return [make_round(seed, dtype=dtype) for seed in range(count)]


PER_CLIENT = ("updates", "weights", "losses", "steps")


def reordered(arguments, order):
    changed = {name: arguments[name][order] for name in PER_CLIENT}
    ids = [arguments["client_ids"][index] for index in order]
    return {**arguments, **changed, "client_ids": ids}


def run(rule, given):
    return [rule.aggregate(**arguments).direction for arguments in given]


def test_the_order_of_the_clients_does_not_matter(orderless):
    draw = np.random.default_rng(99)
    given = rounds(4)
    mixed = [reordered(arguments, draw.permutation(4)) for arguments in given]
    for found, expected in zip(
        run(orderless.build(), mixed), run(orderless.build(), given), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=orderless.tolerance)


@pytest.mark.parametrize("scale", [2.0**-12, 2.0**12])
def test_scaling_the_updates_scales_the_step_as_declared(homogeneous, scale):
    given = rounds(3)
    scaled = [
        {
            **arguments,
            "updates": scale * arguments["updates"],
            "client_lr": scale**homogeneous.rate_degree * arguments["client_lr"],
        }
        for arguments in given
    ]
    for found, plain in zip(
        run(homogeneous.build(), scaled), run(homogeneous.build(), given), strict=True
    ):
        expected = scale**homogeneous.degree * plain
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())


def _through_files(state, folder):
    """Write tensors to safetensors and all else to JSON; read both back."""
    tensors: dict[str, torch.Tensor] = {}

    def plain(value, path):
        if isinstance(value, torch.Tensor):
            tensors[path] = value.contiguous()
            return {"tensor": path}
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            return {"dict": {k: plain(v, f"{path}.{k}") for k, v in value.items()}}
        if isinstance(value, list):
            return [plain(v, f"{path}.{i}") for i, v in enumerate(value)]
        assert value is None or isinstance(value, (str, int, float, bool)), (path, value)
        return value

    def restored(value):
        if isinstance(value, list):
            return [restored(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {k: restored(v) for k, v in value["dict"].items()}

    text = json.dumps(plain(state, "state"))
    save_file(tensors, folder / "state.safetensors")
    tensors = load_file(folder / "state.safetensors")
    return restored(json.loads(text))


def test_a_state_through_files_continues_bit_for_bit(promise, tmp_path):
    *before, third, last = rounds(4)
    first, second = promise.build(), promise.build()
    run(first, before)
    second.load_state_dict(_through_files(first.state_dict(), tmp_path))
    for arguments in (third, last):
        found = second.aggregate(**arguments).direction
        np.testing.assert_array_equal(found, first.aggregate(**arguments).direction)


def test_reset_forgets_every_round(promise):
    given = rounds(3)
    rule = promise.build()
    fresh = run(rule, given)
    rule.reset()
    for found, expected in zip(run(rule, given), fresh, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("spoilt", ["update", "loss"])
def test_a_dropped_client_is_as_if_it_had_not_taken_part(promise, spoilt):
    dropping, without = promise.build(nonfinite="drop"), promise.build()
    for arguments in rounds(3):
        bad = {name: np.array(arguments[name]) for name in PER_CLIENT}
        if spoilt == "update":
            bad["updates"][1, 3] = np.inf
        else:
            bad["losses"][1] = np.nan
        step = dropping.aggregate(**{**arguments, **bad})
        expected = without.aggregate(**reordered(arguments, [0, 2, 3]))
        np.testing.assert_allclose(step.direction, expected.direction, atol=promise.tolerance)
        assert step.certificate.dropped == (arguments["client_ids"][1],)


def test_inputs_are_neither_changed_nor_kept(promise):
    """The caller may overwrite its matrix, and the direction it was given, between rounds."""
    rule, twin = promise.build(), promise.build()
    for arguments in rounds(3):
        tensors = {
            name: torch.tensor(arguments[name]) if name in PER_CLIENT else arguments[name]
            for name in arguments
        }
        kept = {name: tensors[name].clone() for name in PER_CLIENT}
        step = rule.aggregate(**tensors)
        for name in PER_CLIENT:
            assert torch.equal(tensors[name], kept[name])
        expected = twin.aggregate(**arguments).direction
        np.testing.assert_array_equal(step.direction.numpy(), expected)
        tensors["updates"].fill_(float("nan"))
        step.direction.fill_(float("nan"))


def test_what_a_rule_needs_and_does_not_get_is_named(promise):
    rule = promise.build()
    optional = {"losses", "steps", "client_lr"}
    assert rule.needs <= optional
    complete = make_round(0)
    enough = {k: v for k, v in complete.items() if k not in optional - rule.needs}
    rule.aggregate(**enough)
    for name in rule.needs:
        missing = {**enough, name: None}
        with pytest.raises(InputError, match=name):
            promise.build().aggregate(**missing)


def test_a_failed_round_leaves_the_state_alone(promise, monkeypatch):
    rule, twin = promise.build(), promise.build()
    *before, last = rounds(3)
    run(rule, before)
    run(twin, before)
    wide = {**last, "updates": np.ones((4, DIMENSION + 1)), "layers": None}
    with pytest.raises(InputError, match="coordinates"):
        rule.aggregate(**wide)
    with pytest.raises(NonFiniteError):
        rule.aggregate(**{**last, "updates": np.full((4, DIMENSION), np.nan)})
    with monkeypatch.context() as patched:
        patched.setattr("fedcraft.aggregators.base.certify", _fail)
        with pytest.raises(KeyboardInterrupt):
            rule.aggregate(**last)
    np.testing.assert_array_equal(
        rule.aggregate(**last).direction, twin.aggregate(**last).direction
    )


def _fail(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_the_certificate_describes_the_direction_it_comes_with(promise):
    rule = promise.build()
    for arguments in rounds(3):
        step = rule.aggregate(**arguments)
        lengths = np.linalg.norm(arguments["updates"], axis=1)
        expected = arguments["updates"] @ step.direction / lengths
        np.testing.assert_allclose(
            step.certificate.whole.alignment, expected, rtol=1e-9, atol=1e-12
        )
        assert step.certificate.whole.update_norm == pytest.approx(np.linalg.norm(step.direction))


def test_the_certificate_can_be_left_out(promise):
    given = rounds(2)
    certified, plain = promise.build(), promise.build(certify=False)
    for arguments in given:
        step = plain.aggregate(**arguments)
        assert step.certificate is None
        np.testing.assert_allclose(
            step.direction, certified.aggregate(**arguments).direction, rtol=1e-12
        )


def test_one_client_alone_gets_its_own_update_if_declared(declared_alone):
    arguments = make_round(5, count=1)
    found = declared_alone.build().aggregate(**arguments).direction
    own = np.allclose(found, arguments["updates"][0], rtol=1e-9)
    assert own == declared_alone.alone


def test_single_precision_agrees_with_double(promise):
    single, double = rounds(3, np.float32), rounds(3, np.float64)
    for arguments, precise in zip(single, double, strict=True):
        precise["updates"] = arguments["updates"].astype(np.float64)
    for found, expected in zip(
        run(promise.build(), single), run(promise.build(), double), strict=True
    ):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


def test_updates_in_files_give_the_same_step(declared_for_files, tmp_path):
    arguments = make_round(6)
    files = [tmp_path / f"{client}.safetensors" for client in arguments["client_ids"]]
    for file, row in zip(files, arguments["updates"], strict=True):
        blocks = torch.tensor(row).split(LAYERS)
        save_file({name: block.clone() for name, block in zip("abc", blocks, strict=True)}, file)
    out = tmp_path / "step.safetensors"
    given = {k: v for k, v in arguments.items() if k not in ("updates", "layers")}
    if declared_for_files.in_memory:
        with pytest.raises(InputError, match="in memory"):
            aggregate_files(declared_for_files.build(), files, out, **given)
        return
    aggregate_files(declared_for_files.build(), files, out, **given)
    written = load_file(out)
    found = torch.cat([written[name] for name in "abc"]).numpy()
    expected = declared_for_files.build().aggregate(**arguments).direction
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
