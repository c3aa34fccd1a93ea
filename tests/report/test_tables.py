"""Tables say what the runs say, with best and second best marked."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from fedcraft.errors import InputError
from fedcraft.report import load_runs, render, summary
from fedcraft.runs import Run
from fedcraft.runs.summary import METRICS, places

MakeRun = Callable[..., Path]


def test_the_summary_holds_the_last_evaluation_averaged_over_seeds(runs: list[Run]) -> None:
    table = summary(runs).set_index("method")
    crafted = [run for run in runs if run.method == "craft"]
    for metric in ("mean", "best10", "worst10", "std"):
        finals = [run.records[-1]["evaluation"][metric] for run in crafted]
        assert table.loc["craft", metric] == pytest.approx(sum(finals) / 2)
    counts = [r["conflicts"]["after"] for run in crafted for r in run.records if "conflicts" in r]
    assert table.loc["craft", "conflicts"] == pytest.approx(sum(counts) / len(counts))
    assert table.loc["craft", "seeds"] == 2
    assert table.loc["ditto", "settings"] == 9
    assert math.isnan(table.loc["ditto", "mean_sd"])


def test_the_paper_chooses_on_test_data(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", client_lr=0.01, level=0.8, validation=0.5)
    make_run("b", client_lr=0.05, level=0.6, validation=0.7)
    runs = load_runs(tmp_path)
    assert summary(runs).loc[0, ["client_lr", "chosen_on"]].tolist() == [0.05, "validation"]
    assert summary(runs, "test").loc[0, ["client_lr", "chosen_on"]].tolist() == [0.01, "test"]


def test_best_and_second_best_follow_the_direction_of_the_column() -> None:
    mean, std = METRICS[0], METRICS[3]
    assert places([0.1, 0.3, 0.2], mean) == [0, 1, 2]
    assert places([0.1, 0.3, 0.2], std) == [1, 0, 2]


def test_what_is_written_equal_is_marked_equal() -> None:
    mean = METRICS[0]
    assert places([0.50001, 0.50002, 0.4, 0.3], mean) == [1, 1, 2, 0]
    assert places([0.5, 0.5], mean) == [0, 0]
    assert places([0.5, math.nan, 0.4], mean) == [1, 0, 2]


def test_ranks_go_by_the_digits_that_are_written() -> None:
    conflicts = METRICS[-1]
    assert [f"{v:.1f}" for v in (0.35, 0.30, 0.40)] == ["0.3", "0.3", "0.4"]
    assert places([0.35, 0.30], conflicts) == [0, 0]
    assert places([0.35, 0.40], conflicts) == [1, 2]


def test_only_evaluated_seeds_are_counted(
    make_run: MakeRun, plan_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", seed=0)
    plan_run("b", seed=1)
    plan_run("c", seed=0, method="fedavg")
    table = summary(load_runs(tmp_path)).set_index("method")
    (trained,) = load_runs([tmp_path / "a"])
    assert table.loc["craft", "mean"] == trained.final("mean")
    assert table.loc["craft", ["rounds", "seeds"]].tolist() == [trained.last_round, 1]
    assert table.loc["fedavg", ["rounds", "seeds"]].tolist() == [0, 0]


LOST = {"state": "stopped", "reason": "not finite: client 3"}


def test_what_diverged_is_named_so_and_never_best(make_run: MakeRun, tmp_path: Path) -> None:
    for method, level in (("fedprox", 0.4), ("craft", 0.7)):
        for seed in (0, 1):
            make_run(f"{method}{seed}", method=method, level=level, seed=seed)
    make_run("lost", method="fedavg", level=0.9, written=30, **LOST)
    table = summary(load_runs(tmp_path))
    assert table.set_index("method")["diverged"].to_dict() == {
        "fedavg": 1,
        "fedprox": 0,
        "craft": 0,
    }
    lines = render(table, "md").splitlines()
    lost, worse, best = (
        next(line for line in lines if line.startswith(f"| {name} |"))
        for name in ("FedAvg (diverged)", "FedProx", "CRAFT")
    )
    assert not set("*_") & set(lost)
    assert ("**" in best, "**" in worse) == (True, False)
    row = next(r for r in render(table, "latex").splitlines() if r.startswith("FedAvg"))
    assert row.startswith("FedAvg (diverged) &")
    assert "textbf" not in row
    assert "underline" not in row


def test_published_numbers_of_what_diverged_are_still_marked(
    make_run: MakeRun, tmp_path: Path
) -> None:
    make_run("a", method="craft", level=0.6)
    make_run("b", method="fedavg", level=0.9, **LOST)
    published = pd.DataFrame([("craft", 0.7), ("fedavg", 0.8)], columns=["method", "mean"])
    text = render(summary(load_runs(tmp_path)), "md", published)
    assert "**0.800**" in next(line for line in text.splitlines() if "diverged" in line)


def test_latex_tells_on_which_problem_a_method_diverged(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="fedavg")
    make_run("b", method="fedavg", dataset="femnist", model="mlp", **LOST)
    text = render(summary(load_runs(tmp_path)), "latex")
    assert r"FedAvg (diverged on FEMNIST \& MLP) &" in text


@pytest.fixture
def ranked(make_run: MakeRun, tmp_path: Path) -> list[Run]:
    """CRAFT has the best mean; it cannot be told from ConFIG on the worst tenth."""
    knobs = {"craft": (0.75, 0.15), "config": (0.6, 0.0), "fedavg": (0.5, 0.15)}
    for method, (level, spread) in knobs.items():
        for seed in (0, 1, 2):
            made = {"method": method, "level": level, "spread": spread, "seed": seed}
            make_run(f"{method}{seed}", **made)
    return load_runs(tmp_path)


def test_markdown_marks_best_bold_and_what_may_be_best_italic(ranked: list[Run]) -> None:
    table = summary(ranked)
    text = render(table, "md")
    best, _, _ = table["mean"].nlargest(3)
    assert f"| **{best:.3f}** ±" in text
    assert (
        text.count("| **")
        == sum(
            (table[f"{m.key}_place"] == 1).sum() + (table[f"{m.key}_gain_low"] > 0).sum()
            for m in METRICS[:3]
        )
        + (table["std_place"] == 1).sum()
        + (table["std_gain_high"] < 0).sum()
    )
    tails = table.set_index("method")["worst10"]
    assert tails["craft"] != tails["config"]
    assert table.set_index("method").loc[["craft", "config"], "worst10_place"].tolist() == [2, 2]
    assert f"_{tails['craft']:.3f}_ [" in text
    assert f"_{tails['config']:.3f}_ [" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(table)
    assert len({line.count("|") for line in lines}) == 1


def test_latex_uses_booktabs_bold_and_underline(ranked: list[Run]) -> None:
    table = summary(ranked)
    text = render(table, "latex")
    assert rf"\textbf{{{table['mean'].max():.3f}}} {{\scriptsize $\pm$" in text
    assert rf"\underline{{{table['worst10'].max():.3f}}} {{\scriptsize [" in text
    assert "Mean $-$ FedAvg" in text
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"CIFAR-10 \& CNN", r"\end{tabular}"):
        assert rule in text
    assert text.count("{") == text.count("}")


def test_latex_puts_problems_side_by_side(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", method="fedavg", level=0.5)
    make_run("b", method="craft")
    make_run("c", method="craft", dataset="femnist", model="mlp")
    text = render(summary(load_runs(tmp_path)), "latex", intervals=False)
    rows = [line for line in text.splitlines() if line.startswith(("FedAvg", "CRAFT"))]
    assert {row.count("&") for row in rows} == {10}
    assert rows[0].endswith(r"-- & -- & -- & -- & -- \\")
    assert "[" not in "".join(rows)


def test_names_cannot_break_a_table(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", {"label": "50% | a_b & {x}"})
    make_run("b", {"label": "a\nb\t\u2028c"})
    make_run("c", {"label": "<img src=x>[a](javascript:x)"})
    make_run("d", {"label": "[1ex]*"})
    make_run("e", method="fedavg", level=0.5)
    table = summary(load_runs(tmp_path))
    tex, text = render(table, "latex"), render(table, "md")
    assert r"50\% | a\_b \& \{x\} &" in tex
    assert r"50% \| a\_b & {x} |" in text
    assert "\na b  c &" in tex
    assert "| a b  c |" in text
    assert r"\<img src=x\>\[a\](javascript:x) |" in text
    assert r"\textless{}img src=x\textgreater{}{[}a{]}" in tex
    assert not [line for line in tex.splitlines() if line.startswith(("[", "*"))]
    assert len(text.splitlines()) == len(table) + len(["title", "", "heads", "rule", "", "note"])
    assert len(tex.splitlines()) == len(table) + 9


def test_csv_gives_back_the_numbers(runs: list[Run]) -> None:
    table = summary(runs)
    again = pd.read_csv(io.StringIO(render(table, "csv")))
    pd.testing.assert_frame_equal(again, table, check_dtype=False)


def test_published_numbers_stand_beside_ours(runs: list[Run]) -> None:
    published = pd.DataFrame(
        [("cifar10", "cnn", "craft", 0.722), ("cifar10", "cnn", "fedavg", 0.636)],
        columns=["dataset", "model", "method", "mean"],
    )
    text = render(summary(runs), "md", reference=published)
    assert "Mean (published)" in text
    assert "**0.722**" in next(line for line in text.splitlines() if line.startswith("| CRAFT"))
    assert "–" in next(line for line in text.splitlines() if line.startswith("| ConFIG"))


def test_any_method_can_be_the_baseline(ranked: list[Run]) -> None:
    to_fedavg, to_config = (
        summary(ranked, baseline=name).set_index("method") for name in (None, "config")
    )
    assert set(to_fedavg["baseline"]) == {"fedavg"}
    assert math.isnan(to_config.loc["config", "mean_gain"])
    expected = to_config.loc["craft", "mean"] - to_config.loc["config", "mean"]
    assert to_config.loc["craft", "mean_gain"] == pytest.approx(expected)
    assert to_fedavg.loc["config", "mean_gain_low"] == pytest.approx(
        -to_config.loc["fedavg", "mean_gain_high"], abs=2e-3
    )
    with pytest.raises(InputError, match="baseline should be one of fedavg, config, craft"):
        summary(ranked, baseline="krum")


def test_wrong_arguments_are_named(runs: list[Run]) -> None:
    with pytest.raises(InputError, match="format should be"):
        render(summary(runs), "xlsx")
    with pytest.raises(InputError, match="reference should have a column 'method'"):
        render(summary(runs), "md", reference=pd.DataFrame({"mean": [0.5]}))
