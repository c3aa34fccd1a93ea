"""The tables of docs/results.md, and the short ones of the README."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.curves import curve_summary, curve_tables
from benchmarks.pages.ditto import ditto_table, ditto_verdict
from benchmarks.pages.markdown import SCORES, table
from benchmarks.pages.speed import speed_summary
from benchmarks.pages.variants import variant_notes, variant_verdict
from fedcraft.methods import method_title
from fedcraft.runs import Run
from fedcraft.studies.presets import SEEDS
from fedcraft.studies.reproduce import Reproduction, from_results

__all__ = ["readme_blocks", "results_blocks"]

# What the paper prints for CRAFT on FEMNIST, and how far from it we want to be at most.
AIMS = {"mean": 0.01, "best10": 0.01, "worst10": 0.02, "std": 0.01}
OTHERS_AIM = 0.03
CURVES = {
    "curves-cifar10-cnn": "CIFAR-10, CNN",
    "curves-cifar100-cnn": "CIFAR-100, CNN",
    "curves-cifar10-resnet20": "CIFAR-10, ResNet-20",
}
_SHORT = ("fedavg", "fedavgm", "fedfv", "config", "craft")


def results_blocks(results: Path) -> dict[str, str]:
    """Return the generated blocks of docs/results.md."""
    femnist = from_results("table-femnist", results)
    variants = from_results("variants-femnist", results)
    sources = from_results("sources-femnist", results)
    ditto = from_results("ditto-cifar10-short", results)
    return {
        "femnist": _beside_paper(femnist),
        "femnist verdict": f"{_craft_verdict(femnist)}\n{_others_verdict(femnist)}",
        "femnist processors": _processors(femnist, from_results("craft-femnist", results)),
        "femnist grid": _grid(femnist),
        "variants": variant_notes(femnist, variants),
        "variants verdict": variant_verdict(femnist, variants),
        "sources": _beside_paper(sources),
        "sources verdict": _others_verdict(sources),
        "ablation femnist": _ablation(from_results("ablation-femnist", results)),
        "ablation cifar10": _ablation(from_results("ablation-cifar10-cnn", results)),
        **{study: curve_tables(from_results(study, results)) for study in CURVES},
        "ditto": ditto_table(ditto),
        "ditto verdict": ditto_verdict(ditto),
    }


def readme_blocks(results: Path) -> dict[str, str]:
    """Return the short tables of the README."""
    femnist = from_results("table-femnist", results)
    rows = {row["method"]: row for row in femnist.rows()}
    lines = (
        [method_title(name), *(f"{rows[name][c]:.3f} ({rows[name][f'{c}_paper']:.3f})"
                               for c in SCORES)]
        for name in _SHORT
    )  # fmt: skip
    return {
        "digits": (results / "digits.md").read_text(encoding="utf-8").partition("\n\n")[2],
        "results": table(("method", *SCORES.values()), lines),
        "cifar": curve_summary({t: from_results(study, results) for study, t in CURVES.items()}),
        "speed": speed_summary(results),
    }


def _mean_cell(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.3f}" + (f" ± {row['mean_sd']:.3f}" if row["seeds"] > 1 else "")


def _beside_paper(made: Reproduction) -> str:
    heads = ["method"]
    for name in SCORES.values():
        heads += [name, "paper"]
    return table([*heads, "rates (client, server)"], map(_paper_row, made.rows()))


def _paper_row(row: Mapping[str, Any]) -> Iterator[str]:
    yield method_title(row["method"])
    yield _mean_cell(row)
    yield f"{row['mean_paper']:.3f}"
    for column in ("best10", "worst10", "std"):
        yield f"{row[column]:.3f}"
        yield f"{row[f'{column}_paper']:.3f}"
    yield f"{row['client_lr']:g}, {row['server_lr']:g}"


def _craft_verdict(made: Reproduction) -> str:
    (row,) = (row for row in made.rows() if row["method"] == "craft")
    return "\n".join(_craft_line(row, column, aim) for column, aim in AIMS.items())


def _processors(*studies: Reproduction) -> str:
    """CRAFT's row of several studies of the same runs, by the processor that they ran on."""
    best = (made.result.best("test")["craft"].runs for made in studies)
    runs = [sorted(each, key=lambda run: run.config.seed) for each in best]
    rows = (
        [
            _processor(each[0]),
            ", ".join(f"{run.final('mean'):.3f}" for run in each),
            *(f"{statistics.fmean(run.final(s) for run in each):.3f}" for s in SCORES),
        ]
        for each in runs
    )
    seeds = ", ".join(map(str, SEEDS))
    return table(("torch computes with", f"mean with seeds {seeds}", *SCORES.values()), rows)


def _processor(run: Run) -> str:
    return str(run.environment["torch_capability"])


def _others_verdict(made: Reproduction) -> str:
    others = [row for row in made.rows() if row["method"] != "craft"]
    missed = [row for row in others if abs(row["mean_difference"]) > OTHERS_AIM]
    names = ", ".join(f"{method_title(r['method'])} ({r['mean_difference']:+.3f})" for r in missed)
    return (
        f"* {len(others) - len(missed)} of the other {len(others)} methods are within {OTHERS_AIM} "
        f"of their published mean{f'; not so: {names}' if missed else ''}.\n"
        f"* Rank correlation (Spearman) with the paper's means: {made.rank_correlation():.2f}."
    )


def _craft_line(row: Mapping[str, Any], column: str, aim: float) -> str:
    difference = row[column] - row[f"{column}_paper"]
    verdict = "within" if abs(difference) <= aim else "**not** within"
    return (
        f"* CRAFT, {SCORES[column]}: {row[column]:.3f}, paper {row[f'{column}_paper']:.3f}, "
        f"difference {difference:+.3f}: {verdict} {aim}."
    )


def _grid(made: Reproduction) -> str:
    """Every method's mean at every pair of rates, for the seed of the grid."""
    seed = min(run.config.seed for run in made.result.runs)
    runs = [run for run in made.result.runs if run.config.seed == seed]
    pairs = sorted({(run.config.client_lr, run.config.server_lr) for run in runs})
    known = {(r.method, r.config.client_lr, r.config.server_lr): _grid_cell(r) for r in runs}
    rows = (
        [method_title(name), *(known.get((name, *pair), "") for pair in pairs)]
        for name in made.preset.names
    )
    return table(("client, server rate", *(f"{c:g}, {s:g}" for c, s in pairs)), rows)


def _grid_cell(run: Run) -> str:
    return "diverged" if run.diverged else f"{run.final('mean'):.3f}".removeprefix("0")


def _ablation(made: Reproduction) -> str:
    rows = (
        [
            method_title(row["method"]),
            _mean_cell(row),
            *(f"{row[column]:.3f}" for column in ("best10", "worst10", "std")),
            f"{row['conflicts']:.2f}",
        ]
        for row in made.rows(missing=False)
    )
    return table(("variant", *SCORES.values(), "clients in conflict a round"), rows)
