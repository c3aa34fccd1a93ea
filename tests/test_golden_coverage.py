"""Every golden file is an arbiter that some test listens to."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).parent
FILES = sorted(path.name for path in (TESTS / "golden").glob("*.npz"))


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _patterns(source: str) -> set[str]:
    """Return the strings given to ``golden(...)``: the marker's patterns and the loader's names."""
    nodes = ast.walk(ast.parse(source))
    calls = (node for node in nodes if isinstance(node, ast.Call) and _called(node) == "golden")
    return {text for call in calls for text in _strings(call.args)}


def _names(source: str) -> set[str]:
    """Return the golden files that are named in full anywhere, as in a list of cases."""
    return set(_strings(ast.walk(ast.parse(source)))) & set(FILES)


def _sources() -> list[str]:
    return [path.read_text() for path in TESTS.rglob("test_*.py")]


def test_every_golden_file_is_used_by_a_test() -> None:
    used = {pattern for source in _sources() for pattern in _patterns(source) | _names(source)}
    unused = [f for f in FILES if not any(fnmatch.fnmatch(f, p) for p in used)]
    assert not unused, f"no test asks for {', '.join(unused)}"


def test_every_pattern_finds_a_golden_file() -> None:
    patterns = {pattern for source in _sources() for pattern in _patterns(source)}
    stale = sorted(p for p in patterns if p.endswith(".npz") and not fnmatch.filter(FILES, p))
    assert not stale, f"no golden file matches {', '.join(stale)}"


def test_the_scan_sees_markers_loaders_and_lists() -> None:
    source = "pytest.mark.golden('a-*.npz', 'b.npz')\ncase = golden('c.npz')\nother('d.npz')\n"
    assert _patterns(source) == {"a-*.npz", "b.npz", "c.npz"}
    assert _names(f"CASES = [({FILES[0]!r}, 1e-3), ('e.npz', 1e-3)]") == {FILES[0]}
