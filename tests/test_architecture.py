"""Imports point down only, every file has a readable length, and the import is light."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_imports_point_down_only():
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("import-linter is not installed")
    result = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_source_file_is_too_long_to_read():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "src").rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    }
    assert not long


def test_importing_fedcraft_is_light():
    heavy = ("ray", "flwr", "plotly", "matplotlib", "mlflow", "pandas", "pyarrow")
    probe = f"import sys, fedcraft; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found == "[]"


@pytest.mark.parametrize("module", ["fedcraft", "fedcraft.cli.app", "fedcraft.cli.complete"])
def test_help_and_completion_do_not_wait_for_torch(module: str):
    probe = f"import sys, {module}; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_no_two_public_classes_share_a_name():
    places: dict[str, list[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: found for name, found in places.items() if len(found) > 1}
