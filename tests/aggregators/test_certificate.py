"""The certificate says what an explicit computation on the direction would say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedcraft


def explicit(updates, direction, sizes):
    rows, start = [], 0
    for size in sizes:
        block = slice(start, start + size)
        norms = np.linalg.norm(updates[:, block], axis=1)
        rows.append(updates[:, block] @ direction[block] / np.where(norms > 0, norms, 1))
        start += size
    return np.array(rows)


@pytest.mark.parametrize("rule", ["average", "config", "craft"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_alignment_and_cosine_match_the_direction(rule, dtype):
    rng = np.random.default_rng(0)
    sizes = [30, 5, 100]
    aggregator = fedcraft.aggregator(rule)
    for _ in range(3):
        updates = rng.normal(size=(6, 135)).astype(dtype)
        updates[2, 30:35] = 0
        step = aggregator.aggregate(updates, weights=[1, 2, 3, 4, 5, 6], layers=sizes)
        alignment = explicit(updates, step.direction, sizes)
        certificate = step.certificate
        np.testing.assert_allclose(certificate.alignment, alignment, atol=2e-6)
        lengths = [np.linalg.norm(b) for b in np.split(step.direction, [30, 35])]
        np.testing.assert_allclose(
            certificate.layers.cosine, alignment / np.array(lengths)[:, None], atol=5e-6
        )
        overall = updates @ step.direction / np.linalg.norm(updates, axis=1)
        np.testing.assert_allclose(certificate.whole.alignment, overall, atol=2e-6)
        assert certificate.whole.conflicts_after == int((overall < 0).sum())
        assert certificate.whole.update_norm == pytest.approx(
            np.linalg.norm(step.direction), rel=1e-5
        )


def test_conflicts_before_come_from_the_average_and_the_reference():
    updates = np.array([[1.0, 0.1], [-1.0, 0.1], [1.0, -0.2]])
    craft = fedcraft.aggregator("craft")
    first = craft.aggregate(updates[:2]).certificate
    assert first.whole.conflicts_reference == 0
    again = craft.aggregate(updates).certificate
    assert again.whole.conflicts_average == 1  # the average points along client 0 and 2
    assert again.whole.conflicts_reference == 1  # the last step points up; client 2 down
    assert again.client_ids == (0, 1, 2)


@pytest.mark.parametrize("rule", ["average", "craft", "layer_momentum"])
def test_conflicts_of_the_average_are_those_of_the_weighted_one(rule):
    updates = np.array([[1.0, 0.1], [-1.0, 0.1], [-1.0, 0.1]])
    for weights, conflicts in (([5, 1, 1], 2), ([1, 1, 1], 1)):
        found = fedcraft.aggregator(rule).aggregate(updates, weights=weights).certificate
        assert found.whole.conflicts_average == conflicts
        assert found.layers.conflicts_average.tolist() == [conflicts]


def test_infeasible_layers_confess_their_residual_and_rank():
    rng = np.random.default_rng(1)
    step = fedcraft.aggregator("craft").aggregate(rng.normal(size=(8, 43)), layers=[3, 40])
    certificate = step.certificate
    assert certificate.layers.rank.tolist() == [3, 8]
    assert (
        float(certificate.layers.residual[0]) > 1e-2 > 1e-10 > float(certificate.layers.residual[1])
    )


def test_a_layer_is_found_by_name_and_by_number():
    layout = fedcraft.Layout.from_sizes([1, 2], names=["body", "head"])
    certificate = fedcraft.aggregator("craft").aggregate(torch.eye(3), layers=layout).certificate
    body, head = certificate.layers
    assert (body.name, head.name, len(certificate.layers)) == ("body", "head", 2)
    assert certificate.layers["head"].row() == certificate.layers[1].row() == head.row()
    assert torch.equal(certificate.alignment[1], head.alignment)
    assert (head.rank, head.active.tolist()) == (2, [False, True, True])
    assert head.update_norm == pytest.approx(float(certificate.layers.update_norm[1]))


def test_printed_it_is_a_table():
    updates = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.1]])
    rule = fedcraft.aggregator("average")
    step = rule.aggregate(updates, client_ids=["ann", "bob", "cyd"], layers=[1, 1])
    first, head, *rows = repr(step.certificate).split("\n")
    assert first.startswith("Certificate of 3 clients: against cyd; ||g|| = ")
    assert head.startswith("layer ")
    assert [row.split()[0] for row in rows] == ["layer0", "layer1", "all"]


def test_rows_are_plain_values_for_a_table():
    step = fedcraft.aggregator("craft").aggregate(torch.eye(3), layers=[1, 2])
    rows = step.certificate.rows()
    assert [row["layer"] for row in rows] == ["layer0", "layer1", "all"]
    assert all(isinstance(value, (str, int, float)) for row in rows for value in row.values())


@pytest.mark.parametrize("layers", [fedcraft.Layout.whole(3), [3], None])
def test_a_single_layer_is_the_whole_model_and_has_one_row(layers):
    (row,) = fedcraft.aggregator("craft").aggregate(torch.eye(3), layers=layers).certificate.rows()
    assert (row["layer"], row["rank"], row["active"]) == ("all", 3, 3)


def test_a_layer_called_all_is_not_taken_for_the_whole_model():
    layout = fedcraft.Layout.from_sizes([1, 2], names=["all", "head"])
    rows = fedcraft.aggregator("craft").aggregate(torch.eye(3), layers=layout).certificate.rows()
    assert [row["layer"] for row in rows] == ["layer all", "head", "all"]


def test_conflicting_clients_are_named():
    updates = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.1]])
    step = fedcraft.aggregator("average").aggregate(updates, client_ids=["ann", "bob", "cyd"])
    assert step.certificate.conflicting_clients() == ("cyd",)
    assert not step.certificate.conflict_free


@pytest.mark.parametrize("rule", ["average", "craft"])
def test_an_update_too_short_to_have_a_direction_is_in_conflict_with_nothing(rule):
    updates = np.array([[1.0, 0.0], [0.0, 1.0], [-1e-9, -1e-9]])
    certificate = fedcraft.aggregator(rule).aggregate(updates).certificate
    assert certificate.whole.alignment[2] < 0
    assert certificate.conflicting_clients() == ()
    assert certificate.conflict_free
    assert int(certificate.layers.conflicts_after[0]) == 0
    (whole,) = certificate.rows()
    assert whole["min_cosine"] > 0


def test_certify_false_saves_the_work():
    assert fedcraft.aggregator("average", certify=False).aggregate(np.eye(2)).certificate is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_that_should_vanish_is_not_a_conflict_whatever_its_sign(dtype):
    eps = float(np.finfo(dtype).eps)
    for below, conflicts in ((-2 * eps, 0), (-40 * eps, 1)):
        updates = np.array([[1.0, 0.0], [2 * below, 1.0]], dtype=dtype)
        step = fedcraft.aggregator("average").aggregate(updates, weights=[1, 0])
        certificate = step.certificate
        assert float(certificate.whole.alignment[1]) < 0
        assert int(certificate.layers.conflicts_after[0]) == conflicts
        assert certificate.whole.conflicts_after == conflicts
        assert certificate.whole.conflicts_average == conflicts
        assert len(certificate.conflicting_clients()) == conflicts
        assert certificate.conflict_free == (conflicts == 0)


def test_an_average_that_is_all_rounding_works_against_no_client():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(3, 50)).astype(np.float32)
    updates = np.vstack([rows, -rows.sum(axis=0, dtype=np.float32)])
    certificate = fedcraft.aggregator("craft").aggregate(updates).certificate
    assert certificate.whole.conflicts_average == 0


@pytest.mark.parametrize("sizes", [[400], [1] * 400])
def test_a_client_is_judged_on_the_whole_by_its_whole_length(sizes):
    """However the model is cut: each of its layers may be too short to have a direction."""
    updates = np.ones((2, 400)) * [[1.0], [-9e-7]]
    seen = fedcraft.aggregator("average").aggregate(updates, layers=sizes).certificate
    assert not seen.conflict_free
    assert seen.conflicting_clients() == (1,)
    assert seen.whole.conflicts_average == 1
