"""What every aggregation rule promises, whatever its name: one suite over all of them.

A new rule joins by a line in ``PROMISES``; a name without one fails ``test_every_rule_...``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedcraft import aggregate_files, aggregator
from fedcraft.aggregators import RULES
from fedcraft.errors import InputError, NonFiniteError

LAYERS = [5, 1, 6]
DIMENSION = sum(LAYERS)


@dataclass(frozen=True)
class Promise:
    """A rule with parameters, and what is expected of it.

    ``degree``: g(s X) = s^degree g(X), with the client rate scaled by s^``rate_degree``; None where
    an absolute constant (a guard, a threshold) breaks the scaling on purpose. ``tolerance`` is
    absolute, for steps of length about one.
    """

    rule: str
    params: dict[str, Any] = field(default_factory=dict)
    degree: int | None = 1
    rate_degree: int = 0
    by_position: bool = False  # the rule looks at the order of the rows
    alone: bool = True  # one client alone gets its own update
    in_memory: bool = False  # the rule cannot work on files
    tolerance: float = 1e-10

    def __str__(self) -> str:
        return "-".join([self.rule, *(f"{k}={v}" for k, v in self.params.items())])

    def build(self, **options: Any) -> Any:
        return aggregator(self.rule, **self.params, **options)


PROMISES = [
    Promise("average"),
    Promise("average", {"weighting": "uniform"}),
    Promise("fednova"),
    Promise("fednova", {"weighting": "uniform"}),
    Promise("fednova", {"tau_eff": "steps", "mu": 0.1}, alone=False),
    Promise("afl", {"gamma": 0.1}),
    Promise("afl", {"gamma": 0.1, "clients": 50}),
    Promise("afl", {"gamma": 0.1, "indexing": "position"}, by_position=True),
    Promise("qfedavg", {"q": 0.0}),
    Promise("qfedavg", rate_degree=2, alone=False),
    Promise("qfedavg", {"q": 3.0, "loss_floor": 1e-3}, rate_degree=2, alone=False),
    Promise("fedmgda", degree=0, alone=False),
    Promise("fedmgda", {"epsilon": 1.0, "scale": "client_lr"}, degree=0, alone=False),
    Promise("fedmgda", {"scale": "mean_norm"}),
    Promise("fedmgda", {"norm_offset": 1e-3}, degree=None, alone=False),
    Promise("fedfv"),
    Promise("fedfv", {"alpha": 0.0, "tau": 0}),
    Promise("fedfv", {"alpha": 0.34, "tau": 3}, in_memory=True),
    Promise("fedfv", {"tau": 1, "external": "paper"}, in_memory=True),
    Promise("fedfv", {"guard": 1e-6}, degree=None, alone=False),
    Promise("fedlf"),
    Promise("fedlf", {"history": True}, in_memory=True),
    Promise("fedmdfg", {"eps": 0.0}, in_memory=True),
    Promise("fedmdfg", degree=None, in_memory=True),
    Promise("config", degree=0, alone=False),
    Promise("config", {"meaning": "target"}, degree=0, alone=False, in_memory=True),
    Promise("config", {"meaning": "original"}, in_memory=True),
    Promise("craft", {"eps": 0.0, "tau": 0.0}, degree=0, alone=False),
    # Demands that cannot be met together are softened, by a constant that rounding can see.
    Promise("craft", {"constraint": "at_least"}, degree=None, alone=False, tolerance=1e-6),
    Promise("craft", {"reference": "moving_average"}, degree=None, alone=False),
    Promise("craft", {"released_code": True}, degree=None),
    Promise("layer_momentum", degree=0, alone=False),
]


def _those(promises):
    return pytest.mark.parametrize("promise", list(promises), ids=str)


every = _those(PROMISES)
every_without_order = _those(p for p in PROMISES if not p.by_position)
every_with_a_degree = _those(p for p in PROMISES if p.degree is not None)


def make_round(seed, count=4, dtype=np.float64, ids=None):
    """A round's arguments, with everything that any rule may need."""
    draw = np.random.default_rng(seed)
    return {
        "updates": (draw.normal(size=(count, DIMENSION)) + 0.2).astype(dtype),
        "weights": draw.uniform(1, 9, size=count),
        "losses": draw.uniform(0.1, 3, size=count),
        "steps": draw.integers(1, 7, size=count).astype(np.float64),
        "client_ids": draw.permutation(10)[:count].tolist() if ids is None else ids,
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


def test_every_rule_has_a_promise():
    assert {promise.rule for promise in PROMISES} == set(RULES)


@every_without_order
def test_the_order_of_the_clients_does_not_matter(promise):
    draw = np.random.default_rng(99)
    given = rounds(4)
    mixed = [reordered(arguments, draw.permutation(4)) for arguments in given]
    for found, expected in zip(
        run(promise.build(), mixed), run(promise.build(), given), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=promise.tolerance)


@every_with_a_degree
@pytest.mark.parametrize("scale", [2.0**-12, 2.0**12])
def test_scaling_the_updates_scales_the_step_as_declared(promise, scale):
    given = rounds(3)
    scaled = [
        {
            **arguments,
            "updates": scale * arguments["updates"],
            "client_lr": scale**promise.rate_degree * arguments["client_lr"],
        }
        for arguments in given
    ]
    for found, plain in zip(run(promise.build(), scaled), run(promise.build(), given), strict=True):
        expected = scale**promise.degree * plain
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())


def _nasty():
    draw = np.random.default_rng(17)
    plain = draw.normal(size=(5, DIMENSION))
    half_zero = plain.copy()
    half_zero[:, :5] = 0
    one_layer_zero = plain.copy()
    one_layer_zero[2, 5:] = 0
    lengths = 10.0 ** np.array([-12, -6, 0, 6, 12])[:, None]
    return {
        "zero rows": plain * np.array([1, 0, 1, 0, 1])[:, None],
        "all zero": np.zeros((3, DIMENSION)),
        "a zero layer": half_zero,
        "a zero layer of one client": one_layer_zero,
        "duplicates": plain[[0, 0, 1, 1, 0]],
        "antipodal": np.vstack([plain[:2], -plain[:2]]),
        "scaled antipodal": np.vstack([plain[0], -1e-3 * plain[0]]),
        "rank one": np.outer([1.0, -2.0, 3.0, 0.5], plain[0]),
        "low rank": draw.normal(size=(6, 2)) @ draw.normal(size=(2, DIMENSION)),
        "more clients than coordinates": draw.normal(size=(40, DIMENSION)),
        "wild lengths": plain * lengths,
        "tiny": 1e-12 * plain,
        "huge": 1e12 * plain,
        "nearly equal": plain[0] + 1e-9 * plain,
        "one client": plain[:1],
        "one zero client": np.zeros((1, DIMENSION)),
    }


NASTY = _nasty()


@every
@pytest.mark.parametrize("kind", NASTY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_step_and_its_certificate_are_finite(promise, kind, dtype):
    rule = promise.build()
    count = len(NASTY[kind])
    draw = np.random.default_rng(1)
    for losses in (draw.uniform(0.1, 3, size=count), np.full(count, 0.7), np.zeros(count)):
        step = rule.aggregate(
            NASTY[kind].astype(dtype),
            weights=draw.uniform(0, 5, size=count) + 0.1,
            layers=LAYERS,
            losses=losses,
            steps=np.ones(count),
            client_lr=0.1,
        )
        assert step.direction.dtype == dtype
        assert np.isfinite(step.direction).all()
        assert torch.isfinite(step.certificate.cosine).all()
        assert float(step.certificate.overall_cosine.abs().max()) <= 1 + 1e-3
        lengths = np.linalg.norm(NASTY[kind], axis=1)
        if promise.degree == 1:
            assert np.linalg.norm(step.direction) <= 7 * lengths.max()


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


@every
def test_a_state_through_files_continues_bit_for_bit(promise, tmp_path):
    *before, third, last = rounds(4)
    first, second = promise.build(), promise.build()
    run(first, before)
    second.load_state_dict(_through_files(first.state_dict(), tmp_path))
    for arguments in (third, last):
        found = second.aggregate(**arguments).direction
        np.testing.assert_array_equal(found, first.aggregate(**arguments).direction)


@every
def test_reset_forgets_every_round(promise):
    given = rounds(3)
    rule = promise.build()
    fresh = run(rule, given)
    rule.reset()
    for found, expected in zip(run(rule, given), fresh, strict=True):
        np.testing.assert_array_equal(found, expected)


@every
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


@every
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


@every
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


@every
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
        patched.setattr(rule, "_certificate", _fail)
        with pytest.raises(KeyboardInterrupt):
            rule.aggregate(**last)
    np.testing.assert_array_equal(
        rule.aggregate(**last).direction, twin.aggregate(**last).direction
    )


def _fail(*_: object) -> None:
    raise KeyboardInterrupt


@every
def test_the_certificate_speaks_of_the_direction_it_comes_with(promise):
    rule = promise.build()
    for arguments in rounds(3):
        step = rule.aggregate(**arguments)
        lengths = np.linalg.norm(arguments["updates"], axis=1)
        expected = arguments["updates"] @ step.direction / lengths
        np.testing.assert_allclose(
            step.certificate.overall_alignment, expected, rtol=1e-9, atol=1e-12
        )
        assert step.certificate.update_norm == pytest.approx(np.linalg.norm(step.direction))


@every
def test_the_certificate_can_be_left_out(promise):
    given = rounds(2)
    certified, plain = promise.build(), promise.build(certify=False)
    for arguments in given:
        step = plain.aggregate(**arguments)
        assert step.certificate is None
        np.testing.assert_allclose(
            step.direction, certified.aggregate(**arguments).direction, rtol=1e-12
        )


@every
def test_one_client_alone_gets_its_own_update_if_declared(promise):
    arguments = make_round(5, count=1)
    found = promise.build().aggregate(**arguments).direction
    own = np.allclose(found, arguments["updates"][0], rtol=1e-9)
    assert own == promise.alone


@every
def test_single_precision_agrees_with_double(promise):
    single, double = rounds(3, np.float32), rounds(3, np.float64)
    for arguments, precise in zip(single, double, strict=True):
        precise["updates"] = arguments["updates"].astype(np.float64)
    for found, expected in zip(
        run(promise.build(), single), run(promise.build(), double), strict=True
    ):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@every
def test_updates_in_files_give_the_same_step(promise, tmp_path):
    arguments = make_round(6)
    files = [tmp_path / f"{client}.safetensors" for client in arguments["client_ids"]]
    for file, row in zip(files, arguments["updates"], strict=True):
        blocks = torch.tensor(row).split(LAYERS)
        save_file({name: block.clone() for name, block in zip("abc", blocks, strict=True)}, file)
    out = tmp_path / "step.safetensors"
    given = {k: v for k, v in arguments.items() if k not in ("updates", "layers")}
    if promise.in_memory:
        with pytest.raises(InputError, match="in memory"):
            aggregate_files(promise.build(), files, out, **given)
        return
    aggregate_files(promise.build(), files, out, **given)
    written = load_file(out)
    found = torch.cat([written[name] for name in "abc"]).numpy()
    expected = promise.build().aggregate(**arguments).direction
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
