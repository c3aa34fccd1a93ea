"""The pages say what the program does: examples run, commands parse, tables are the program's."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

import click
import pytest
import typer

from fedcraft.cli.app import app
from fedcraft.config.toml import checked, parse_overrides
from fedcraft.studies.compare import comparison_plan
from fedcraft.studies.plan import Plan
from fedcraft.studies.presets import preset

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (
    *("index.md", "concepts.md", "methods.md", "configuration.md", "commands.md"),
    *("report.md", "certificate.md", "own-data.md", "own-model.md", "faq.md", "api.md"),
    *("architecture.md", "virtual-clock.md"),
)
VISITS = "ward,ill\n" + "".join(f"{ward},0\n" for ward in range(12))
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str
    prints: str | None  # the text block right below it


def blocks(page: str, language: str) -> list[Block]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    made = []
    for this, below in zip_longest(found, found[1:]):
        title = re.search(r'title="([^"]+)"', this[2])
        near = below is not None and not text[this.end() : below.start()].strip()
        prints = below[3] if below is not None and near and below[1] == "text" else None
        made.append(Block(this[1], title[1] if title else "", this[3], prints))
    return [block for block in made if block.language == language]


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_every_python_example_runs_and_prints_what_the_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    namespace: dict[str, object] = {"__name__": "example"}
    for block in blocks(page, "python"):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
            continue
        capsys.readouterr()
        exec(compile(block.text, page, "exec"), namespace)
        if block.prints is not None:
            assert capsys.readouterr().out == block.prints
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def commands() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for block in blocks(page, "bash"):
            for line in block.text.splitlines():
                words = shlex.split(line.partition(">")[0], comments=True)
                if words and words[0] == "fedcraft":
                    yield page, words[1:]


@pytest.mark.parametrize(
    ("page", "words"), [pytest.param(p, w, id=" ".join(w)) for p, w in commands()]
)
def test_every_command_on_the_pages_is_one_that_fedcraft_understands(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text("[grid]\nseed = [1]\n")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine-3").mkdir()
    (tmp_path / "visits.csv").write_text(VISITS)
    (tmp_path / "mynet.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    command, given = parsed(words)
    overrides = parse_overrides(word for word in given if "=" in word)
    if command == "compare":
        methods = [word for word in given if "=" not in word]
        assert comparison_plan(methods or ["craft"], overrides=overrides).configs()
    elif command == "sweep":
        assert Plan.read("grid.toml", overrides).configs()
    elif command == "reproduce" and given:
        assert preset(given[0]).plan(**overrides).configs()
    elif command in ("run", "bench", "show"):
        name = [word for word in given if "=" not in word] if command == "show" else []
        assert checked({"dataset": name[0]} if name else {}, overrides, page)


def parsed(words: list[str]) -> tuple[str, list[str]]:
    """Parse as the command line would; return the command and its positional words."""
    command: click.Command = typer.main.get_command(app)
    rest = list(words)
    while isinstance(command, click.Group):
        command = command.commands[rest.pop(0)]
    context = command.make_context(command.name, rest)
    arguments = [p.name for p in command.params if isinstance(p, click.Argument)]
    values = [context.params[name] for name in arguments if name]
    flat = [v for value in values for v in (value if isinstance(value, list | tuple) else [value])]
    return str(command.name), [str(word) for word in flat if word is not None]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")])
def test_every_configuration_on_the_pages_is_valid(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits.csv").write_text(VISITS)
    for block in blocks(page, "toml"):
        assert Plan.of(tomllib.loads(block.text), page).configs()


@pytest.mark.parametrize("page", ["methods.md", "configuration.md", "commands.md"])
def test_generated_tables_are_those_of_the_program(page: str) -> None:
    generate = script(DOCS / "generate.py")
    assert set(generate.PAGES) == {"methods.md", "configuration.md", "commands.md"}
    assert generate.filled(page) == (DOCS / page).read_text(encoding="utf-8"), (
        "run: python docs/generate.py"
    )


def test_completion_offers_the_words_of_the_program() -> None:
    generate = script(DOCS / "generate.py")
    written = generate.WORDS.read_text(encoding="utf-8")
    assert generate.completion_words() == written, "run: python docs/generate.py"


def test_every_command_has_a_heading() -> None:
    generate = script(DOCS / "generate.py")
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    missing = [
        name for name in generate.commands() if name != "fedcraft" and f"## {name}\n" not in text
    ]
    assert not missing


def test_every_part_of_a_method_has_its_formula() -> None:
    from fedcraft.aggregators import RULES
    from fedcraft.local import OBJECTIVES
    from fedcraft.server_optimizers import OPTIMIZERS

    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert not [name for name in (*RULES, *OBJECTIVES) if f"### `{name}`\n" not in text]
    server = text.partition("## The server")[2]
    assert not [name for name in OPTIMIZERS if not re.search(rf"^{name} ", server, re.MULTILINE)]


@pytest.mark.parametrize("maker", ["make_concepts.py", "make_architecture.py"])
def test_pictures_are_those_of_the_script(maker: str) -> None:
    draw = script(DOCS / "figures" / maker)
    for name, picture in draw.PICTURES.items():
        stored = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert picture().svg() == stored, f"run: python docs/figures/{maker}"


def anchors(page: str) -> set[str]:
    """Heading ids as Markdown's toc extension makes them."""
    from markdown.extensions.toc import slugify

    text = _FENCE.sub("", (DOCS / page).read_text(encoding="utf-8"))
    return {slugify(h.replace("`", ""), "-") for h in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = _FENCE.sub("", (DOCS / page).read_text(encoding="utf-8"))
    for groups in _LINK.findall(text):
        target = groups[0] or groups[1]
        assert not target.startswith("http"), f"{page} leads away: {target}"
        file, _, anchor = target.partition("#")
        assert not file or (DOCS / file).is_file(), f"{page}: {target}"
        assert not anchor or anchor in anchors(file or page), f"{page}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert set(PAGES) <= set(listed)
    assert not [page for page in listed if not (DOCS / page).is_file()]


def test_every_public_name_is_in_the_api_page() -> None:
    import fedcraft

    text = (DOCS / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: fedcraft[\w.]*\.(\w+)", text, re.MULTILINE)) | {"errors"}
    assert not [n for n in fedcraft.__all__ if n not in shown | {"__version__", "FedcraftError"}]
