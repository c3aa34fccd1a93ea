"""The page says what the stored results say."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import theory
from benchmarks.pages.theory import broken, theory_blocks
from fedcraft.theory import check, random_logistic

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "theory"
UNDEFINED = (
    "smoothness",
    "gradient_bound",
    "one_step_descent",
    "weighted_gradient",
    "alignment",
    "block_smoothness",
)


def test_the_stored_study_is_large_and_breaks_nothing() -> None:
    status = json.loads((RESULTS / "status.json").read_text())
    assert status["instances"] >= 200
    assert broken(RESULTS) == 0


def test_what_is_reached_beyond_the_targets_is_not_a_residual() -> None:
    problem = random_logistic(np.random.default_rng(0), [20, 30, 10], 9, heterogeneity=0.0)
    options = {"rounds": 8, "eta_l": 0.1, "eta_g": 0.2}
    slack = check(problem, **options, constraint="at_least")
    assert slack.measured.deviations.max() > 0.01
    terms = theory._terms(slack)
    assert (terms["where"], terms["residual"]) == ("Theorem A.4", 0)
    assert terms["bound"] == pytest.approx(slack["convergence"].right)
    clipped = check(problem, **options, clip=0.2)
    terms = theory._terms(clipped)
    assert terms["where"] == "Corollary A.12"
    assert terms["bound"] == pytest.approx(clipped["residual"].right)


def test_every_row_of_the_rates_names_one_bound() -> None:
    with (RESULTS / "sweep_rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for variant in theory.VARIANTS:
        expected = "Corollary A.12" if "clip" in variant else "Theorem A.4"
        assert {row["where"] for row in rows if row["variant"] == variant} == {expected}


def test_informative_is_a_dash_where_it_is_not_defined() -> None:
    table = theory_blocks(RESULTS.parent)["looseness"]
    assert all(f"`{name}`" in table for name in ("alignment", "one_step_descent"))
    for line in table.splitlines()[2:]:
        undefined = any(f"`{name}" in line for name in UNDEFINED)
        assert line.endswith("| - |") == undefined, line
