"""What the README and the pages show of results is what the stored files say."""

from __future__ import annotations

import pytest

from benchmarks.pages.__main__ import PAGES, RESULTS, ROOT
from benchmarks.pages.markdown import filled, replace_block


@pytest.mark.parametrize("page", PAGES)
def test_generated_blocks_are_those_of_the_results(page: str) -> None:
    path = ROOT / page
    assert filled(path, PAGES[page](RESULTS)) == path.read_text(encoding="utf-8"), (
        "run: python -m benchmarks.pages"
    )


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one <!-- rates -->"):
        replace_block("no marks here", "rates", "table")
