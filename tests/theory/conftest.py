"""A small problem with known constants for the tests of the check."""

from __future__ import annotations

import numpy as np
import pytest

from fedcraft.theory import LogisticProblem, random_logistic


@pytest.fixture
def problem() -> LogisticProblem:
    return random_logistic(np.random.default_rng(0), [20, 30, 10], 9, heterogeneity=0.5)
