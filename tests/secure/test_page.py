"""The tables of the page about privacy are those of the stored results."""

from benchmarks.secure_page import PAGE, page


def test_the_page_shows_the_stored_results():
    assert page() == PAGE.read_text(encoding="utf-8")
