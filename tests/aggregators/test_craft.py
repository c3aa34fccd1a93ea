"""What CRAFT promises: the authors' numbers in released-code mode, else the paper's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedcraft
from fedcraft.errors import InputError

GOLDEN = Path(__file__).parent.parent / "golden"
CASES = [
    ("craft-a_edge.npz", 1e-11),
    ("craft-a_float32.npz", 2e-5),
    ("craft-a_multi_round.npz", 1e-11),
    ("craft-a_two_clients_one_zero.npz", 1e-11),
    ("craft-a_wide_infeasible.npz", 1e-11),
]


def rounds(name):
    data = np.load(GOLDEN / name)
    for t in range(int(data["n_rounds"])):
        ids = data[f"r{t}_ids"]
        arguments = {
            "weights": data["rho_all"][ids],
            "layers": [tuple(bounds) for bounds in data["slices"]],
            "client_ids": ids,
        }
        yield data[f"r{t}_updates"], arguments, data[f"r{t}_agg"]


def near_copies(delta, dtype=torch.float32, dimension=20):
    """Four rows of full rank, the second within ``delta`` of the first: targets can be met."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(4, dimension, generator=rng, dtype=torch.float64)
    aside = torch.randn(dimension, generator=rng, dtype=torch.float64)
    rows = torch.nn.functional.normalize(rows, dim=1)
    rows[1] = rows[0] + delta * aside / aside.norm()
    return (0.01 * torch.nn.functional.normalize(rows, dim=1)).to(dtype)


NEAR_WEIGHTS = [1, 3, 2, 2]


def relative_error(found, expected):
    return np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-300)


@pytest.mark.parametrize(("name", "tolerance"), CASES)
def test_released_code_mode_reproduces_the_authors_rounds(name, tolerance):
    craft = fedcraft.aggregator("craft", released_code=True)
    for updates, arguments, expected in rounds(name):
        step = craft.aggregate(updates, **arguments)
        assert step.direction.dtype == updates.dtype
        assert relative_error(step.direction, expected) <= tolerance


def test_paper_mode_differs_from_the_released_code_only_where_one_client_is_usable():
    paper = fedcraft.aggregator("craft", eps=0.0, tau=0.0)
    code = fedcraft.aggregator("craft", released_code=True)
    for updates, arguments, _ in rounds("craft-a_edge.npz"):
        remembered = code.state_dict()
        remembered_paper = {**remembered, "rule": "Craft"}
        paper.load_state_dict(remembered_paper)
        ours = paper.aggregate(updates, **arguments)
        theirs = code.aggregate(updates, **arguments)
        usable = ours.certificate.layers.active.sum(-1)
        for (start, stop), count in zip(arguments["layers"], usable.tolist(), strict=True):
            same = np.allclose(ours.direction[start:stop], theirs.direction[start:stop], rtol=1e-9)
            assert same == (count != 1)


def test_a_single_client_gets_the_papers_formula_not_its_raw_update():
    craft = fedcraft.aggregator("craft", eps=0.0)
    first = craft.aggregate(np.array([[3.0, 4.0]])).direction
    np.testing.assert_allclose(first, [0.6, 0.8])  # rho = 1: the unit update
    second = craft.aggregate(np.array([[0.0, 2.0]])).direction
    np.testing.assert_allclose(second, [0.6, 1.0])  # the reference keeps its other component


def test_rows_below_tau_get_no_target_and_the_others_share_theirs():
    updates = np.array([[1.0, 0.0, 0.0], [0.0, 1e-9, 0.0], [0.0, 0.0, 2.0]])
    step = fedcraft.aggregator("craft").aggregate(updates, weights=[1, 2, 3])
    np.testing.assert_allclose(step.direction, [0.25, 0.0, 0.75], atol=1e-9)
    assert step.certificate.layers.active.tolist() == [[True, False, True]]


def test_without_any_active_row_a_layer_takes_the_weighted_average():
    updates = np.array([[1e-8, 0.0, 1.0], [3e-8, 0.0, -1.0]])
    step = fedcraft.aggregator("craft").aggregate(updates, weights=[3, 1], layers=[2, 1])
    np.testing.assert_allclose(step.direction[:2], [1.5e-8, 0.0])


def test_a_row_as_long_as_tau_is_active():
    updates = np.array([[0.5, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.25]])
    step = fedcraft.aggregator("craft", tau=0.5).aggregate(updates)
    assert step.certificate.layers.active.tolist() == [[True, True, False]]
    assert step.certificate.whole.rank == 2


def test_active_rows_whose_weights_are_all_zero_have_equal_targets():
    updates = np.vstack([np.eye(3, 4), np.zeros(4)])  # the only client with weight is idle
    step = fedcraft.aggregator("craft", eps=0.0).aggregate(updates, weights=[0, 0, 0, 5])
    np.testing.assert_allclose(step.certificate.alignment[0], [1 / 3] * 3 + [0], rtol=1e-14)


def test_the_residual_is_about_active_rows_only():
    updates = np.array([[1.0, 0.0], [0.0, 1.0], [1e-3, 1e-3]])
    step = fedcraft.aggregator("craft", tau=1e-2).aggregate(updates)
    assert float(step.certificate.alignment[0, 2]) > 0.5  # but it has no target to miss
    assert step.certificate.whole.residual < 1e-10


def test_epsilon_shortens_the_reference_too():
    craft = fedcraft.aggregator("craft", eps=0.25)
    craft.load_state_dict({"reference": torch.tensor([0.0, 3.0, 4.0]).double(), "rule": "Craft"})
    step = craft.aggregate(np.array([[1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(step.direction[1:], np.array([3.0, 4.0]) / 5.25, rtol=1e-14)


def test_the_moving_average_gives_momentum_to_the_past_and_the_rest_to_the_unit_step():
    craft = fedcraft.aggregator("craft", reference="moving_average", momentum=0.75, eps=0.0)
    first = craft.aggregate(np.array([[3.0, 0.0]])).direction
    np.testing.assert_allclose(craft.state_dict()["reference"], [0.25, 0.0])
    second = craft.aggregate(np.array([[0.0, 2.0]])).direction
    np.testing.assert_allclose([first, second], [[1.0, 0.0], [1.0, 1.0]])
    half = 0.25 * 0.5**0.5
    np.testing.assert_allclose(craft.state_dict()["reference"], [0.75 * 0.25 + half, half])


def test_epsilon_shortens_the_rows_as_the_papers_normalisation_does():
    updates = np.array([[1.0, 0.0], [0.0, 1.0]])
    step = fedcraft.aggregator("craft", eps=1.0).aggregate(updates)
    np.testing.assert_allclose(step.direction, [1.0, 1.0])  # rows of length 1/2, targets 1/2


def test_the_first_round_is_the_minimum_norm_solution():
    updates = np.random.default_rng(0).normal(size=(3, 8))
    craft = fedcraft.aggregator("craft", eps=0.0).aggregate(updates).direction
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    np.testing.assert_allclose(craft, np.linalg.pinv(units) @ np.full(3, 1 / 3), atol=1e-12)


def test_later_rounds_project_the_last_step_layer_by_layer():
    rng = np.random.default_rng(1)
    craft = fedcraft.aggregator("craft", eps=0.0)
    previous = craft.aggregate(rng.normal(size=(3, 12)), layers=[7, 5]).direction
    updates, rho = rng.normal(size=(4, 12)), np.array([0.1, 0.2, 0.3, 0.4])
    found = craft.aggregate(updates, weights=rho, layers=[7, 5]).direction
    for block in (slice(0, 7), slice(7, 12)):
        units = updates[:, block] / np.linalg.norm(updates[:, block], axis=1, keepdims=True)
        anchor = previous[block] / np.linalg.norm(previous[block])
        expected = anchor + np.linalg.pinv(units) @ (rho - units @ anchor)
        np.testing.assert_allclose(found[block], expected, atol=1e-12)


def test_at_least_leaves_a_reference_alone_that_already_serves_all_clients():
    rng = np.random.default_rng(2)
    base = np.ones(20)
    craft = fedcraft.aggregator("craft", constraint="at_least", eps=0.0)
    first = craft.aggregate(base + 0.1 * rng.normal(size=(5, 20))).direction
    unit = first / np.linalg.norm(first)
    again = craft.aggregate(base + 0.1 * rng.normal(size=(5, 20)))
    np.testing.assert_allclose(again.direction, unit, atol=1e-12)
    assert float(again.certificate.layers.correction_norm.max()) == 0.0


def test_uniform_targets_and_callables_replace_the_data_sizes():
    updates, sizes = np.eye(2, 5), [1.0, 3.0]
    uniform = fedcraft.aggregator("craft", target="uniform").aggregate(updates, weights=sizes)
    np.testing.assert_allclose(uniform.direction[:2], [0.5, 0.5])
    worst_first = fedcraft.aggregator("craft", target=lambda cohort: cohort.losses)
    step = worst_first.aggregate(updates, weights=sizes, losses=[4.0, 1.0])
    np.testing.assert_allclose(step.direction[:2], [0.8, 0.2])


def test_a_callable_target_of_the_wrong_size_is_an_error():
    craft = fedcraft.aggregator("craft", target=lambda cohort: torch.ones(7))
    with pytest.raises(InputError, match="target: expected 2"):
        craft.aggregate(np.eye(2))


def test_without_a_reference_craft_is_config_by_layer():
    rng = np.random.default_rng(3)
    craft = fedcraft.aggregator("craft", reference="none", eps=0.0)
    config = fedcraft.aggregator("config")
    for _ in range(3):
        updates = rng.normal(size=(4, 30))
        ours = craft.aggregate(updates, weights=[1, 2, 3, 4], layers=[10, 20]).direction
        theirs = config.aggregate(updates, weights=[1, 2, 3, 4], layers=[10, 20]).direction
        np.testing.assert_allclose(ours, theirs, atol=1e-13)


def test_without_a_reference_a_loaded_one_is_not_used():
    updates = np.random.default_rng(0).normal(size=(3, 8))
    other, rule, fresh = (
        fedcraft.aggregator("craft", reference=kind) for kind in ("previous", "none", "none")
    )
    other.aggregate(updates)
    rule.load_state_dict(other.state_dict())
    for rows in (updates[::-1] + 1, updates - 1):
        expected = fresh.aggregate(rows).direction
        np.testing.assert_array_equal(rule.aggregate(rows).direction, expected)


def test_the_moving_average_reference_remembers_unit_steps():
    craft = fedcraft.aggregator("craft", reference="moving_average", momentum=0.5, eps=0.0)
    first = craft.aggregate(np.array([[2.0, 0.0]])).direction  # (1, 0)
    second = craft.aggregate(np.array([[0.0, 5.0]])).direction  # (1, 1)
    np.testing.assert_allclose(first, [1.0, 0.0])
    np.testing.assert_allclose(second, [1.0, 1.0])
    mean = 0.25 * first + 0.5 * second / np.sqrt(2)
    np.testing.assert_allclose(craft.state_dict()["reference"], mean)


def test_clipping_bounds_every_layer_and_reports_what_it_costs():
    rng = np.random.default_rng(4)
    updates = rng.normal(size=(5, 40))
    free = fedcraft.aggregator("craft").aggregate(updates, layers=[20, 20])
    clipped = fedcraft.aggregator("craft", clip=0.1).aggregate(updates, layers=[20, 20])
    for block in (slice(0, 20), slice(20, 40)):
        assert np.linalg.norm(clipped.direction[block]) == pytest.approx(0.1)
    assert float(free.certificate.layers.residual.max()) < 1e-10
    assert float(clipped.certificate.layers.residual.min()) > 1e-2


@pytest.mark.parametrize("delta", [1e-2, 1e-4, 3e-5])
def test_clipping_holds_where_clients_are_nearly_copies(delta):
    craft = fedcraft.aggregator("craft", clip=1.0)
    step = craft.aggregate(near_copies(delta), weights=NEAR_WEIGHTS)
    assert float(step.direction.norm()) == pytest.approx(1.0, rel=1e-6)
    assert step.certificate.whole.update_norm == pytest.approx(1.0, rel=1e-6)
    assert torch.equal(craft.state_dict()["reference"], step.direction)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("delta", [1e-2, 1e-4, 3e-5, 1e-5])
def test_targets_are_met_as_well_as_by_the_pseudo_inverse_of_near_copies(delta, dtype):
    updates = near_copies(delta, dtype)
    units = torch.nn.functional.normalize(updates.double(), dim=1)
    rho = torch.tensor(NEAR_WEIGHTS, dtype=torch.float64) / 8
    craft = fedcraft.aggregator("craft", eps=0.0, clip=None)
    for anchor in (torch.zeros(20, dtype=torch.float64), torch.full((20,), 20**-0.5).double()):
        if anchor.any():
            craft.load_state_dict({"reference": anchor.to(dtype), "rule": "Craft"})
        step = craft.aggregate(updates, weights=NEAR_WEIGHTS)
        direction = step.direction.double()
        rounding = torch.finfo(dtype).eps * float(direction.norm())
        assert float((units @ direction - rho).abs().max()) <= 4 * rounding
        assert step.certificate.conflict_free
        assert int(step.certificate.layers.rank[0]) == 4
        move = torch.linalg.vector_norm(direction - anchor)
        assert float(step.certificate.layers.correction_norm[0]) == pytest.approx(
            float(move), rel=1e-5
        )


@pytest.mark.parametrize("constraint", ["equal", "at_least"])
def test_rank_counts_independent_clients_whatever_the_constraint(constraint):
    craft = fedcraft.aggregator("craft", constraint=constraint)
    copies = np.vstack([np.eye(3), np.eye(3)[:1]])
    ranks = [
        int(craft.aggregate(updates).certificate.layers.rank[0]) for updates in 2 * [np.eye(3)]
    ]
    assert [*ranks, int(craft.aggregate(copies).certificate.layers.rank[0])] == [3, 3, 3]


def test_a_client_whose_raw_update_is_taken_has_corrected_nothing():
    craft = fedcraft.aggregator("craft", released_code=True)
    craft.aggregate(np.eye(2))
    step = craft.aggregate(np.array([[0.0, 5.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(step.direction, [0.0, 5.0])
    assert float(step.certificate.layers.correction_norm[0]) == 0.0


@pytest.mark.parametrize("bad", [np.inf, np.nan, -1.0])
def test_a_callable_target_that_no_step_can_reach_is_an_error(bad):
    craft = fedcraft.aggregator("craft", target=lambda cohort: torch.tensor([1.0, bad]))
    with pytest.raises(InputError, match="target: expected 2 finite numbers"):
        craft.aggregate(np.eye(2))


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"constraint": "most"}, "constraint"),
        ({"reference": "next"}, "reference"),
        ({"target": "loss"}, "target"),
        ({"momentum": 1.0}, "momentum"),
        ({"tau": -1.0}, "tau"),
        ({"eps": float("nan")}, "eps"),
        ({"clip": 0.0}, "clip"),
        ({"nonfinite": "ignore"}, "nonfinite"),
        ({"radius": 1}, "radius"),
    ],
)
def test_a_bad_parameter_is_named(params, name):
    with pytest.raises(InputError, match=name):
        fedcraft.aggregator("craft", **params)


def test_clients_without_an_update_do_not_make_others_dependent():
    """The cut-off of the pseudo-inverse goes by the rows that it is given."""
    rows = np.array([[1.0, 0.0], [1.0, 5e-5]], dtype=np.float32)
    crowd = np.vstack([rows, np.zeros((998, 2), dtype=np.float32)])
    for updates in (rows, crowd):
        step = fedcraft.aggregator("craft", clip=None).aggregate(
            updates, weights=[1, 3] + [0] * (len(updates) - 2)
        )
        assert step.certificate.layers.rank.tolist() == [2]
        np.testing.assert_allclose(step.certificate.alignment[0, :2], [0.25, 0.75], atol=1e-3)
