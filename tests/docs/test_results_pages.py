"""What the README and the pages say of results and speed is what the stored files say."""

from __future__ import annotations

import pytest

from benchmarks.pages import filled, replace_block
from benchmarks.results_page import PAGES, ROOT


@pytest.mark.parametrize("page", PAGES)
def test_generated_blocks_are_those_of_the_results(page: str) -> None:
    path = ROOT / page
    assert filled(path, PAGES[page]()) == path.read_text(encoding="utf-8"), (
        "run: python -m benchmarks.results_page"
    )


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one <!-- rates -->"):
        replace_block("no marks here", "rates", "table")
