"""From Python: errors of the same kind as from a file, numbers of numpy, paths, no functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedcraft
from fedcraft.config.schema import Config
from fedcraft.config.toml import COMMAND_LINE, load_config
from fedcraft.errors import ConfigError
from fedcraft.studies.plan import Plan


def test_direct_call_raises_the_same_error_as_a_changed_copy_does() -> None:
    for make in (Config, Config().but):
        with pytest.raises(ConfigError, match=r"^unknown key 'metod'\. Did you mean 'method'"):
            make(metod="x")
        with pytest.raises(ConfigError, match=r"^rounds: expected a whole number, found"):
            make(rounds="x")


def test_old_result_of_an_unknown_method_can_still_be_read() -> None:
    assert load_config({"method": "of yesterday"}, names=False).method == "of yesterday"


def test_old_result_is_read_without_its_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_by_now.py").write_text("raise RuntimeError\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    old = Config().values() | {"method": "broken_by_now:Rule"}
    assert load_config(old, names=False).name == "broken_by_now:Rule"


def test_wrong_mixture_with_a_custom_rule_is_reported_once() -> None:
    with pytest.raises(ConfigError, match=r"^method: unknown name 'nope\+own:Rule'"):
        Config(method="nope+own:Rule")


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"metod": "x"}, {"method": "fedavgg"}, {"aggregator": {"taau": 1}}]
)
def test_prefix_says_where_a_value_came_from(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        fedcraft.run(out=tmp_path / "a", **wrong)
    said = str(caught.value)
    assert said.startswith((next(iter(wrong)), "unknown key"))
    with pytest.raises(ConfigError) as caught:
        load_config(None, wrong, override=COMMAND_LINE)
    assert str(caught.value) == f"command line: {said}"


def test_override_of_a_sweep_is_not_blamed_on_its_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text("rounds = 3\n[grid]\nseed = [1, 2]\n")
    with pytest.raises(ConfigError, match=r"^command line: rounds: expected"):
        Plan.read(path, {"rounds": 0}, COMMAND_LINE).configs()
    with pytest.raises(ConfigError, match=r"^command line: seed: expected"):
        Plan.read(path, {"grid.seed": [-1]}, COMMAND_LINE).configs()


def test_numbers_of_numpy_and_paths_are_taken(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("x,label\n1.0,0\n", encoding="utf-8")
    config = Config(
        rounds=np.int64(3),
        client_lr=np.float32(0.5),
        offline=np.bool_(True),
        dataset=table,
        data_root=tmp_path,
        model_options={"hidden": (np.int64(8), 4)},
    )
    assert config == Config(
        rounds=3,
        client_lr=0.5,
        offline=True,
        dataset=str(table),
        data_root=str(tmp_path),
        model_options={"hidden": [8, 4]},
    )
    assert type(config.rounds) is int


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("aggregator.target", {"aggregator": {"target": torch.mean}}),
        ("local.loss", {"local": {"loss": torch.mean}}),
    ],
)
def test_function_is_refused_before_anything_is_written(
    key: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        fedcraft.run(out=tmp_path / "a", **parts)
    said = str(caught.value)
    assert said.startswith(f"{key}: a configuration file cannot hold a function.")
    assert "fedcraft.method(" in said
    assert "to fedcraft.run" in said
    assert not (tmp_path / "a").exists()
    assert fedcraft.method("craft", **parts).build()


def test_nothing_in_a_table_is_refused_too() -> None:
    with pytest.raises(ConfigError, match=r"model_options\.hidden: .* cannot hold nothing\."):
        Config(model_options={"hidden": [1, None]})


@pytest.mark.parametrize(
    ("where", "given", "fix"),
    [
        (COMMAND_LINE, {"aggregator": 3}, "Write aggregator.KEY=VALUE"),
        (COMMAND_LINE, {"model_options": 3}, "Write model_options.KEY=VALUE"),
        ("", {"aggregator": 3}, "Write aggregator={}"),
        ("", {"model_options": 3}, "Write model_options={}"),
    ],
)
def test_plain_value_for_a_table_is_an_error_with_the_right_syntax(
    where: str, given: dict[str, Any], fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, given, override=where)
    assert str(caught.value).endswith(fix)


def test_axis_may_be_an_array_or_a_range() -> None:
    rates = np.array([0.5, 0.25])
    assert [c.client_lr for c in Plan({}, {"client_lr": rates}).configs()] == [0.5, 0.25]
    assert [c.seed for c in Plan({}, {"seed": range(3)}).configs()] == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"grid\.seed: .* found \[\]\. Leave it out$"):
        Plan({}, {"seed": np.array([])}).configs()


def test_axis_without_values_is_a_readable_error() -> None:
    with pytest.raises(ConfigError, match=r"grid\.seed: .* found \[\]\. Leave it out$"):
        Plan({}, {"seed": []}).configs()
    with pytest.raises(ConfigError, match=r'Write method = \["craft"\]$'):
        Plan({}, {"method": "craft"}).configs()
