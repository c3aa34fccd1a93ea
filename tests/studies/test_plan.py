"""A plan is the product of variants and grid; a run's name depends only on the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcraft.config.schema import MACHINE_KEYS, Config
from fedcraft.errors import ConfigError
from fedcraft.studies.compare import DEFAULT_GRID, DEFAULT_METHODS, comparison_plan
from fedcraft.studies.plan import Plan, run_id


def test_grid_is_a_product_over_any_keys() -> None:
    grid = {"client_lr": [0.1, 0.2], "seed": [1, 2, 3], "aggregator.tau": [0.0, 1e-6]}
    configs = Plan({"rounds": 2}, grid).configs()
    assert len(configs) == 12
    assert {(c.client_lr, c.seed, c.aggregator["tau"]) for c in configs} == {
        (lr, seed, tau) for lr in (0.1, 0.2) for seed in (1, 2, 3) for tau in (0.0, 1e-6)
    }


def test_same_run_twice_in_a_grid_is_one_run() -> None:
    assert len(Plan({}, {"seed": [1, 1, 2]}).configs()) == 2


def test_variants_change_several_keys_together() -> None:
    variants = [{"method": "fedavg", "server_lr": 1.0}, {"method": "craft", "server_lr": 0.1}]
    configs = Plan({}, {"seed": [1, 2]}, variants).configs()
    assert [(c.method, c.server_lr, c.seed) for c in configs] == [
        ("fedavg", 1.0, 1),
        ("fedavg", 1.0, 2),
        ("craft", 0.1, 1),
        ("craft", 0.1, 2),
    ]


def test_plan_is_read_from_toml_with_overrides(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        'rounds = 2\n[grid]\nmethod = ["craft", "fedavg"]\naggregator.certify = [true]\n'
        "[[variants]]\nseed = 1\n[[variants]]\nseed = 2\n"
    )
    assert len(Plan.read(path).configs()) == 4
    assert len(Plan.read(path, {"grid.method": ["craft"], "rounds": 3}).configs()) == 2


def test_override_of_a_key_wins_over_grid_and_variants(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        "[grid]\nclient_lr = [0.1, 0.2]\naggregator.tau = [0.0, 1e-6]\n"
        "[[variants]]\nrounds = 2\n[[variants]]\nrounds = 3\n"
    )
    configs = Plan.read(path, {"client_lr": 0.3, "aggregator.tau": 0.5, "rounds": 9}).configs()
    assert [(c.client_lr, c.aggregator["tau"], c.rounds) for c in configs] == [(0.3, 0.5, 9)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rounds = 2\n", "grid"),
        ("[grid]\nclient_lr = 0.1\n", "grid.client_lr"),
        ("[grid]\nclient_lr = []\n", "grid.client_lr"),
        ("grid = 3\n", "grid"),
        ("variants = 3\n[grid]\nseed = [1]\n", "variants"),
        ("[grid]\nclient_rl = [0.1]\n", "client_rl"),
        ("[grid]\nclient_lr = [0.1, -1.0]\n", "client_lr"),
        ("clients = 0\n[grid]\nseed = [1]\n", "clients"),
    ],
)
def test_bad_sweep_names_key_and_file(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Plan.read(path).configs()
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


def test_name_of_a_run_ignores_how_it_is_done() -> None:
    base = Config()
    other = base.but(workers=7, checkpoint_every=3, tracking="mlflow", data_root="/x", offline=True)
    assert run_id(base) == run_id(other)


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"client_lr": 0.051}, {"aggregator": {"tau": 0.0}}, {"layers": "whole"}]
)
def test_name_of_a_run_depends_on_what_comes_out(change: dict[str, object]) -> None:
    assert run_id(Config()) != run_id(Config().but(**change))


def test_machine_keys_are_keys() -> None:
    assert set(Config.model_fields) >= MACHINE_KEYS


def test_comparison_gives_every_method_the_same_grid() -> None:
    configs = comparison_plan().configs()
    points = {
        name: {(c.client_lr, c.server_lr) for c in configs if c.method == name}
        for name in DEFAULT_METHODS
    }
    size = len(DEFAULT_GRID["client_lr"]) * len(DEFAULT_GRID["server_lr"])
    assert len(points) == len(DEFAULT_METHODS)
    assert all(found == points["craft"] and len(found) == size for found in points.values())
    assert all(c.dataset == "digits" and c.clients == 50 and c.alpha == 0.1 for c in configs)
    assert all(c.validation_fraction > 0 for c in configs)


def test_comparison_takes_one_method_by_its_name() -> None:
    assert {c.method for c in comparison_plan("craft").configs()} == {"craft"}


def test_method_as_an_override_of_a_comparison_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^command line: method: .* Write them without a key"):
        comparison_plan(["craft"], overrides={"method": "fedavg"}, override="command line")


def test_rates_given_to_a_comparison_leave_the_grid() -> None:
    configs = comparison_plan(["craft"], overrides={"client_lr": 0.3}).configs()
    assert {c.client_lr for c in configs} == {0.3}
    assert len(configs) == len(DEFAULT_GRID["server_lr"])


def test_rates_of_the_problem_leave_the_default_grid_of_a_comparison(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("rounds = 2\nclient_lr = 0.3\n")
    assert {c.client_lr for c in comparison_plan(["craft"], path).configs()} == {0.3}
    asked = comparison_plan(["craft"], path, overrides={"grid.client_lr": [0.1, 0.2]}).configs()
    assert {c.client_lr for c in asked} == {0.1, 0.2}
    filled_in = comparison_plan(["craft"], Config()).configs()
    assert {c.client_lr for c in filled_in} == set(DEFAULT_GRID["client_lr"])


def test_grid_of_a_comparison_takes_any_key() -> None:
    changes = {"grid.server_lr": [0.5], "grid.aggregator.tau": [0.0, 1e-6]}
    configs = comparison_plan(["craft"], overrides=changes).configs()
    assert {(c.server_lr, c.aggregator["tau"]) for c in configs} == {(0.5, 0.0), (0.5, 1e-6)}
    assert {c.client_lr for c in configs} == set(DEFAULT_GRID["client_lr"])


def test_comparison_on_other_data_takes_their_own_defaults() -> None:
    (config, *_) = comparison_plan(["craft"], overrides={"dataset": "femnist"}).configs()
    assert (config.clients, config.partition) == (1000, "natural")


def test_comparison_without_a_grid_takes_each_methods_own_rates() -> None:
    configs = comparison_plan(["craft", "fedavg"], {"rounds": 2}, grid={}).configs()
    assert [(c.method, c.server_lr) for c in configs] == [("craft", 0.1), ("fedavg", 1.0)]
