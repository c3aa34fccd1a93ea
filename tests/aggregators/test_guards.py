"""What every guard promises, and what each one does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedcraft import aggregate_files, aggregator
from fedcraft.aggregators import GUARDS, guard
from fedcraft.aggregators.cohort import MemoryCohort
from fedcraft.aggregators.guards.geometric_median import weiszfeld
from fedcraft.aggregators.inputs import RoundInput, read_cohort
from fedcraft.errors import InputError, StateError

LAYERS = [7, 1, 12]
DIMENSION = sum(LAYERS)
ALL = sorted(GUARDS)
RULES = ["average", "craft", "config", "trimmed_mean"]


def honest(seed, count=8, dtype=np.float64):
    """Clients that mostly agree: a common direction and as much noise."""
    draw = np.random.default_rng(seed)
    common = draw.normal(size=DIMENSION)
    return (common + draw.normal(size=(count, DIMENSION))).astype(dtype)


def cohort(rows, **given):
    return read_cohort(rows, RoundInput(layers=LAYERS, **given), drop_nonfinite=False)


def screened(name, rows, params=None, **given):
    return guard(name, **(params or {})).screen(cohort(rows, **given))


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_the_clients_does_not_matter(name):
    rows = honest(1)
    rows[0] *= -1
    weights = np.random.default_rng(2).uniform(1, 9, len(rows))
    order = np.random.default_rng(3).permutation(len(rows))
    plain = aggregator("average").guarded(guard(name))
    mixed = aggregator("average").guarded(guard(name))
    ids = np.arange(len(rows))
    one = plain.aggregate(rows, weights=weights, layers=LAYERS, client_ids=ids.tolist())
    other = mixed.aggregate(
        rows[order], weights=weights[order], layers=LAYERS, client_ids=ids[order].tolist()
    )
    np.testing.assert_allclose(one.direction, other.direction, atol=1e-10)
    assert set(one.certificate.left_out) == set(other.certificate.left_out)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nobody_is_left_out_when_all_send_the_same(name, dtype):
    rows = np.repeat(honest(4, 1, dtype), 9, axis=0)
    seen = screened(name, rows)
    assert not seen.left_out
    assert seen.cohort.size == 9
    np.testing.assert_allclose(seen.cohort.weights, np.full(9, 1 / 9))
    np.testing.assert_allclose(seen.cohort.matrix, rows, rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((5, DIMENSION)),
        np.vstack([np.eye(DIMENSION)[:3], -np.eye(DIMENSION)[:3]]),
        np.random.default_rng(0).normal(size=(12, DIMENSION)),
        np.vstack([honest(5, 2), -honest(5, 2)]),
        honest(6, 1),
        honest(6, 2) * np.array([[1.0], [-1e12]]),
    ],
    ids=["zeros", "axes", "noise", "halves", "alone", "huge"],
)
def test_a_cohort_is_never_empty_and_its_shares_sum_to_one(name, rows):
    seen = screened(name, rows)
    assert seen.cohort.size >= 1
    assert seen.cohort.size + len(seen.left_out) == len(rows)
    assert float(seen.cohort.weights.sum()) == pytest.approx(1)
    assert bool((seen.cohort.weights >= 0).all())
    assert bool(torch.isfinite(seen.cohort.grams).all())


@pytest.mark.parametrize("name", ALL)
def test_a_saved_guard_continues_exactly(name):
    straight = aggregator("craft").guarded(guard(name))
    resumed = aggregator("craft").guarded(guard(name))
    for seed in range(6):
        rows = honest(seed, 6)
        rows[0] *= -1
        ids = np.random.default_rng(seed).permutation(9)[:6].tolist()
        fresh = aggregator("craft").guarded(guard(name))
        fresh.load_state_dict(resumed.state_dict())
        resumed = fresh
        expected = straight.aggregate(rows, layers=LAYERS, client_ids=ids)
        found = resumed.aggregate(rows, layers=LAYERS, client_ids=ids)
        np.testing.assert_array_equal(found.direction, expected.direction)
        assert found.certificate.left_out == expected.certificate.left_out


def test_a_failed_round_leaves_no_trace_in_the_guard():
    def fail(_):
        raise RuntimeError("no targets")

    rule = aggregator("craft").guarded(guard("trust"))
    rule.aggregate(honest(1), layers=LAYERS)
    before = rule.state_dict()
    rule.target = fail
    with pytest.raises(RuntimeError, match="no targets"):
        rule.aggregate(honest(2), layers=LAYERS)
    after = rule.state_dict()
    assert torch.equal(before["guard"]["counts"], after["guard"]["counts"])
    assert torch.equal(before["guard"]["moving"], after["guard"]["moving"])


def test_a_state_of_another_guard_is_refused():
    rule = aggregator("craft").guarded(guard("trust"))
    with pytest.raises(StateError, match=r"Trust.*MultiKrum"):
        rule.load_state_dict(aggregator("craft").guarded(guard("multi_krum")).state_dict())
    with pytest.raises(StateError, match="no guard"):
        rule.load_state_dict(aggregator("craft").state_dict())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("rule", ["average", "craft"])
def test_files_give_the_same_step_as_memory(name, rule, tmp_path):
    rows = honest(7, 6)
    rows[0] *= -3
    for number, row in enumerate(rows):
        parts = torch.from_numpy(row).split(LAYERS)
        tensors = {f"l{k}.w": part.contiguous() for k, part in enumerate(parts)}
        save_file(tensors, tmp_path / f"{number}.safetensors")
    files = [tmp_path / f"{number}.safetensors" for number in range(len(rows))]
    out, weights = tmp_path / "out.safetensors", np.arange(1.0, 7)
    on_disk = aggregate_files(
        aggregator(rule).guarded(guard(name)), files, out, weights=weights.tolist()
    )
    ids = [str(number) for number in range(len(rows))]
    memory = aggregator(rule).guarded(guard(name))
    expected = memory.aggregate(rows, layers=LAYERS, weights=weights, client_ids=ids)
    assert on_disk.certificate.left_out.keys() == expected.certificate.left_out.keys()
    found = torch.cat([load_file(out)[f"l{k}.w"] for k in range(3)])
    np.testing.assert_allclose(found, expected.direction, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_a_left_out_client_changes_nothing(rule):
    rows = honest(8, 9)
    liar = -5 * rows.mean(0, keepdims=True)
    with_liar = aggregator(rule).guarded(guard("cosine"))
    step = with_liar.aggregate(np.vstack([rows, liar]), layers=LAYERS)
    assert list(step.certificate.left_out) == [9]
    without = aggregator(rule).aggregate(rows, layers=LAYERS)
    np.testing.assert_allclose(step.direction, without.direction, atol=1e-9)
    assert step.certificate.client_ids == tuple(range(9))


def test_no_guard_changes_no_bit():
    rows = honest(9, dtype=np.float32)
    weights = [1, 1, 1, 1, 1, 1, 1, 10**9]
    plain = aggregator("craft").aggregate(rows, layers=LAYERS, weights=weights)
    behind = aggregator("craft").guarded(guard("none"))
    found = behind.aggregate(rows, layers=LAYERS, weights=weights)
    np.testing.assert_array_equal(found.direction, plain.direction)


def test_claimed_sizes_count_at_most_the_cap_times_the_median():
    seen = screened("size_cap", honest(1, 6), {"cap": 3}, weights=[10, 10, 10, 10, 10, 10**15])
    np.testing.assert_allclose(seen.cohort.weights, [1 / 8] * 5 + [3 / 8])
    losses = screened("size_cap", honest(1, 4), {"cap": 2}, losses=[1.0, 1.0, 1.0, 1e9])
    np.testing.assert_allclose(losses.cohort.losses, [1, 1, 1, 2])
    trusting = screened("size_cap", honest(1, 3), {"cap": None}, weights=[1, 1, 8])
    np.testing.assert_allclose(trusting.cohort.weights, [0.1, 0.1, 0.8])


@pytest.mark.parametrize("name", ["cosine", "answers"])
@pytest.mark.parametrize("unit", [1.0, 1e-6], ids=["samples", "shares"])
def test_who_claims_an_impossible_size_is_left_out(name, unit):
    weights = unit * np.array([20, 30, 30, 50, 30, 30 * 1001.0])
    seen = screened(name, honest(1, 6) + 2, weights=weights)
    assert seen.left_out == {5: "claims 1e+03 times the usual number of samples"}
    np.testing.assert_allclose(seen.cohort.weights, weights[:5] / weights[:5].sum())
    trusting = screened(name, honest(1, 6) + 2, {"largest_claim": 2000}, weights=weights)
    assert not trusting.left_out


@pytest.mark.parametrize("name", ["cosine", "size_cap"])
def test_a_data_centre_among_phones_stays_with_the_weight_of_the_cap(name):
    weights = [30, 30, 30, 0, 30, 30 * 999.0]
    seen = screened(name, honest(1, 6) + 2, weights=weights)
    assert not seen.left_out
    np.testing.assert_allclose(seen.cohort.weights, np.array([1, 1, 1, 0, 1, 3]) / 7)


def test_norm_clipping_limits_lengths_to_the_median():
    rows = honest(2, 5)
    rows *= np.array([1, 2, 3, 4, 100])[:, None] / np.linalg.norm(rows, axis=1, keepdims=True)
    found = screened("norm_clipping", rows).cohort.matrix
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 2, 3, 3, 3])
    np.testing.assert_allclose(found[4] / 3, rows[4] / 100)


def test_centred_clipping_brings_far_rows_to_the_radius():
    rows = honest(3, 9)
    rows[0] += 1e3
    found = screened("centred_clipping", rows).cohort.matrix
    centre = np.median(rows, axis=0)
    assert np.linalg.norm(found[0] - centre) < 3 * np.linalg.norm(found[1] - centre)
    assert np.linalg.norm(rows[0] - centre) > 100 * np.linalg.norm(found[0] - centre)


def test_the_geometric_median_minimises_the_sum_of_distances():
    rows, draw = honest(4, 7), np.random.default_rng(5)
    rows[0] *= -30
    shares = draw.dirichlet(np.ones(7))
    step = aggregator("average").guarded(guard("geometric_median", cap=None, iterations=10_000))
    point = step.aggregate(rows, weights=shares, layers=LAYERS).direction

    def cost(at):
        return shares @ np.linalg.norm(rows - at, axis=1)

    for _ in range(50):
        assert cost(point) <= cost(point + 1e-3 * draw.normal(size=DIMENSION)) + 1e-12
    plain = weiszfeld(torch.from_numpy(rows @ rows.T), torch.from_numpy(shares), 10_000, 1e-9)
    np.testing.assert_allclose(plain @ rows, point, atol=1e-6)


def test_copies_share_one_vote():
    rows = honest(5, 6)
    rows[3:] = rows[3] * np.array([[1], [2], [3]])
    weights = screened("copies", rows).cohort.weights
    np.testing.assert_allclose(weights, [0.25, 0.25, 0.25, 1 / 12, 1 / 12, 1 / 12])


def test_trust_forgets_neither_a_liar_nor_its_reform():
    rule = guard("trust", decay=0.8)
    rows, left_out = honest(6, 6), []
    for number in range(14):
        sent = rows.copy()
        if number < 4:
            sent[0] *= -1
        left_out.append(0 in rule.screen(cohort(sent)).left_out)
    assert all(left_out[:5]), "its record still counts in the first honest round"
    assert not left_out[-1], "but it recovers"


def test_a_majority_of_huge_updates_is_left_out_once_the_usual_length_is_known():
    rule, rows = guard("default"), honest(6, 6)
    assert not rule.screen(cohort(rows)).left_out
    rows[:4] *= 100
    assert list(rule.screen(cohort(rows)).left_out) == [0, 1, 2, 3]
    grown = [rule.screen(cohort(honest(6, 6) * 1.5**number)).left_out for number in range(8)]
    assert not any(grown), "honest updates may grow from round to round"


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("name", ["cosine", "answers"])
def test_a_round_of_nothing_but_huge_updates_is_shortened_to_ten_times_the_usual(name, count):
    rule = aggregator("average").guarded(guard(name))
    usual = max(float(np.median(np.linalg.norm(rows, axis=1))) for rows in map(honest, range(5)))
    for seed in range(5):
        rule.aggregate(honest(seed), layers=LAYERS)
    step = rule.aggregate(1e6 * honest(6, count), layers=LAYERS)
    assert not step.certificate.left_out
    assert np.linalg.norm(step.direction) <= 20.001 * usual  # what is usual may have doubled


def test_who_still_learns_is_not_left_out_once_the_others_send_short_updates():
    rule, rows = guard("default"), honest(6, 6)
    shrinking = np.ones((6, 1))
    for _ in range(25):
        assert not rule.screen(cohort(rows * shrinking)).left_out
        shrinking[1:] *= 0.85
    assert shrinking[1] < 1 / 50
    rows[0] *= 100
    assert list(rule.screen(cohort(rows * shrinking)).left_out) == [0]


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("multi_krum", {"keep": 2.5}, "keep: expected a whole number, found 2.5"),
        ("geometric_median", {"iterations": 2.5}, "iterations: expected a whole number"),
        ("centred_clipping", {"iterations": 1.5}, "iterations: expected a whole number"),
        ("default", {"cap": "abc"}, "cap: expected a number, found 'abc'"),
        ("krum", {"keep": 2}, "takes no parameter 'keep'"),
    ],
)
def test_wrong_values_are_named_before_the_first_round(name, params, message):
    with pytest.raises(InputError, match=message):
        guard(name, **params)


def test_files_can_say_that_nothing_caps_what_clients_claim():
    assert guard("default", cap="none").cap is None
    assert aggregator("craft", clip="none").clip is None


def test_a_rule_takes_a_guard_and_not_its_name():
    with pytest.raises(InputError, match="guard: expected a guard"):
        aggregator("craft").guarded("default")


def test_an_unknown_guard_and_wrong_parameters_are_named():
    with pytest.raises(InputError, match="Did you mean 'multi_krum'"):
        guard("multikrum")
    with pytest.raises(InputError, match=r"cap.*at least 1"):
        guard("size_cap", cap=0.5)
    with pytest.raises(InputError, match="largest_claim"):
        guard("answers", largest_claim=1)
    with pytest.raises(InputError, match="scale"):
        guard("cosine", scale="raw")


def test_a_selection_has_the_bits_of_the_selected_rows():
    rows = torch.from_numpy(honest(7, 6, np.float32))
    whole = cohort(rows)
    seen = guard("multi_krum", hostile=2).screen(whole).cohort
    kept = [whole.client_ids.index(client) for client in seen.client_ids]
    assert isinstance(whole, MemoryCohort)
    assert len(kept) == 4
    assert torch.equal(seen.grams, whole.grams[:, kept][:, :, kept])
    assert torch.equal(seen.matrix, rows[kept])
