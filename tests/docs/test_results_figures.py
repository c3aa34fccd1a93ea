"""The figures of the results are drawn from what is stored, and only from that."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pages.figures import CURVES, write_result_figures

RESULTS = Path(__file__).parents[2] / "results"


def test_figures_of_stored_studies_are_drawn(tmp_path: Path) -> None:
    write_result_figures(RESULTS, tmp_path)
    drawn = {file.name for file in tmp_path.iterdir()}
    stored = {f"{name}-curves.svg" for name, study in CURVES.items() if (RESULTS / study).is_dir()}
    assert drawn == stored | {"femnist-clients.svg", "ditto-rates.svg", "virtual-clock.svg"}
    assert all("</svg>" in (tmp_path / name).read_text() for name in drawn)


def test_studies_that_are_not_stored_are_left_out(tmp_path: Path) -> None:
    write_result_figures(tmp_path / "nothing", tmp_path)
    assert not list(tmp_path.iterdir())
