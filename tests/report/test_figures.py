"""The figures are drawn from whatever the runs hold, and always the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pytest
from PIL import Image

from fedcraft.errors import InputError
from fedcraft.report import load_runs, write_figures
from fedcraft.report.figures import FIGURES
from fedcraft.runs import Run

MakeRun = Callable[..., Path]


def bare(path: Path) -> None:
    """Leave a run its configuration and its metrics."""
    for name in ("clients.csv", "labels.csv"):
        (path / name).unlink()


def test_every_figure_of_the_paper_is_written(runs: list[Run], tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    files = write_figures(runs, tmp_path / "new" / "folder", formats=["png"])
    assert {path.stem for path in files} == set(FIGURES)
    for path in files:
        with Image.open(path) as image:
            assert min(image.size) > 300
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 20
    assert dict(mpl.rcParams) == before


def test_formats_are_what_they_say(make_run: MakeRun, tmp_path: Path) -> None:
    bare(make_run("a", diagnostics=False))
    files = write_figures(load_runs(tmp_path), tmp_path / "figures", formats=["pdf", "svg"])
    begins = {path.suffix: path.read_bytes()[:5] for path in files}
    assert begins == {".pdf": b"%PDF-", ".svg": b"<?xml"}
    with pytest.raises(InputError, match="formats should be among png, pdf, svg"):
        write_figures(load_runs(tmp_path), tmp_path, formats=["gif"])


def test_the_same_runs_give_the_same_bytes(make_run: MakeRun, tmp_path: Path) -> None:
    bare(make_run("a", diagnostics=False))
    runs = load_runs(tmp_path)
    first = write_figures(runs, tmp_path / "one", formats=["svg"])
    second = write_figures(runs, tmp_path / "two", formats=["svg"])
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_labels_are_drawn_as_they_are_written(make_run: MakeRun, tmp_path: Path) -> None:
    for name, label in (("a", "_cheap $5 $6"), ("b", "craft")):
        path = make_run(name, diagnostics=False)
        with (path / "config.toml").open("a") as stream:
            stream.write(f'label = "{label}"\n')
    write_figures(load_runs(tmp_path), tmp_path / "figures", formats=["svg"])
    for name in ("convergence", "std"):
        assert "_cheap $5 $6" in (tmp_path / "figures" / f"{name}.svg").read_text()


def test_figures_without_data_are_left_out(make_run: MakeRun, tmp_path: Path) -> None:
    bare(make_run("a", method="fedavg", diagnostics=False))
    files = write_figures(load_runs(tmp_path), tmp_path / "figures", formats=["svg"])
    assert {file.stem for file in files} == {"convergence", "std", "conflicts"}


def test_drawings_follow_a_dark_theme(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", {"label": "</style>"}, method="craft")
    write_figures(load_runs(tmp_path), tmp_path / "figures", ["svg"])
    text = (tmp_path / "figures/convergence.svg").read_text()
    dark = text[text.index("@media (prefers-color-scheme:dark)") :]
    assert 'path[style*="fill: #ffffff"]' in dark
    assert dark.count("</style>") == 1
    background = text[text.index('id="patch_1"') :].partition("</g>")[0]
    assert 'style="fill: #ffffff"' in background  # the shape that the rule above turns dark
