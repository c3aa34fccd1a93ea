"""Files on disk give the step that memory would give, within a budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedcraft
from fedcraft.aggregators import Outcome, guard
from fedcraft.errors import InputError, NonFiniteError, StateError

SHAPES = {"a.weight": (40, 30), "a.bias": (40,), "b.weight": (5, 7)}
LAYOUT = fedcraft.Layout.from_tensors(SHAPES)


def write_round(folder, seed, clients=4, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    paths, rows = [], []
    for client in range(clients):
        tensors = {n: torch.from_numpy(rng.normal(size=s)).to(dtype) for n, s in SHAPES.items()}
        path = folder / f"client{client}.safetensors"
        save_file(tensors, path)
        paths.append(path)
        rows.append(tensors)
    return paths, fedcraft.Updates.from_state_dicts(rows, layout=LAYOUT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rule", "params"),
    [
        ("average", {}),
        ("config", {}),
        ("config", {"meaning": "original"}),
        ("craft", {}),
        ("craft", {"clip": 0.2}),
        ("craft", {"reference": "moving_average"}),
        ("craft", {"constraint": "at_least"}),
    ],
)
def test_three_rounds_from_files_equal_three_rounds_in_memory(tmp_path, rule, params, dtype):
    on_disk, in_memory = (fedcraft.aggregator(rule, **params) for _ in range(2))
    for seed in range(3):
        paths, updates = write_round(tmp_path, seed, dtype=dtype)
        out = tmp_path / "step.safetensors"
        found = fedcraft.aggregate_files(on_disk, paths, out, weights=[1, 2, 3, 4], budget_mb=1)
        expected = in_memory.aggregate(updates, weights=[1, 2, 3, 4])
        flat = updates.layout.flatten(load_file(out))
        torch.testing.assert_close(flat, expected.direction, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(
            found.certificate.alignment, expected.certificate.alignment, atol=1e-5, rtol=1e-4
        )


def test_conflicts_of_the_average_are_those_of_the_weighted_one_from_files_too(tmp_path):
    paths = [tmp_path / f"{client}.safetensors" for client in range(3)]
    for path, row in zip(paths, ([1.0, 0.1], [-1.0, 0.1], [-1.0, 0.1]), strict=True):
        save_file({"weight": torch.tensor(row)}, path)
    for weights, conflicts in (([5, 1, 1], 2), ([1, 1, 1], 1)):
        craft, out = fedcraft.aggregator("craft"), tmp_path / "step.safetensors"
        found = fedcraft.aggregate_files(craft, paths, out, weights=weights).certificate
        assert found.whole.conflicts_average == conflicts


def test_a_small_budget_cuts_layers_into_pieces(tmp_path, monkeypatch):
    paths, updates = write_round(tmp_path, 0)
    monkeypatch.setattr("fedcraft.aggregators.disk.aggregate._BYTES_PER_MB", 1000)
    out = tmp_path / "step.safetensors"
    fedcraft.aggregate_files(fedcraft.aggregator("craft"), paths, out, budget_mb=1)
    expected = fedcraft.aggregator("craft").aggregate(updates).direction
    torch.testing.assert_close(updates.layout.flatten(load_file(out)), expected)


def test_layers_of_a_model_with_norms_are_those_of_memory(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4), nn.Conv2d(4, 2, 3))
    layout = fedcraft.Layout.from_module(model)
    rng = torch.Generator().manual_seed(0)
    paths, rows = [tmp_path / f"{client}.safetensors" for client in range(3)], []
    for path in paths:
        rows.append({n: torch.randn(p.shape, generator=rng) for n, p in model.named_parameters()})
        save_file(rows[-1], path)
    out = tmp_path / "new" / "step.safetensors"
    step = fedcraft.aggregate_files(fedcraft.aggregator("craft"), paths, out, layers=layout)
    updates = fedcraft.Updates.from_state_dicts(rows, layout=layout)
    expected = fedcraft.aggregator("craft").aggregate(updates)
    assert len(step.certificate.layers.residual) == 2
    torch.testing.assert_close(layout.flatten(load_file(out)), expected.direction)
    torch.testing.assert_close(step.direction.read(50, 150), expected.direction[50:150])


def test_a_layout_of_another_model_is_refused(tmp_path):
    paths, _ = write_round(tmp_path, 0)
    other = fedcraft.Layout.from_tensors({"a.weight": (40, 30), "c.weight": (5, 7)})
    with pytest.raises(InputError, match=r"layers: expected .* a.bias .* found .* c.weight"):
        fedcraft.aggregate_files(
            fedcraft.aggregator("craft"), paths, tmp_path / "step.safetensors", layers=other
        )


def files_round(rule, folder, seed, out):
    paths, _ = write_round(folder, seed)
    fedcraft.aggregate_files(rule, paths, folder / out)
    return load_file(folder / out)


def test_a_saved_state_continues_from_its_file(tmp_path):
    craft = fedcraft.aggregator("craft")
    files_round(craft, tmp_path, 0, "first.safetensors")
    saved = json.loads(json.dumps(craft.state_dict()))
    second = files_round(craft, tmp_path, 1, "second.safetensors")
    resumed = fedcraft.aggregator("craft")
    resumed.load_state_dict(saved)
    again = files_round(resumed, tmp_path, 1, "again.safetensors")
    torch.testing.assert_close(again, second, rtol=0, atol=0)


def test_a_saved_state_whose_file_was_written_over_is_refused(tmp_path):
    craft = fedcraft.aggregator("craft")
    files_round(craft, tmp_path, 0, "step.safetensors")
    saved = craft.state_dict()
    files_round(craft, tmp_path, 1, "step.safetensors")
    craft.load_state_dict(saved)
    with pytest.raises(StateError, match="holds another one now"):
        files_round(craft, tmp_path, 1, "step.safetensors")
    assert craft.state_dict() == saved


def test_files_follow_memory_but_memory_does_not_follow_files(tmp_path):
    mixed, in_memory = fedcraft.aggregator("craft"), fedcraft.aggregator("craft")
    _, first = write_round(tmp_path, 0)
    paths, second = write_round(tmp_path, 1)
    for rule in (mixed, in_memory):
        rule.aggregate(first)
    out = tmp_path / "step.safetensors"
    fedcraft.aggregate_files(mixed, paths, out, layers=LAYOUT)
    expected = in_memory.aggregate(second).direction
    torch.testing.assert_close(LAYOUT.flatten(load_file(out)), expected)
    with pytest.raises(StateError, match="continue with aggregate_files"):
        mixed.aggregate(second)


def test_files_are_not_read_in_an_order_that_memory_may_not_have(tmp_path):
    craft = fedcraft.aggregator("craft")
    paths, updates = write_round(tmp_path, 0)
    craft.aggregate(updates)
    with pytest.raises(StateError, match=r"give layers=Layout.from_module\(model\)"):
        fedcraft.aggregate_files(craft, paths, tmp_path / "step.safetensors")


def test_a_guards_step_in_memory_is_not_read_in_another_order_either(tmp_path):
    rule = fedcraft.aggregator("average").guarded(guard("default"))
    paths, updates = write_round(tmp_path, 0)
    rule.aggregate(updates)
    with pytest.raises(StateError, match="last step is in memory"):
        fedcraft.aggregate_files(rule, paths, tmp_path / "step.safetensors")


def test_look_ahead_and_shares_are_those_of_memory(tmp_path):
    options = {"constraint": "at_least", "target": "agreement", "agreement": "auto"}
    in_memory, on_disk = (
        fedcraft.aggregator("craft", **options).guarded(guard("size_cap")) for _ in range(2)
    )
    paths, updates = write_round(tmp_path, 0)
    expected = in_memory.aggregate(updates, weights=[1, 2, 3, 400], client_ids=[1, 2, 3, 4])
    found = fedcraft.aggregate_files(
        on_disk, paths, tmp_path / "g.safetensors", weights=[1, 2, 3, 400], client_ids=[1, 2, 3, 4]
    )
    assert found.look_ahead == pytest.approx(expected.look_ahead)
    assert found.look_ahead > 0
    assert found.shares == pytest.approx(expected.shares)
    assert found.shares[4] < 400 / 406


def test_a_separate_memory_is_beside_the_step_and_survives_a_failure(tmp_path, monkeypatch):
    craft = fedcraft.aggregator("craft", reference="moving_average")
    for seed in range(3):
        files_round(craft, tmp_path, seed, "step.safetensors")
    state = craft.state_dict()
    (memory,) = tmp_path.glob("step.reference-*.safetensors")
    assert state["reference"]["safetensors"] == str(memory.resolve())
    replace, moved = Path.replace, []

    def second_fails(self, target):
        if moved:
            raise OSError(5, "Input/output error")
        moved.append(target)
        return replace(self, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):  # noqa: PT012
        patch.setattr(Path, "replace", second_fails)
        files_round(craft, tmp_path, 3, "step.safetensors")
    assert craft.state_dict() == state
    files_round(craft, tmp_path, 3, "step.safetensors")


def test_a_round_that_fails_leaves_the_last_step_alone(tmp_path, monkeypatch):
    craft = fedcraft.aggregator("craft")
    kept = files_round(craft, tmp_path, 0, "step.safetensors")
    state = craft.state_dict()

    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedcraft.aggregators.base.certify", no_space)
    with pytest.raises(OSError, match="No space"):
        files_round(craft, tmp_path, 1, "step.safetensors")
    torch.testing.assert_close(load_file(tmp_path / "step.safetensors"), kept, rtol=0, atol=0)
    assert craft.state_dict() == state
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors"}


def test_a_nonfinite_file_is_named_or_dropped(tmp_path):
    paths, _ = write_round(tmp_path, 0)
    spoilt = load_file(paths[2])
    spoilt["a.bias"][3] = torch.nan
    save_file(spoilt, paths[2])
    out = tmp_path / "step.safetensors"
    with pytest.raises(NonFiniteError, match="client2"):
        fedcraft.aggregate_files(fedcraft.aggregator("craft"), paths, out)
    assert not out.exists()
    step = fedcraft.aggregate_files(fedcraft.aggregator("craft", nonfinite="drop"), paths, out)
    assert step.certificate.dropped == ("client2",)


@pytest.mark.parametrize("spoil", ["truncated", "shape", "type", "absent"])
def test_a_bad_file_is_named(tmp_path, spoil):
    paths, _ = write_round(tmp_path, 0)
    if spoil == "truncated":
        paths[1].write_bytes(paths[1].read_bytes()[:-50])
    elif spoil == "shape":
        save_file({"a.weight": torch.zeros(3, 3)}, paths[1])
    elif spoil == "type":
        save_file({n: torch.zeros(s, dtype=torch.int64) for n, s in SHAPES.items()}, paths[1])
    else:
        paths[1].unlink()
    with pytest.raises(InputError, match="client1"):
        fedcraft.aggregate_files(fedcraft.aggregator("craft"), paths, tmp_path / "step.safetensors")


def test_a_rule_that_needs_the_matrix_says_so(tmp_path):
    class Peeks(fedcraft.Aggregator):
        def direction(self, cohort):
            return Outcome(cohort.matrix.median(dim=0).values)

    paths, _ = write_round(tmp_path, 0)
    with pytest.raises(InputError, match="needs the updates in memory"):
        fedcraft.aggregate_files(Peeks(), paths, tmp_path / "step.safetensors")


_MEASURE = """
import sys
import torch, fedcraft
torch.set_num_threads(1)
def peak_kb():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
base = peak_kb()
fedcraft.aggregate_files(fedcraft.aggregator("craft"), sys.argv[2:], sys.argv[1], budget_mb=16)
print(peak_kb() - base)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_peak_memory_follows_the_budget_not_the_model(tmp_path):
    tensor = torch.randn(3_000_000, generator=torch.Generator().manual_seed(0))
    paths = []
    for client in range(6):
        paths.append(tmp_path / f"{client}.safetensors")
        save_file({"w": tensor.roll(client)}, paths[-1])
    command = [sys.executable, "-c", _MEASURE, str(tmp_path / "out.safetensors"), *map(str, paths)]
    grown_kb = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown_kb < 45_000  # 72 MB of updates; 16 MB of budget and some for the libraries
