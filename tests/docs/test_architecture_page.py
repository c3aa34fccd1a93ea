"""The architecture page names packages, functions and limits; the code has exactly these."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
import tomllib
from collections import defaultdict
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fedcraft
from docs.figures import make_architecture as page

ROOT = Path(__file__).parents[2]
SOURCE = Path(fedcraft.__file__).parent
CATALOGUES = {"aggregators"}
HOPS = page.hops()


def named(function: str) -> Any:
    module, _, name = function.partition(":")
    return attrgetter(name)(importlib.import_module(module))


@pytest.mark.parametrize("function", page.functions())
def test_every_function_on_the_page_exists(function: str) -> None:
    assert callable(named(function))


def test_an_update_takes_at_most_twelve_hops() -> None:
    assert 1 <= len(HOPS) <= 12


def test_hops_are_called_in_the_order_of_the_page(tmp_path: Path) -> None:
    wanted = {named(hop).__code__: hop for hop in HOPS}
    seen: list[str] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        hop = wanted.get(frame.f_code)
        if event == "call" and hop is not None and hop not in seen:
            seen.append(hop)

    small = {"clients": 4, "clients_per_round": 2, "samples": 80, "rounds": 1}
    sys.setprofile(watch)
    try:
        fedcraft.run(**small, executor="serial", evaluate_first=False, out=tmp_path / "run")
    finally:
        sys.setprofile(None)
    assert seen == HOPS


def test_table_is_the_import_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = project["tool"]["importlinter"]["contracts"]
    layers = [tuple(layer.replace("fedcraft.", "").split(" | ")) for layer in contract["layers"]]
    assert page.layers() == layers


def test_every_package_and_module_of_fedcraft_is_in_the_table() -> None:
    found = {name for _, name, _ in pkgutil.iter_modules([str(SOURCE)]) if name != "__main__"}
    assert {name for row in page.layers() for name in row} == found


def test_no_package_has_more_than_sixteen_modules() -> None:
    packages = [path.parent for path in SOURCE.rglob("__init__.py")]
    sizes = {
        str(package.relative_to(SOURCE)): len([*package.glob("*.py")]) - 1  # without __init__
        for package in packages
    }
    assert not {name: n for name, n in sizes.items() if n > 16 and name not in CATALOGUES}


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert not {name: files for name, files in places.items() if len(files) > 1}
