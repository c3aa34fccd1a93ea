"""What ``import fedcraft`` offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedcraft


def test_import_leaves_the_experiments_for_later() -> None:
    code = (
        "import sys, fedcraft\n"
        "heavy = {'pandas', 'matplotlib', 'typer', 'sklearn', 'mlflow', 'fedcraft.studies'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "print(fedcraft.run.__module__)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split("\n")[:2] == ["[]", "fedcraft.studies.run"]


@pytest.mark.parametrize("name", sorted(fedcraft.__all__))
def test_every_promised_name_is_there(name: str) -> None:
    assert getattr(fedcraft, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        fedcraft.rum  # noqa: B018


def test_dir_shows_what_there_is() -> None:
    assert {*fedcraft.__all__, "data", "engine", "report"} <= set(dir(fedcraft))
    for name in ("data", "engine", "models", "theory"):
        assert getattr(fedcraft, name).__name__ == f"fedcraft.{name}"


def test_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="Did you mean 'compare'"):
        fedcraft.compar  # noqa: B018
