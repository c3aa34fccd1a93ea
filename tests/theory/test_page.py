"""The page says what the stored results say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "theory"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks" / "theory_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stored_study_is_large_and_breaks_nothing(page: ModuleType) -> None:
    status = json.loads((RESULTS / "status.json").read_text())
    assert status["instances"] >= 200
    assert page.broken(RESULTS) == 0


def test_the_tables_of_the_page_are_those_of_the_results(page: ModuleType) -> None:
    text = (ROOT / "docs" / "theory.md").read_text()
    for name, table in page.tables(RESULTS).items():
        assert page.replace_block(text, name, table) == text, (
            f"run: python -m benchmarks.theory --page ({name})"
        )


def test_a_page_without_marks_is_refused(page: ModuleType) -> None:
    with pytest.raises(ValueError, match="expected one <!-- rates -->"):
        page.replace_block("no marks here", "rates", "table")
