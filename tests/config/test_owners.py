"""Every owner in the client column of a table is a client, unless a number is given."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedcraft.config.build import build_federation
from fedcraft.config.schema import Config
from fedcraft.config.toml import config_text, load_config
from fedcraft.errors import ConfigError
from fedcraft.studies.compare import comparison_plan
from fedcraft.studies.plan import run_id
from fedcraft.studies.run import run

ROWS_PER_OWNER = 5


def write_visits(folder: Path, owners: int) -> dict[str, Any]:
    """Write a table and return the keys that name it."""
    rows = [f"{k % 7}.5,ward-{k % owners},{k % 2}" for k in range(owners * ROWS_PER_OWNER)]
    path = folder / "visits.csv"
    path.write_text("\n".join(["age,ward,ill", *rows]) + "\n", encoding="utf-8")
    return {"dataset": str(path), "data_options": {"label": "ill", "client": "ward"}}


@pytest.mark.parametrize(("owners", "cohort"), [(200, 10), (8, 8)])
def test_all_owners_are_clients(owners: int, cohort: int, tmp_path: Path) -> None:
    visits = write_visits(tmp_path, owners)
    config = load_config(visits)
    assert (config.clients, config.clients_per_round) == (owners, cohort)
    given = {"clients": owners, "clients_per_round": cohort}
    assert run_id(config) == run_id(load_config(visits, given))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(build_federation(config)) == owners


def test_settled_number_is_written_and_survives_another_table(tmp_path: Path) -> None:
    result = run(write_visits(tmp_path, 8), rounds=1, executor="serial", out=tmp_path / "run")
    write_visits(tmp_path, 9)
    written = (tmp_path / "run/config.toml").read_text()
    assert "\nclients = 8\n" in written
    assert "\nclients_per_round = 8\n" in written
    assert result.config.but(rounds=2).clients == 8


def test_given_numbers_keep_their_meaning_and_left_out_owners_are_told(tmp_path: Path) -> None:
    visits = write_visits(tmp_path, 20)
    config = load_config(visits, {"clients": 12, "clients_per_round": 3})
    with pytest.warns(UserWarning, match=r"8 of the 20 owners of .*visits\.csv are left out"):
        assert len(build_federation(config)) == 12
    assert load_config(visits, {"clients_per_round": 15}).clients == 20
    assert load_config(visits, {"partition": "iid"}).clients == Config().clients


def test_run_tells_which_owner_each_client_is(tmp_path: Path) -> None:
    visits = write_visits(tmp_path, 12)
    result = run(visits, rounds=1, executor="serial", out=tmp_path / "all")
    names = sorted(f"ward-{k}" for k in range(12))
    text = "".join(f"{k},{name}\n" for k, name in enumerate(names))
    assert (result.directory / "owners.csv").read_text() == f"client,name\n{text}"
    clients = result.clients()
    assert list(clients.columns) == ["round", "client", "split", "metric", "value", "n", "name"]
    assert [names[k] for k in clients["client"]] == clients["name"].tolist()
    header = (result.directory / "clients.csv").read_text().partition("\n")[0]
    assert header == "round,client,split,metric,value,n"


def test_owners_that_are_drawn_keep_their_names(tmp_path: Path) -> None:
    rows = [f"{owner}.5,ward-{owner},{k % 2}" for owner in range(12) for k in range(4)]
    (tmp_path / "visits.csv").write_text("\n".join(["age,ward,ill", *rows]) + "\n")
    options = {"label": "ill", "client": "ward"}
    given = {"dataset": str(tmp_path / "visits.csv"), "data_options": options, "clients": 5}
    with pytest.warns(UserWarning, match="7 of the 12 owners"):
        federation = build_federation(load_config(given, {"clients_per_round": 5}))
    ages = [federation.client(k).tensors()[0][0].item() for k in range(5)]
    assert [f"ward-{age:.0f}" for age in np.floor(ages)] == list(federation.client_names)
    assert federation.virtual(7).client_names[5:] == federation.client_names[:2]


def test_clients_that_are_no_owners_have_no_names(tmp_path: Path) -> None:
    visits = write_visits(tmp_path, 12)
    dealt = {"partition": "iid", "clients": 4, "clients_per_round": 2}
    assert build_federation(load_config(visits, dealt)).client_names == ()
    assert build_federation(Config()).client_names == ()
    result = run(visits, **dealt, rounds=1, executor="serial", out=tmp_path / "run")
    assert "name" not in result.clients()


def test_names_are_text_whatever_they_look_like(tmp_path: Path) -> None:
    names = ["NA", '"a", b', "zoë"]
    rows = [{"x": k / 9, "who": names[k % 3], "kind": ["no", "007"][k % 2]} for k in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "mine.parquet")
    result = run(
        dataset=str(tmp_path / "mine.parquet"),
        data_options={"label": "kind", "client": "who"},
        rounds=1,
        executor="serial",
        out=tmp_path / "run",
    )
    assert result.owners()["name"].tolist() == sorted(names)
    assert set(result.clients()["name"]) == set(names)
    assert (result.directory / "classes.csv").read_text() == "label,name\n0,007\n1,no\n"
    assert list(result.names("owners").values()) == sorted(names)
    assert result.names("classes") == {0: "007", 1: "no"}


def test_cohort_of_a_comparison_is_not_larger_than_the_owners(tmp_path: Path) -> None:
    plan = comparison_plan("craft", overrides=write_visits(tmp_path, 8))
    assert {(c.clients, c.clients_per_round) for c in plan.configs()} == {(8, 8)}


def test_more_clients_than_owners_among_the_samples_are_refused(tmp_path: Path) -> None:
    config = load_config(write_visits(tmp_path, 50), {"samples": 20})
    with pytest.raises(ConfigError, match=r"clients: expected at most the .* the 20 samples drawn"):
        build_federation(config)


def test_table_without_the_column_is_told_with_the_configuration(tmp_path: Path) -> None:
    visits = write_visits(tmp_path, 3) | {"data_options": {"label": "ill", "client": "place"}}
    with pytest.raises(ConfigError, match=r"dataset: .*visits\.csv has no column \['place'\]"):
        load_config(visits)


def test_table_that_is_gone_does_not_hide_an_old_result(tmp_path: Path) -> None:
    config = load_config(write_visits(tmp_path, 3))
    (tmp_path / "config.toml").write_bytes(config_text(config))
    Path(config.dataset).unlink()
    assert load_config(tmp_path, names=False) == config
