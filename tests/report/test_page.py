"""The page holds what the runs hold, asks nothing from the network, and trusts no name."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcraft.errors import MissingExtraError
from fedcraft.report import load_runs, summary, write_page
from fedcraft.report.extras import needs
from fedcraft.report.sections import clients, gains, grids, one_client, published
from fedcraft.report.sections.gains import client_gains
from fedcraft.report.verdict import verdict
from fedcraft.runs import Run
from fedcraft.runs.select import group
from fedcraft.runs.summary import rows

MakeRun = Callable[..., Path]


@pytest.fixture(scope="module")
def text(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_page(runs, tmp_path_factory.mktemp("page") / "deep" / "page.html").read_text()


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """Read packed numbers as the page's script does."""
    return np.frombuffer(base64.b64decode(packed["data"]), f"<u{packed['bytes']}")


def page_of(folder: Path) -> str:
    return write_page(load_runs(folder), folder / "page.html").read_text()


def test_the_page_names_no_other_address(text: str) -> None:
    addresses = set(re.findall(r"\bhttps?://[^\s\"'<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|srcset|action)=|@import|url\(", text)
    assert "default-src 'none'" in text


def test_the_page_is_small(text: str) -> None:
    assert len(text) < 500_000


def test_unchanged_runs_give_an_unchanged_page(runs: list[Run], tmp_path: Path) -> None:
    first, second = (write_page(runs, tmp_path / name) for name in ("a.html", "b.html"))
    assert first.read_bytes() == second.read_bytes()


def test_every_section_is_there(text: str) -> None:
    charts = data_of(text)[0]["charts"]
    assert all(charts.values())
    for name in charts:
        assert f'id="p0-{name}"' in text


def test_the_numbers_in_the_page_are_those_of_the_runs(text: str, runs: list[Run]) -> None:
    charts = data_of(text)[0]["charts"]
    crafted = [run for run in runs if run.method == "craft"]
    series = next(s for s in charts["convergence"]["metrics"]["mean"] if s["method"] == "craft")
    finals = [run.final("mean") for run in crafted]
    assert series["y"][-1] == pytest.approx(sum(finals) / 2, rel=1e-4)
    series = next(s for s in charts["distribution"]["series"] if s["method"] == "craft")
    values = unpacked(series["values"]) / 10_000
    assert values.tolist() == sorted(a for run in crafted for a in run.accuracies().values())
    assert charts["rates"]["grids"]["ditto"]["client_lr"] == [0.01, 0.05, 0.1]
    row, column = charts["rates"]["grids"]["ditto"]["chosen"]
    means = charts["rates"]["grids"]["ditto"]["mean"]
    assert means[row][column] == max(max(line) for line in means)
    assert charts["conflicts"]["methods"]["craft"]["layers"][-1] == "whole model"


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


def test_links_lead_to_the_folders_of_the_runs(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("runs/a run")
    near = write_page(load_runs(tmp_path), tmp_path / "page.html").read_text()
    assert '<a href="runs/a%20run/">' in near
    far = write_page(load_runs(tmp_path), tmp_path / "1/2/3/page.html").read_text()
    assert "a%20run" not in far


def test_other_splits_are_not_compared_and_the_page_says_so(
    make_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", method="fedavg", seed=0)
    make_run("b", method="craft", seed=1)
    text = page_of(tmp_path)
    gains = data_of(text)[0]["charts"]["gains"]
    assert (gains["methods"], gains["unpaired"]) == ({}, ["CRAFT"])
    assert "not made over the same split of the data: CRAFT" in text


def test_sections_without_data_leave_a_note(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("a", diagnostics=False)
    for name in ("clients.csv", "labels.csv", "metrics.jsonl", "environment.json"):
        (path / name).unlink()
    text = page_of(tmp_path)
    assert not any(data_of(text)[0]["charts"].values())
    assert text.count('<p class="absent">') >= len(data_of(text)[0]["charts"])
    assert "No evaluation has been written yet." in text


def test_a_running_comparison_shows_its_state_so_far(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="fedavg", written=25, state="running", level=0.5)
    path = make_run("b", method="craft", written=25, state="running")
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 26, "eva')
    text = page_of(tmp_path)
    assert "25 of 60 rounds" in text
    assert '<span class="badge running">running</span>' in text
    assert "this is the state so far" in text
    make_run("c", method="fedavgm", written=10, state="running")
    assert "at different rounds (10 to 25)" in page_of(tmp_path)


def test_names_are_text_and_never_markup(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("a")
    with (path / "config.toml").open("a") as stream:
        stream.write('label = "</script><img src=x onerror=alert(1)>"\n')
    text = page_of(tmp_path)
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert data_of(text)[0]["methods"][0]["label"] == "</script><img src=x onerror=alert(1)>"


def test_not_a_number_becomes_a_gap(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("a", rounds=10)
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 11, "evaluation": {"mean": NaN, "train_loss": null}}\n')
    text = page_of(tmp_path)
    assert "NaN" not in json.dumps(data_of(text))


def test_the_choice_on_validation_data_is_reported_beside_the_papers(
    make_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", client_lr=0.01, level=0.8, validation=0.5)
    make_run("b", client_lr=0.05, level=0.6, validation=0.7)
    text = page_of(tmp_path)
    assert "Mean, chosen on&nbsp;test" in text
    table = summary(load_runs(tmp_path))
    assert table.loc[0, "mean_on_test"] > table.loc[0, "mean"]


def test_the_page_shows_no_path_of_the_disk(comparison: Path, text: str) -> None:
    assert str(comparison) not in text
    assert "craft-s0" in text


def words(folder: Path) -> str:
    (problem,) = group(load_runs(folder))
    return verdict(problem, rows([problem]))


def test_the_verdict_names_the_winners(make_run: MakeRun, tmp_path: Path) -> None:
    for name, level in (("fedavg", 0.5), ("craft", 0.7)):
        for seed in (0, 1):
            make_run(f"{name}{seed}", method=name, level=level, seed=seed)
    text = words(tmp_path)
    assert text.startswith("CRAFT has the best mean accuracy")
    assert "It also has the best worst tenth" in text
    assert re.search(r"CRAFT passed the runner-up's final mean after round \d+", text)


def test_the_page_tells_the_rounds_of_the_longest_method(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="fedavg", rounds=5, level=0.5)
    make_run("b", method="craft", rounds=10)
    assert "10 of 10 rounds" in page_of(tmp_path)


def test_the_verdict_is_not_surer_than_the_numbers(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="fedavg", level=0.5)
    make_run("b", method="craft", level=0.7)
    assert "One seed each" in words(tmp_path)
    make_run("c", method="fedavg", level=0.7, seed=1)
    make_run("d", method="craft", level=0.5, seed=1)
    assert "FedAvg has the highest mean accuracy" in words(tmp_path)
    assert "the intervals do not separate it from CRAFT" in words(tmp_path)


def test_the_verdict_names_one_seed_of_the_best_two(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="craft", level=0.9)
    make_run("b", method="fedprox", level=0.7)
    for seed in (0, 1):
        make_run(f"c{seed}", method="fedavg", level=0.3, seed=seed)
    assert "One seed each: the intervals cover the clients, not the seeds" in words(tmp_path)
    make_run("d", method="fedprox", level=0.7, seed=1)
    assert "One seed of CRAFT: the intervals cover the clients" in words(tmp_path)
    assert "CRAFT has the highest mean accuracy" in words(tmp_path)
    make_run("e", method="craft", level=0.9, seed=1)
    assert "CRAFT has the best mean accuracy" in words(tmp_path)


def test_seeds_to_come_are_reported_and_not_counted(
    make_run: MakeRun, plan_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", seed=0)
    plan_run("b", seed=1)
    assert "after 60 rounds" in words(tmp_path)
    text = page_of(tmp_path)
    assert "<span>1 seed</span><span>1 run not evaluated yet</span>" in text


def test_what_diverged_is_marked_and_never_named_best(make_run: MakeRun, tmp_path: Path) -> None:
    lost = {"state": "stopped", "reason": "not finite: client 3"}
    make_run("a", method="fedavg", level=0.9, **lost)
    assert words(tmp_path) == "FedAvg diverged."
    make_run("b", method="craft", level=0.6)
    assert words(tmp_path).startswith("CRAFT reaches a mean accuracy of")
    make_run("c", method="fedprox", level=0.5)
    assert words(tmp_path).startswith("CRAFT has the highest mean accuracy")
    assert words(tmp_path).endswith("FedAvg diverged.")
    text = page_of(tmp_path)
    row = text[text.index('<tr data-method="fedavg">') :].partition("</tr>")[0]
    assert '<span class="badge diverged">diverged</span>' in row
    assert "best)" not in row
    assert "<span>1 diverged</span>" in text


def ranked(make_run: MakeRun, folder: Path, means: list[float], worst: list[float]) -> str:
    """The verdict on methods with these final numbers."""
    names = ["fedavg", "fedprox", "fednova", "fedavgm", "craft"]
    for name, mean, tail in zip(names, means, worst, strict=False):
        path = make_run(name, method=name)
        (path / "clients.csv").unlink()
        record = {"round": 60, "evaluation": {"mean": mean, "worst10": tail}}
        with (path / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps(record) + "\n")
    return words(folder)


@pytest.mark.parametrize(
    ("means", "worst", "first", "then"),
    [
        (
            [0.6001, 0.5999, 0.5],
            [0.2001, 0.1999, 0.1],
            "FedAvg and FedProx share the highest mean accuracy, 0.600.",
            "They also have the highest worst tenth of the clients, 0.200.",
        ),
        (
            [0.6, 0.6, 0.5, 0.5, 0.6],
            [0.1, 0.1, 0.1, 0.2, 0.2],
            "FedAvg, FedProx and CRAFT share the highest mean accuracy, 0.600.",
            "CRAFT and FedAvgM have the highest worst tenth of the clients, 0.200.",
        ),
        (
            [0.6, 0.6, 0.6, 0.6],
            [0.1, 0.1, 0.1, 0.1],
            "FedAvg and 3 others share the highest mean accuracy, 0.600.",
            "All methods leave the worst tenth of the clients at 0.100.",
        ),
        (
            [0.7006, 0.7004, 0.7001],
            [0.2, 0.1, 0.1],
            "FedAvg has the highest mean accuracy, 0.701, 0.001 above FedProx and FedNova.",
            "It also has the highest worst tenth of the clients, 0.200.",
        ),
    ],
)
def test_the_verdict_names_all_that_are_written_equal(
    make_run: MakeRun, tmp_path: Path, means: list[float], worst: list[float], first: str, then: str
) -> None:
    text = ranked(make_run, tmp_path, means, worst)
    why = "The runs hold no accuracies of single clients, so there are no intervals."
    assert text == f"{first} {then} {why}"


def test_a_shared_best_mean_is_not_a_lead(make_run: MakeRun, tmp_path: Path) -> None:
    for name in ("fedavg", "craft"):
        for seed in (0, 1):
            path = make_run(f"{name}{seed}", method=name, seed=seed)
            with (path / "metrics.jsonl").open("a") as stream:
                stream.write('{"round": 60, "evaluation": {"mean": 0.5, "worst10": 0.1}}\n')
    assert words(tmp_path).endswith("the worst tenth of the clients at 0.100.")


def test_a_missing_extra_says_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "fedcraft.report.page")
    with pytest.raises(MissingExtraError, match=r"pip install 'fedcraft\[report\]'"):
        import fedcraft.report.page  # noqa: F401


def test_needs_lets_other_errors_through() -> None:
    with pytest.raises(KeyError), needs("pandas"):
        raise KeyError
