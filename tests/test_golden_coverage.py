"""Every golden file is an arbiter that some test listens to."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
FILES = sorted(path.name for path in (TESTS / "golden").glob("*.npz"))


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _patterns(source: str) -> Iterator[str]:
    """Yield the strings given to ``golden(...)``: the marker's patterns and the loader's names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _called(node) == "golden":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def _used_patterns() -> set[str]:
    sources = (path.read_text() for path in TESTS.rglob("test_*.py"))
    return {pattern for source in sources for pattern in _patterns(source)}


def test_every_golden_file_is_used_by_a_test() -> None:
    patterns = _used_patterns()
    unused = [f for f in FILES if not any(fnmatch.fnmatch(f, p) for p in patterns)]
    assert not unused, f"no test asks for {', '.join(unused)}"


def test_every_pattern_finds_a_golden_file() -> None:
    stale = sorted(p for p in _used_patterns() if not fnmatch.filter(FILES, p))
    assert not stale, f"no golden file matches {', '.join(stale)}"


def test_the_scan_sees_marker_and_loader() -> None:
    source = 'pytest.mark.golden("a-*.npz", "b.npz")\ncase = golden("c.npz")\nother("d.npz")\n'
    assert set(_patterns(source)) == {"a-*.npz", "b.npz", "c.npz"}
