"""Every experiment of the paper is there, says what the paper says, and runs at a tiny scale."""

from __future__ import annotations

import hashlib
from itertools import product
from pathlib import Path

import pytest

from fedcraft.config.schema import Config
from fedcraft.config.toml import load_config
from fedcraft.errors import ConfigError
from fedcraft.studies.estimate import Estimate, estimate
from fedcraft.studies.plan import run_id
from fedcraft.studies.presets import METHODS, SCALES, Scale, preset, presets
from fedcraft.studies.published import TABLES
from fedcraft.studies.run import run

DEEP = ("resnet20", "resnet56", "resnet110")
NAMES = list(presets())
_PROBLEM = ("dataset", "model", "clients", "clients_per_round", "partition", "alpha")
RUN_IDS = {
    "table-femnist": "e39e738b",
    "table-cifar10-cnn": "ee9689a1",
    "table-cifar10-resnet20": "6b584a90",
    "table-cifar10-resnet56": "3caefcfd",
    "table-cifar10-resnet110": "ab2a3c2b",
    "table-cifar100-cnn": "c5b55a8a",
    "table-cifar100-resnet20": "0c8ee072",
    "table-cifar100-resnet56": "5a214b23",
    "table-cifar100-resnet110": "1c1292b9",
    "ditto-cifar10": "b74b152c",
    "ditto-cifar100": "f4927e92",
    "seeds-cifar10-cnn": "9b17a328",
    "seeds-cifar100-cnn": "87a05b24",
    "history": "1894d06d",
    "ablation-femnist": "515a4c9f",
    "ablation-cifar10-cnn": "50e38727",
    "variants-femnist": "c3604fde",
    "sources-femnist": "4afa429d",
    "craft-femnist": "fe6b12cd",
    "search-cifar10-cnn": "7caa4804",
    "curves-cifar10-cnn": "fea8ea33",
    "curves-cifar100-cnn": "ea3e3621",
    "curves-cifar10-resnet20": "b8fa49d5",
    "ditto-cifar10-short": "58e7a3d4",
    "auto-cifar10-cnn": "3d3edf59",
    "auto-cifar10-cnn-500": "3315edb1",
    "auto-femnist": "d3168aaa",
    "search-family-femnist": "807886cb",
    "family-femnist": "5c863916",
    "family-cifar10-cnn": "f03b4e83",
    "family-femnist-personal": "a395cba3",
    "search-family-femnist-personal": "babbbf44",
    "robustness": "169fe6d3",
    "robustness-cifar10-cnn": "f5212a3f",
}


def test_every_table_and_figure_has_a_preset() -> None:
    tables = {f"table-{d}-{m}" for d in ("cifar10", "cifar100") for m in ("cnn", *DEEP)}
    figures = {"ditto-cifar10", "ditto-cifar100", "seeds-cifar10-cnn", "seeds-cifar100-cnn"}
    assert set(NAMES) >= tables | figures | {"table-femnist", "history"}


@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_a_smaller_scale_shortens_a_variant_with_its_own_rounds(scale: Scale) -> None:
    long = {config.name: config.rounds for config in preset("curves-cifar10-cnn").plan().configs()}
    short = {config.rounds for config in preset("curves-cifar10-cnn").plan(scale).configs()}
    assert (long["craft"], long["config"]) == (500, 150)
    assert len(short) == 1
    assert short.pop() <= 50


def test_names_of_all_runs_are_what_they_were() -> None:
    """Stored results are found by the names of their runs."""
    digests = {
        name: hashlib.sha256(
            "\n".join(
                run_id(config) for scale in SCALES for config in item.plan(scale).configs()
            ).encode()
        ).hexdigest()[:8]
        for name, item in presets().items()
    }
    assert digests == RUN_IDS


def test_what_stands_in_for_a_table_has_its_problem() -> None:
    for item in presets().values():
        if item.until_stored:
            other = preset(item.until_stored)
            assert {k: other.base[k] for k in _PROBLEM} == {k: item.base[k] for k in _PROBLEM}
            assert set(other.names) & set(item.names)


def test_wrong_change_is_not_blamed_on_the_preset() -> None:
    with pytest.raises(ConfigError, match=r"^command line: rounds: expected"):
        preset("history").plan("tiny", (), "command line", rounds=0).configs()
    with pytest.raises(ConfigError, match=r"^unknown key 'roundz'"):
        preset("history").plan(roundz=1).configs()


def test_changes_win_over_the_grid() -> None:
    rates = {c.client_lr for c in preset("table-femnist").plan(client_lr=0.3).configs()}
    seeds = {c.seed for c in preset("seeds-cifar10-cnn").plan(seed=5).configs()}
    assert (rates, seeds) == ({0.3}, {5})


def test_seed_of_the_plan_is_not_repeated() -> None:
    chosen = preset("table-femnist")
    assert chosen.repeats_of(chosen.plan()) == [78, 79]
    assert chosen.repeats_of(chosen.plan(seed=78)) == [79]


def test_name_of_an_argument_is_a_key_like_any_other() -> None:
    with pytest.raises(ConfigError, match="scale"):
        preset("table-femnist").plan("tiny", (), scale="small").configs()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_run_of_every_preset_is_a_valid_configuration(name: str, scale: str) -> None:
    configs = preset(name).plan(scale).configs()
    assert configs
    assert {config.name for config in configs} == set(preset(name).names)


@pytest.mark.parametrize(
    ("name", "clients", "active", "batch"),
    [
        ("table-femnist", 1000, 10, 50),
        ("table-cifar10-cnn", 100, 10, 50),
        ("table-cifar100-resnet110", 1000, 100, 20),
    ],
)
def test_paper_scale_is_the_protocol_of_appendix_c(
    name: str, clients: int, active: int, batch: int
) -> None:
    configs = preset(name).plan("paper").configs()
    assert len(configs) == len(METHODS) * 4 * 3
    for method in METHODS:
        rates = {(c.client_lr, c.server_lr) for c in configs if c.name == method}
        assert rates == set(product([0.005, 0.01, 0.05, 0.1], [0.01, 0.1, 1.0]))
    for config in configs:
        assert (config.clients, config.clients_per_round, config.batch_size) == (
            clients,
            active,
            batch,
        )
        assert (config.rounds, config.lr_decay, config.local_epochs) == (500, 0.999, 1)
        assert config.train_fraction == 0.8
        if config.dataset != "femnist":
            assert (config.partition, config.alpha, config.min_size) == ("dirichlet", 0.1, 20)


def test_published_tables_have_all_methods() -> None:
    assert len(TABLES) == 9
    assert all(set(table) == set(METHODS) for table in TABLES.values())
    assert TABLES["femnist-mlp"]["craft"] == (0.706, 0.878, 0.474, 0.115)
    assert all(0 <= v <= 1 for table in TABLES.values() for row in table.values() for v in row)


@pytest.mark.parametrize("name", NAMES)
def test_preset_runs_at_a_tiny_scale(name: str, tmp_path: Path, offline: Path) -> None:
    configs = preset(name).plan("tiny").configs()
    enough = {"mlp": 30, "cnn": 2}.get(configs[0].model, 1)
    chosen = configs[:: -max(1, len(configs) // enough)][:enough]  # spread over all of them
    for number, config in enumerate(chosen):
        result = run(config, out=tmp_path / str(number), workers=1)
        assert result.done
        assert 0 <= result.final("mean") <= 1


def test_estimate_grows_with_the_plan(offline: Path) -> None:
    configs = preset("table-femnist").plan("tiny").configs()
    one, all_ = estimate(configs[:1], jobs=1), estimate(configs, jobs=1)
    assert all_.runs == len(METHODS)
    assert all_.seconds > one.seconds > 0
    assert estimate(configs, jobs=2).memory_mb > all_.memory_mb > 100


def test_estimate_knows_the_work_of_the_local_objective() -> None:
    short, long = (
        load_config({"method": "fedrep", "local": {"head_epochs": epochs}}) for epochs in (0, 60)
    )
    assert estimate([long]).seconds > 4 * estimate([short]).seconds


def test_estimate_counts_the_start_of_processes_and_runs() -> None:
    configs = [Config(rounds=1, clients=10, seed=seed) for seed in range(20)]
    alone, many = (estimate(some).seconds for some in (configs[:1], configs))
    assert 3.0 < alone < 10
    assert many - alone > 19 * 0.2
    assert estimate(configs[:1], repeats=1).seconds > 6


def test_estimate_says_that_it_counts_from_scratch() -> None:
    told = str(Estimate(runs=7, seconds=600, memory_mb=400, jobs=2))
    assert told == "7 runs from scratch, 2 at once: about 10 min and 400 MiB of memory"


def test_unknown_experiment_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'table-femnist'"):
        preset("table-femnits")


def test_method_that_is_not_in_the_preset_is_reported() -> None:
    with pytest.raises(ConfigError, match="'ditto'"):
        preset("table-femnist").plan("tiny", ["ditto"])


def test_missing_data_are_reported_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedcraft.errors import DataError

    monkeypatch.setenv("FEDCRAFT_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("FEDCRAFT_OFFLINE", "1")
    with pytest.raises(DataError, match="cifar10"):
        estimate(preset("table-cifar10-cnn").plan("tiny").configs()[:1])
