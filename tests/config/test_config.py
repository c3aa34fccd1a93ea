"""A configuration is read, merged and written without loss, and every key explains itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedcraft.config.schema import TABLES, Config
from fedcraft.config.toml import (
    commented_default,
    config_text,
    load_config,
    merged,
    parse_overrides,
    to_toml,
)
from fedcraft.errors import ConfigError


def test_every_key_has_a_description() -> None:
    for name, field in Config.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_json_schema_describes_every_key_and_forbids_others() -> None:
    schema = Config.model_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Config.model_fields)
    assert all(entry["description"] for entry in schema["properties"].values())


def test_written_configuration_reads_back_equal(tmp_path: Path) -> None:
    config = load_config(
        {
            "label": 'a "quoted" label\\',
            "client_lr": 1 / 3,
            "aggregator": {"tau": 1e-9, "constraint": "at_least"},
        }
    )
    path = tmp_path / "config.toml"
    path.write_bytes(config_text(config))
    assert load_config(path) == config
    assert load_config(tmp_path) == config


def test_commented_default_is_the_default() -> None:
    assert Config.model_validate(tomllib.loads(commented_default())) == Config()
    for key in set(Config.model_fields) - set(TABLES):
        assert f"{key} =" in commented_default()


@pytest.mark.parametrize(
    ("dataset", "model", "clients", "partition"),
    [
        ("digits", "mlp", 50, "dirichlet"),
        ("femnist", "mlp", 1000, "natural"),
        ("cifar10", "cnn", 100, "dirichlet"),
        ("cifar100", "cnn", 100, "dirichlet"),
    ],
)
def test_data_set_fills_in_model_clients_and_partition(
    dataset: str, model: str, clients: int, partition: str
) -> None:
    config = load_config({"dataset": dataset})
    assert (config.model, config.clients, config.partition) == (model, clients, partition)


def test_given_keys_win_over_the_data_set() -> None:
    assert load_config({"dataset": "cifar10", "model": "resnet20"}).model == "resnet20"


def test_table_with_a_client_column_is_split_naturally(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("hospital,x,label\n1,2.0,0\n", encoding="utf-8")
    config = load_config({"dataset": str(table), "data_options": {"client": "hospital"}})
    assert config.partition == "natural"
    assert config.alpha is None


def test_overrides_are_toml_values_and_bare_words() -> None:
    words = [
        "method=fedavg",
        "rounds=3",
        "client_lr=.5",
        "offline=true",
        'label="7"',
        "server.x=[1]",
    ]
    assert parse_overrides(words) == {
        "method": "fedavg",
        "rounds": 3,
        "client_lr": 0.5,
        "offline": True,
        "label": "7",
        "server.x": [1],
    }


def test_overrides_reach_into_tables_and_leave_the_rest() -> None:
    base = {"rounds": 2, "aggregator": {"tau": 1.0, "clip": 2.0}}
    assert merged(base, {"aggregator.tau": 0.5, "rounds": 3}) == {
        "rounds": 3,
        "aggregator": {"tau": 0.5, "clip": 2.0},
    }
    assert base["aggregator"] == {"tau": 1.0, "clip": 2.0}


def test_partition_keeps_the_parameters_that_it_takes() -> None:
    given = {"partition": "dirichlet", "alpha": 0.3, "min_size": 5}
    for named in ("dirichlet", "quantity"):
        config = load_config(given, {"partition": named})
        assert (config.alpha, config.min_size) == (0.3, 5)
    assert load_config({"alpha": 0.3}, {"partition": "dirichlet"}).alpha == 0.3
    with pytest.raises(ConfigError, match="partition"):
        load_config(given, {"partition": ["shards"]})


def test_new_partition_forgets_the_parameters_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(config_text(load_config({"alpha": 0.3})))
    config = load_config(path, {"partition": "shards"})
    assert (config.alpha, config.shards_per_client) == (None, 2)


def test_whole_number_is_taken_for_a_rate_but_no_fraction_for_a_count() -> None:
    assert load_config({"server_lr": 1}).server_lr == 1.0
    with pytest.raises(ConfigError, match="rounds: expected a whole number, found 2"):
        load_config({"rounds": 2.0})


@pytest.mark.parametrize("label", ["craft", "CRAFT", "craft-uniform", "mein Verfahren η"])
def test_label_may_be_the_name_of_its_own_method(label: str) -> None:
    for method in ("craft", "Craft"):
        assert load_config({"method": method, "label": label}).name == label


def test_old_result_with_a_label_of_today_can_be_read() -> None:
    assert load_config({"method": "fedavg", "label": "craft"}, names=False).name == "craft"


def test_all_wrong_keys_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"client_rl": 1, "rounds": 0})
    assert "'client_lr'" in str(caught.value)
    assert "rounds" in str(caught.value)


def test_changed_copy_is_checked_as_a_file_is() -> None:
    with pytest.raises(ConfigError, match=r"^rounds: expected a number of at least 1"):
        Config().but(rounds=0)
    with pytest.raises(ConfigError, match=r"unknown key 'roundz'\. Did you mean 'rounds'"):
        Config().but(roundz=3)


def test_toml_of_values_has_no_empty_tables() -> None:
    assert "[" not in to_toml(Config().values())
