"""A bad configuration gives one readable message: the key, the file, and what to do."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from fedcraft.config.toml import load_config, parse_overrides
from fedcraft.errors import ConfigError


def _bad_configs():
    path = Path(__file__).with_name("bad_configs.py")
    spec = importlib.util.spec_from_file_location("bad_configs", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bad_configs"] = module
    spec.loader.exec_module(module)
    return module.BAD_CONFIGS


BAD_CONFIGS = _bad_configs()


def test_there_are_thirty_kinds() -> None:
    assert len({bad.name for bad in BAD_CONFIGS}) >= 30


@pytest.mark.parametrize("bad", BAD_CONFIGS, ids=lambda bad: bad.name)
def test_message_names_key_file_and_fix(bad, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(bad.text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    print(message)
    assert bad.key in message
    assert bad.fix in message
    assert str(path) in message
    assert "\n" not in message
    assert message.rstrip(")").endswith((".", "?", "]")), "a whole sentence"


@pytest.mark.parametrize("word", ["client_lr", "=3", "client_lr:0.1"])
def test_word_that_is_not_an_override_is_an_error_with_the_right_syntax(word: str) -> None:
    with pytest.raises(ConfigError, match=r"key=value.*client_lr=0\.05"):
        parse_overrides([word])


def test_bad_override_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("rounds = 3\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, {"client_lr": -1}, override="command line")
    assert "command line" in str(caught.value)
    assert str(path) not in str(caught.value)


def test_missing_file_offers_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "digits.toml").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"Did you mean 'digits\.toml'"):
        load_config(tmp_path / "digit.toml")


def test_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(path)
