"""Rules on files: hard cohorts get the step, the checks and the errors that memory gives them."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedcraft
from fedcraft.errors import NonFiniteError


@pytest.fixture
def write(tmp_path):
    def files(rows):
        paths = [tmp_path / f"client{index}.safetensors" for index in range(len(rows))]
        for path, row in zip(paths, rows, strict=True):
            save_file({"w": row.clone()}, path)
        return paths, tmp_path / "step.safetensors"

    return files


def near_copies(delta, dtype):
    rows = torch.randn(4, 30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rows[1] = rows[0] + delta * rows[1]
    return rows.to(dtype)


@pytest.mark.parametrize("rule", ["craft", "config"])
@pytest.mark.parametrize(
    ("dtype", "delta"), [(torch.float32, 1e-4), (torch.float32, 1e-5), (torch.float64, 1e-5)]
)
def test_near_copies_in_files_meet_their_targets(write, rule, dtype, delta):
    updates = near_copies(delta, dtype)
    paths, out = write(updates)
    weights = [1, 3, 2, 2]
    options = {"clip": None} if rule == "craft" else {}
    made = [fedcraft.aggregator(rule, **options) for _ in range(2)]
    step = fedcraft.aggregate_files(made[0], paths, out, weights=weights)
    memory = made[1].aggregate(updates, weights=weights)
    found = load_file(out)["w"].double()
    units = torch.nn.functional.normalize(updates.double(), dim=1)
    # Products of coefficients of size 1 / delta^2 in float64, then the rounding of the file.
    rounding = torch.finfo(dtype).eps / delta + 1e-15 / delta**2
    rho = torch.tensor(weights, dtype=torch.float64) / 8
    assert float((units @ found - rho).abs().max()) <= 4 * rounding
    assert step.certificate.conflict_free
    assert float(step.certificate.layers.correction_norm[0]) == pytest.approx(
        float(memory.certificate.layers.correction_norm[0]), rel=1e-3
    )


def test_clipping_holds_in_files(write):
    paths, out = write(near_copies(1e-4, torch.float32))
    craft = fedcraft.aggregator("craft", clip=0.5)
    for _ in range(2):  # the second round starts from the clipped step
        step = fedcraft.aggregate_files(craft, paths, out, weights=[1, 3, 2, 2])
        assert float(load_file(out)["w"].norm()) == pytest.approx(0.5, rel=1e-6)
        assert step.certificate.whole.update_norm == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("report", ["losses", "steps"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nonfinite_report_is_named_or_dropped_as_in_memory(write, report, bad):
    paths, out = write(torch.eye(3))
    given = {report: [1.0, bad, 2.0]}
    with pytest.raises(NonFiniteError, match="client1"):
        fedcraft.aggregate_files(fedcraft.aggregator("average"), paths, out, **given)
    dropping = fedcraft.aggregator("average", nonfinite="drop")
    step = fedcraft.aggregate_files(dropping, paths, out, **given)
    assert step.certificate.dropped == ("client1",)


def test_huge_float32_rows_are_neither_dropped_nor_lost(write):
    updates = near_copies(0.5, torch.float32)
    paths, out = write(updates * 2.0**70)
    dropping = fedcraft.aggregator("craft", nonfinite="drop")
    step = fedcraft.aggregate_files(dropping, paths, out)
    expected = fedcraft.aggregator("craft").aggregate(updates)
    assert step.certificate.dropped == ()
    torch.testing.assert_close(load_file(out)["w"], expected.direction, rtol=1e-4, atol=1e-5)


def test_rows_too_long_even_for_float64_are_an_error(write):
    paths, out = write(1e200 * torch.eye(3, dtype=torch.float64))
    with pytest.raises(NonFiniteError, match="overflow"):
        fedcraft.aggregate_files(fedcraft.aggregator("craft"), paths, out)
