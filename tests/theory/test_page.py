"""The page says what the stored results say."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import theory_page
from benchmarks.pages import filled

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "theory"
PAGE = ROOT / "docs" / "theory.md"


def test_the_stored_study_is_large_and_breaks_nothing() -> None:
    status = json.loads((RESULTS / "status.json").read_text())
    assert status["instances"] >= 200
    assert theory_page.broken(RESULTS) == 0


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    assert filled(PAGE, theory_page.tables(RESULTS)) == PAGE.read_text(encoding="utf-8"), (
        "run: python -m benchmarks.theory --page"
    )
