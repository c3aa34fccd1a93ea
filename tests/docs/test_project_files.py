"""The files around the code agree with it: contributing guide, citation, hooks and workflow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedcraft

ROOT = Path(__file__).parents[2]
PAPER = "arXiv:2605.21317"
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_PATH = re.compile(r"`((?:src|docs|tests|benchmarks|\.ci)/[\w./-]+|\w+\.(?:md|toml|txt|cff))`")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_project_page_leads_to_a_file(page: str) -> None:
    links = [link for link in _LINK.findall(text(page)) if not link.startswith("http")]
    assert not [link for link in links if not (ROOT / link).exists()]


def test_every_path_in_the_contributing_guide_exists() -> None:
    paths = _PATH.findall(text("CONTRIBUTING.md"))
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_version_has_one_source() -> None:
    project = tomllib.loads(text("pyproject.toml"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/fedcraft/__init__.py"
    assert yaml.safe_load(text("CITATION.cff"))["version"] == fedcraft.__version__
    assert f"## {fedcraft.__version__} " in text("CHANGELOG.md")


def test_citation_and_readme_name_the_paper() -> None:
    (paper,) = yaml.safe_load(text("CITATION.cff"))["references"]
    assert PAPER in [identifier["value"] for identifier in paper["identifiers"]]
    assert PAPER in text("README.md")


def test_workflow_runs_what_contributors_run() -> None:
    workflow: dict[str, Any] = yaml.safe_load(text(".github/workflows/ci.yml"))
    steps = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert ".ci/run" in steps
    assert {"make test", "make check", "make docs"} <= set(text(".ci/run").splitlines())


def test_hooks_run_the_programs_of_make_check() -> None:
    (local,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    hooks = {hook["entry"].split()[0] for hook in local["hooks"]}
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", text("Makefile"), re.MULTILINE)
    assert recipe is not None
    assert hooks == {".venv/bin/" + name for name in re.findall(r"\(BIN\)/([\w-]+)", recipe[1])}


@pytest.mark.parametrize("template", ["bug.md", "feature.md"])
def test_issue_templates_have_a_name_and_a_purpose(template: str) -> None:
    head = yaml.safe_load(text(f".github/ISSUE_TEMPLATE/{template}").split("---")[1])
    assert head.keys() >= {"name", "about"}
