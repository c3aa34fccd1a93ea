"""The sections of the page: gains, single clients, heat maps, the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedcraft.report import load_runs, write_page
from fedcraft.report.sections import clients, gains, grids, one_client, published
from fedcraft.report.sections.gains import client_gains
from fedcraft.runs import Run
from fedcraft.runs.select import group
from tests.report.pages import data_of, page_of, unpacked

MakeRun = Callable[..., Path]


def test_gains_pair_the_same_client_of_the_same_split(runs: list[Run]) -> None:
    (problem,) = group(runs)
    craft, fedavg = problem.entry("craft"), problem.entry("fedavg")
    assert craft is not None
    assert fedavg is not None
    table = client_gains(craft, fedavg).set_index(["seed", "client"])
    for run, other in zip(craft.runs, fedavg.runs, strict=True):
        wanted = run.accuracies()[7] - other.accuracies()[7]
        assert table.loc[(run.seed, 7), "gain"] == pytest.approx(wanted)
    assert table["gain"].is_monotonic_increasing


def test_owners_and_classes_go_by_their_names(make_run: MakeRun, tmp_path: Path) -> None:
    for method in ("fedavg", "craft"):
        folder = make_run(method, method=method, clients=12)
        wards = "".join(f"{k},ward-{k} <{'i' * k}>\n" for k in range(12))
        (folder / "owners.csv").write_text(f"client,name\n{wards}")
        (folder / "classes.csv").write_text("label,name\n0,ill\n1,well\n")
    loaded = load_runs(tmp_path)
    (problem,) = group(loaded)
    names = {f"ward-{k} <{'i' * k}>" for k in range(12)}
    assert set(one_client.client_view(problem)["groups"][0]["names"]) == names
    assert set(grids.labels(problem)["clients"]) == names
    assert grids.labels(problem)["labels"][:3] == ["ill", "well", "2"]
    worst = clients.distribution(problem)["worst"]
    craft = next(run for run in loaded if run.method == "craft")
    least = min(craft.accuracies().items(), key=lambda pair: pair[1])[0]
    assert worst["CRAFT"][0].startswith(f"{craft.names('owners')[least]} 0.")
    text = page_of(tmp_path)
    assert "Least accurate under CRAFT: ward-" in text
    assert "<iii>" not in text


def test_clients_without_names_are_not_listed(text: str) -> None:
    assert "Least accurate" not in text


def test_a_client_has_its_accuracies_cosines_and_data(runs: list[Run], text: str) -> None:
    group = data_of(text)[0]["charts"]["client"]["groups"][1]
    run = next(run for run in runs if run.method == "fedavg" and run.seed == 1)
    view = group["methods"]["fedavg"]
    table = run.clients().query("split == 'test' and metric == 'accuracy' and client == 13")
    curves = unpacked(view["accuracy"]).reshape(100, len(view["rounds"])) / 10_000
    assert (group["seed"], view["rounds"]) == (1, table["round"].tolist())
    assert curves[13].tolist() == pytest.approx(table["value"].tolist(), abs=1e-4)
    labels = run.labels().query("client == 13")
    counts = unpacked(group["counts"]).reshape(100, len(group["labels"]))[13]
    assert counts.sum() == labels["count"].sum()
    drawn = group["labels"].index("airplane")
    assert counts[drawn] == labels.query("label == 0")["count"].sum()
    part = [record for record in run.records if 13 in record.get("clients", ())]
    assert unpacked(view["part"])[13] == len(part)
    cosines = run.cosines().query("client == 13")
    own = unpacked(view["cosines"]["clients"]) == 13
    layers = view["cosines"]["layers"]
    values = unpacked(view["cosines"]["values"]).reshape(-1, len(layers))[own]
    assert layers == ["Conv1", "Conv2", "Fc1", "Fc2", "Head", "whole model"]
    assert unpacked(view["cosines"]["rounds"])[own].tolist() == cosines["round"].unique().tolist()
    assert ((values.astype(int) - 100) / 100).tolist() == [[-0.3] * len(layers)]


def test_a_small_conflict_stays_a_conflict_on_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a")
    (folder / "cosines.csv").write_text("round,client,layer,cosine\n10,3,all,-0.0004\n")
    (problem,) = group(load_runs(tmp_path))
    (view,) = one_client.client_view(problem)["groups"]
    assert unpacked(view["methods"]["craft"]["cosines"]["values"]).tolist() == [99]


def test_a_large_study_says_what_it_left_out(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem,) = group(runs)
    assert one_client.client_view(problem)["notes"] == []
    monkeypatch.setattr(one_client, "MOST_VALUES", 4_000)
    found = one_client.client_view(problem)
    assert found["notes"] == [
        "To keep the page small, it has 3 of 13 evaluations of single clients.",
        "To keep the page small, it has the cosines of single clients for the whole model only, "
        "not by layer; cosines.csv has all of them.",
    ]
    view = found["groups"][0]["methods"]["craft"]
    assert view["rounds"] == [0, 30, 60]
    assert view["cosines"]["layers"] == ["whole model"]
    assert found["recorded"].startswith("Cosines were written in 6 of 60 rounds: every 10 rounds")


def test_clients_are_counted_seed_by_seed(runs: list[Run]) -> None:
    (problem,) = group(runs)
    parts = gains.gains(problem)["methods"]["craft"]
    assert [part["seed"] for part in parts] == [0, 1]
    for part in parts:
        assert part["winners"] + part["losers"] + part["same"] == 100
        craft, fedavg = (
            next(run for run in runs if (run.method, run.seed) == (name, part["seed"]))
            for name in ("craft", "fedavg")
        )
        gain = craft.accuracies()[7] - fedavg.accuracies()[7]
        at = unpacked(part["clients"]).tolist().index(7)
        assert unpacked(part["gain"])[at] / 10_000 - 1 == pytest.approx(gain, abs=1e-4)


def test_a_rate_map_counts_its_seeds_explains_blanks_and_marks_the_edge(
    make_run: MakeRun, tmp_path: Path
) -> None:
    for seed in (0, 1):
        make_run(f"best{seed}", client_lr=0.1, server_lr=0.1, level=0.8, seed=seed)
    make_run("worse", client_lr=0.01, server_lr=0.1, level=0.5)
    make_run("lost", client_lr=0.1, server_lr=1.0, state="stopped", reason="not finite: client 3")
    (problem,) = group(load_runs(tmp_path))
    grid = grids.learning_rates(problem)["grids"]["craft"]
    assert grid["seeds"] == [[1, 0], [2, 1]]
    assert grid["blanks"] == [["", "not run"], ["", "diverged"]]
    assert grid["edges"] == ["largest client rate", "smallest server rate"]


def test_the_label_map_says_that_it_is_a_sample(text: str) -> None:
    labels = data_of(text)[0]["charts"]["labels"]
    assert "A sample: 30 of 100 clients" in text
    assert labels["labels"][:2] == ["airplane", "automobile"]
    assert labels["most"] == pytest.approx(max(max(row) for row in labels["shares"]), rel=1e-3)


def test_published_numbers_are_on_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="fedavg", rounds=500)
    make_run("b", method="craft", rounds=500)
    reference = [{"method": "craft", "mean": 0.9}, {"method": "fedavg", "mean": 0.5}]
    loaded = load_runs(tmp_path)
    (problem,) = group(loaded)
    beside = published.published(problem, reference)
    ours = next(run for run in loaded if run.method == "craft").final("mean")
    craft = next(row for row in beside["rows"] if row["label"] == "CRAFT")
    assert craft["cells"][0] == (f"{ours:.3f}", "0.900")
    assert craft["difference"] == f"{ours - 0.9:+.3f}".replace("-", "−")
    text = write_page(loaded, tmp_path / "page.html", reference=reference).read_text()
    assert "Beside the paper" in text
    assert "Beside the paper" not in page_of(tmp_path)


def test_numbers_of_shorter_runs_are_not_subtracted_from_the_papers(runs: list[Run]) -> None:
    (problem,) = group(runs)
    beside = published.published(problem, [{"method": "craft", "mean": 0.9}])
    assert (beside["comparable"], beside["rows"][0]["difference"]) == (False, "")
