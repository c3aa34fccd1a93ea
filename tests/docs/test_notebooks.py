"""The notebooks run from top to bottom and print what they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
FILES = sorted(NOTEBOOKS.glob("*.ipynb"))


def code_cells(path: Path) -> list[tuple[str, str, int]]:
    """Return source, printed text and number of pictures of each code cell."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = []
    for cell in cells:
        if cell["cell_type"] == "code":
            outputs = cell["outputs"]
            text = "".join(line for o in outputs for line in o.get("text", ()))
            pictures = sum("image/png" in o.get("data", ()) for o in outputs)
            found.append(("".join(cell["source"]), text, pictures))
    return found


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Flower's simulation run in this process: starting Ray takes longer than the notebook."""
    import flwr.simulation
    from flwr.app import Context, RecordDict

    from benchmarks.grids import InProcessGrid

    def run_simulation(server_app: Any, client_app: Any, num_supernodes: int) -> None:
        context = Context(1, 1, {}, RecordDict(), {})
        server_app(InProcessGrid(client_app, num_supernodes), context)

    monkeypatch.setattr(flwr.simulation, "run_simulation", run_simulation)


def test_there_are_two_notebooks() -> None:
    assert [path.stem for path in FILES] == ["craft-in-ten-minutes", "flower-to-craft-auto"]


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_notebook_runs_and_prints_what_it_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    drawn = 0
    for source, printed, pictures in code_cells(path):
        pyplot.close("all")
        capsys.readouterr()
        exec(compile(source, path.name, "exec"), names)
        assert capsys.readouterr().out == printed
        assert len(pyplot.get_fignums()) == pictures
        drawn += pictures
    pyplot.close("all")
    assert drawn
