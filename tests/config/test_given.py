"""What is not set follows from the method and the data set, also when these change later."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedcraft.config.schema import Config
from fedcraft.config.toml import commented_default, config_text, load_config
from fedcraft.studies.compare import DEFAULT_GRID, comparison_plan
from fedcraft.studies.plan import run_id
from fedcraft.studies.sweep import _for_one_process


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(commented_default(), encoding="utf-8")
    return path


def test_template_sets_nothing_that_follows_from_another_key(template: Path) -> None:
    assert not Config.derived_keys & tomllib.loads(template.read_text()).keys()
    assert "\n# server_lr = 0.1\n" in template.read_text()
    assert load_config(template, {"method": "fedavg"}) == Config(method="fedavg")
    cifar = load_config(template, {"dataset": "cifar10"})
    assert (cifar.model, cifar.clients) == ("cnn", 100)


def test_comparison_with_the_template_has_its_grid(template: Path) -> None:
    assert comparison_plan(["craft"], template).grid == DEFAULT_GRID


def test_owners_of_a_table_are_taken_with_the_template(template: Path, tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("ward,x,label\n1,2.0,0\n2,1.0,1\n", encoding="utf-8")
    config = load_config(template, {"dataset": str(table), "data_options.client": "ward"})
    assert (config.partition, config.clients, config.clients_per_round) == ("natural", 2, 2)


def test_changed_copy_follows_its_method_and_data_set() -> None:
    assert Config().but(method="fedavg") == Config(method="fedavg")
    assert Config(rounds=2).but(dataset="cifar10") == Config(rounds=2, dataset="cifar10")
    assert Config().but(partition="shards").shards_per_client == 2
    assert load_config(Config(rounds=2), {"method": "fedavg"}).server_lr == 1.0


def test_changed_copy_keeps_what_was_set() -> None:
    config = Config(server_lr=0.1, clients=50).but(method="fedavg", dataset="cifar10")
    assert (config.server_lr, config.clients, config.client_lr) == (
        0.1,
        50,
        Config(method="fedavg").client_lr,
    )
    assert comparison_plan(["craft"], config).grid.keys() == {"client_lr"}


def test_configuration_of_a_run_is_complete_and_stays(tmp_path: Path) -> None:
    config = Config(method="fedavg")
    (tmp_path / "config.toml").write_bytes(config_text(config))
    again = load_config(tmp_path)
    assert again.given() == config.values() == again.values()
    assert again.but(method="craft").server_lr == 1.0


def test_names_of_runs_are_what_they_were() -> None:
    names = {"craft": "craft-7e2d9d915c", "fedavg": "fedavg-319ae2047f"}
    assert {name: run_id(Config(method=name)) for name in names} == names
    (alone,) = _for_one_process([Config(method="fedavg", executor="serial")])
    assert run_id(alone) == run_id(Config(method="fedavg", executor="serial"))


@pytest.mark.parametrize(("clients", "cohort"), [(5, 5), (10, 10), (11, 10)])
def test_cohort_is_never_larger_than_the_federation(clients: int, cohort: int) -> None:
    assert Config(clients=clients).clients_per_round == cohort
    assert Config(clients=clients).but(clients=50).clients_per_round == 10


def test_cohort_of_a_small_comparison_is_all_clients() -> None:
    for clients in (3, np.int64(3)):
        (config, *_) = comparison_plan(["craft"], overrides={"clients": clients}).configs()
        assert (config.clients, config.clients_per_round) == (3, 3)


def test_nothing_is_what_a_file_leaves_out() -> None:
    assert Config(alpha=None, min_size=None, server_lr=None) == Config()
    assert Config(server_lr=None).given() == {}
    assert Config(alpha=0.5).but(alpha=None).alpha == Config().alpha
    femnist = Config(dataset="femnist", max_samples=None)
    assert run_id(femnist) == run_id(load_config(femnist.values()))
