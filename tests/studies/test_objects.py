"""Python objects wherever a configuration takes a name: trained, recorded, resumed, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedcraft
from fedcraft.aggregators.average import Average
from fedcraft.aggregators.craft import Craft
from fedcraft.aggregators.layer_momentum import LayerMomentum
from fedcraft.config.build import build_model
from fedcraft.config.toml import load_config
from fedcraft.data import from_arrays
from fedcraft.errors import ConfigError, FedcraftError
from fedcraft.studies.plan import run_id

SHORT: dict[str, Any] = {"rounds": 2, "executor": "serial", "evaluate_every": 1}
draw = np.random.default_rng(5)
INPUTS = draw.normal(size=(240, 6)).astype(np.float32)
LABELS = draw.integers(0, 3, 240)
OWNERS = np.array([f"ward-{k % 6}" for k in range(240)])
FRAME = pd.DataFrame(INPUTS, columns=list("abcdef")).assign(ill=LABELS, ward=OWNERS)
COLUMNS = {"label": "ill", "client": "ward"}


def small_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(input_shape[0], classes)


def local_rule() -> type[Craft]:
    class LocalRule(Craft):
        """A class that no other process can import."""

    return LocalRule


def parameters(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "given",
    [
        {"dataset": (INPUTS, LABELS, OWNERS)},
        {"dataset": from_arrays(INPUTS, LABELS, OWNERS)},
        {"dataset": FRAME, "data_options": COLUMNS},
    ],
    ids=["arrays", "Dataset", "frame"],
)
def test_data_may_be_arrays_a_data_set_or_a_frame(given: dict[str, Any], tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "own.csv", index=False)
    result = fedcraft.run(**SHORT, **given, out=tmp_path / "a")
    file = {"dataset": tmp_path / "own.csv", "data_options": COLUMNS}
    named = fedcraft.run(**SHORT, **file, out=tmp_path / "b")
    assert (result.config.clients, result.config.partition) == (6, "natural")
    assert result.config.dataset.startswith("custom (")
    assert set(result.clients()["name"]) == set(OWNERS)
    assert parameters(result.directory) == parameters(named.directory)


def test_data_without_owners_are_divided(tmp_path: Path) -> None:
    result = fedcraft.run(
        **SHORT, dataset=(INPUTS, LABELS), clients=4, min_size=5, out=tmp_path / "a"
    )
    assert (result.config.clients, result.config.partition) == (4, "dirichlet")
    with pytest.raises(ConfigError, match="natural needs data with owners"):
        fedcraft.Config(dataset=(INPUTS, LABELS), partition="natural")


def test_torch_data_set_is_read(tmp_path: Path) -> None:
    pairs = torch.utils.data.TensorDataset(torch.tensor(INPUTS), torch.tensor(LABELS))
    result = fedcraft.run(**SHORT, dataset=pairs, partition="iid", clients=4, out=tmp_path / "a")
    assert result.state == "finished"


@pytest.mark.parametrize("wrong", [3, [INPUTS], {"x": INPUTS}])
def test_anything_else_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="dataset: expected"):
        fedcraft.Config(dataset=wrong)


def test_options_of_a_table_are_refused_for_arrays() -> None:
    with pytest.raises(ConfigError, match="data_options: only tables"):
        fedcraft.Config(dataset=(INPUTS, LABELS), data_options={"label": "x"})


def test_name_of_a_run_depends_on_the_data_and_the_model() -> None:
    net = nn.Linear(6, 3)
    one = fedcraft.Config(dataset=(INPUTS, LABELS), model=net)
    assert run_id(one) == run_id(fedcraft.Config(dataset=(INPUTS, LABELS), model=net))
    assert run_id(one) != run_id(fedcraft.Config(dataset=(INPUTS + 1, LABELS), model=net))
    assert run_id(one) != run_id(fedcraft.Config(dataset=(INPUTS, LABELS), model=nn.Linear(6, 3)))
    makers = (lambda: nn.Linear(64, 10), lambda: nn.Linear(64, 11), lambda: nn.Flatten())
    assert len({run_id(fedcraft.Config(model=make)) for make in makers}) == 3
    assert run_id(one) == run_id(one.but(workers=2))


def test_module_is_trained_from_where_it_is(tmp_path: Path) -> None:
    net = nn.Linear(6, 3)
    before = net.weight.detach().clone()
    config = fedcraft.Config(dataset=(INPUTS, LABELS, OWNERS), model=net)
    assert torch.equal(build_model(config, from_arrays(INPUTS, LABELS)).weight, before)
    fedcraft.run(config, **SHORT, out=tmp_path / "a")
    assert torch.equal(net.weight, before)


def test_what_can_be_imported_is_recorded_by_its_path() -> None:
    assert fedcraft.Config(model=nn.Flatten).model == "torch.nn.modules.flatten:Flatten"
    assert fedcraft.Config(method=Craft, aggregator=None, local=None) == fedcraft.Config()
    assert fedcraft.Config(method=Average) == fedcraft.Config(method="fedavg")
    assert fedcraft.Config(method=LayerMomentum).aggregator == {"name": "layer_momentum"}
    assert fedcraft.Config(method="fedavg", aggregator=Craft).aggregator == {"name": "craft"}
    assert fedcraft.Config(method="craft", aggregator=Craft).aggregator == {}


def test_plain_name_exchanges_a_part() -> None:
    config = fedcraft.Config(method="fedprox", aggregator="craft", server="adam")
    assert (config.aggregator, config.server) == ({"name": "craft"}, {"name": "adam"})
    assert load_config(None, {"server": "adam"}, override="command line").server == config.server
    with pytest.raises(ConfigError, match="Did you mean 'craft'"):
        fedcraft.Config(aggregator="carft")


def test_rule_object_stands_for_its_method() -> None:
    config = fedcraft.Config(method=Craft(constraint="at_least"))
    assert (config.method, config.server_lr) == ("craft", fedcraft.Config().server_lr)
    assert config.name.startswith("craft+custom (Craft, ")


def test_server_optimiser_object_is_refused_for_its_rate() -> None:
    with pytest.raises(ConfigError, match=r"server: expected .* Adam\(lr=0.5\)\. Pass its class"):
        fedcraft.Config(server=fedcraft.server_optimizer("adam", lr=0.5))


def test_method_is_recorded_by_its_parts() -> None:
    row = fedcraft.method("fedprox+craft", local={"mu": 0.5}, server="adam", server_lr=0.02)
    config = fedcraft.Config(method=row)
    assert (config.method, config.local, config.aggregator) == ("fedprox+craft", {"mu": 0.5}, {})
    assert (config.server, config.server_lr) == ({"name": "adam"}, 0.02)
    assert fedcraft.Config(**config.values()) == config
    assert config.but(server_lr=0.5).server_lr == 0.5
    assert fedcraft.Config(method=row, local={"mu": 2.0}).local == {"mu": 2.0}


def test_rule_may_be_a_class_or_an_object(tmp_path: Path) -> None:
    named = fedcraft.run(SHORT, aggregator={"tau": 0.25}, out=tmp_path / "named")
    given = fedcraft.run(SHORT, aggregator=Craft(tau=0.25), out=tmp_path / "given")
    part = fedcraft.run(
        SHORT, method=fedcraft.method("craft", aggregator=Craft(tau=0.25)), out=tmp_path / "method"
    )
    assert given.config.aggregator["name"].startswith("custom (Craft, ")
    assert parameters(named.directory) == parameters(given.directory)
    assert parameters(named.directory) == parameters(part.directory)


def test_function_in_a_method_is_trained_with(tmp_path: Path) -> None:
    row = fedcraft.method("fedavg", local={"loss": nn.functional.cross_entropy})
    plain = fedcraft.run(SHORT, method="fedavg", out=tmp_path / "plain")
    given = fedcraft.run(SHORT, method=row, out=tmp_path / "given")
    assert parameters(plain.directory) == parameters(given.directory)
    assert given.config.local["name"].startswith("custom (plain, ")


def test_resume_asks_for_the_objects_again(tmp_path: Path) -> None:
    objects = {"dataset": (INPUTS, LABELS, OWNERS), "model": small_net, "method": local_rule()}
    longer = {**SHORT, "rounds": 4}
    whole = fedcraft.run(longer, **objects, out=tmp_path / "whole")
    short = fedcraft.run(SHORT, **objects, out=tmp_path / "short")
    assert short.method == "LocalRule"
    assert fedcraft.resume(short.directory).state == "finished"
    with pytest.raises(ConfigError, match=r"dataset: custom .*fedcraft\.resume\(directory, dat"):
        fedcraft.resume(short.directory, rounds=4)
    with pytest.raises(ConfigError, match="dataset: expected the object"):
        fedcraft.resume(
            short.directory, rounds=4, **(objects | {"dataset": (INPUTS + 1, LABELS, OWNERS)})
        )
    with pytest.raises(ConfigError, match="aggregator: expected the object"):
        fedcraft.resume(short.directory, rounds=4, **(objects | {"method": Average}))
    assert fedcraft.resume(short.directory, rounds=4, **objects).status["round"] == 4
    assert parameters(short.directory) == parameters(whole.directory)


def test_file_of_such_a_run_is_not_a_new_run(tmp_path: Path) -> None:
    done = fedcraft.run(SHORT, dataset=(INPUTS, LABELS, OWNERS), out=tmp_path / "a")
    with pytest.raises(FedcraftError, match="stands for an object"):
        fedcraft.run(done.directory, out=tmp_path / "b")
    assert not (tmp_path / "b").exists()
    again = fedcraft.run(done.directory, dataset=(INPUTS, LABELS, OWNERS), out=tmp_path / "b")
    assert again.config == done.config


def test_comparison_of_objects_is_repeated_and_continued(tmp_path: Path) -> None:
    rule = local_rule()

    def compare() -> Any:
        return fedcraft.compare(
            ["craft", rule, fedcraft.method("fedavg", server="adam")],
            dataset=(INPUTS, LABELS, OWNERS),
            model=small_net,
            rounds=2,
            grid={"client_lr": [0.1, 0.2]},
            repeats=1,
            validation_fraction=0.25,
            out=tmp_path,
        )

    first = compare()
    assert not first.failures
    assert len(first.runs) == 9
    assert [row["method"] for row in first.rows()] == ["craft", "LocalRule", "fedavg+adam"]
    assert {row["seeds"] for row in first.rows()} == {2}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    compare()
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def test_failure_of_one_such_run_is_not_that_of_the_others(tmp_path: Path) -> None:
    class Broken(Craft):
        def aggregate(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("broken rule")

    given = {**SHORT, "dataset": (INPUTS, LABELS, OWNERS), "grid": {"method": ["craft", Broken]}}
    result = fedcraft.sweep(given, out=tmp_path)
    assert [run.done for run in result.runs] == [True, False]
    assert "broken rule" in next(iter(result.failures.values()))
