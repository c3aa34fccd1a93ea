"""Check the paper's theory on random problems and write down how loose each bound is.

    python -m benchmarks.theory [--instances 200] [--out results/theory]

Writes ``instances.csv`` (what was drawn), ``runs.csv`` (left / right of every statement in every
run), ``summary.csv``, ``sweep_rounds.csv``, ``sweep_local_rate.csv`` and ``status.json``. Leaves
with code 1 if any bound is broken.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pages.theory import broken
from benchmarks.theory_study import MODES, Instance, random_instance
from fedcraft.seeds import generator
from fedcraft.theory import (
    LogisticProblem,
    Report,
    Statement,
    check,
    convergence_bound,
    drift_bound,
    random_logistic,
    residual_bound,
    residual_term,
)
from fedcraft.theory.statements import FEASIBLE

Row = dict[str, Any]
SEED = 77
SWEEP_SEEDS = (1, 2, 3)
ROUNDS = tuple(2**power for power in range(4, 12))
LOCAL_RATES = tuple(float(rate) for rate in np.logspace(-3, 0, 10))
VARIANTS: dict[str, Row] = {
    "one step": {"steps": 1},
    "four steps": {"steps": 4},
    "four steps, eta_l = 1/sqrt(T)": {"steps": 4, "decay": True},
    "one step, clipped at 1": {"steps": 1, "clip": 1.0},
    "one step, at least": {"steps": 1, "constraint": "at_least"},
}


def main() -> int:
    arguments = _arguments()
    torch.set_num_threads(1)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    _study(out, arguments.instances)
    write_csv(out / "sweep_rounds.csv", sweep_rounds())
    write_csv(out / "sweep_local_rate.csv", sweep_local_rate())
    failures = broken(out)
    print(f"{failures} bounds broken")
    return int(failures > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("results/theory"))
    return parser.parse_args()


def _study(out: Path, instances: int) -> None:
    runs: list[Row] = []
    found: dict[str, list[Statement]] = {}
    drawn = [random_instance(SEED, index) for index in range(instances)]
    for instance in drawn:
        for mode in MODES:
            report = instance.run(mode)
            runs.append(_run_row(instance, mode, report))
            for statement in report.statements:
                found.setdefault(statement.name, []).append(statement)
    summary = [_summary_row(name, statements) for name, statements in found.items()]
    write_csv(out / "instances.csv", map(_instance_row, drawn))
    write_csv(out / "runs.csv", runs)
    write_csv(out / "summary.csv", summary)
    status = {
        "seed": SEED,
        "instances": instances,
        "runs": len(runs),
        "comparisons": sum(row["places"] for row in summary),
        "nontrivial": sum(row["nontrivial"] for row in summary),
        "broken": sum(row["broken"] for row in summary),
    }
    (out / "status.json").write_text(json.dumps(status, indent=1) + "\n")


def _instance_row(instance: Instance) -> Row:
    row = asdict(instance)
    return {k: "-".join(map(str, v)) if isinstance(v, tuple) else v for k, v in row.items()}


def _run_row(instance: Instance, mode: str, report: Report) -> Row:
    known, norms = report.constants, report.measured.gradient_norms
    return {
        "instance": instance.index,
        "mode": mode,
        "G": known.update_bound,
        "G_f": known.gradient_bound,
        "L": known.smoothness,
        "layer_drift_over_drift": known.layer_drift / known.drift,
        "mean_square": float((norms**2).mean()),
        "mean_norm": float(norms.mean()),
        "broken": sum(statement.broken for statement in report.statements),
        **{statement.name: statement.ratio for statement in report.statements},
    }


def _summary_row(name: str, found: Sequence[Statement]) -> Row:
    tightest = np.array([statement.ratio for statement in found])
    typical = np.array([statement.typical for statement in found])
    quantiles = np.quantile(tightest, [0.1, 0.5, 0.9])
    return {
        "statement": name,
        "where": found[0].where,
        "runs": len(found),
        "places": sum(statement.places for statement in found),
        "nontrivial": sum(statement.nontrivial for statement in found),
        "broken": sum(statement.broken for statement in found),
        "largest_ratio": tightest.max(),
        "ratio_q10": quantiles[0],
        "ratio_median": quantiles[1],
        "ratio_q90": quantiles[2],
        "typical_median": float(np.median(typical)),
        "informative": _mean_share([statement.informative for statement in found]),
    }


def _mean_share(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if known else None


def sweep_rounds() -> Iterator[Row]:
    """T with eta_g = 1 / sqrt(T), for clients that agree and clients that do not."""
    for clients, seed, (variant, options), rounds in _grid(VARIANTS.items(), ROUNDS):
        eta = 1 / math.sqrt(rounds)
        report = check(
            _problem(clients, seed),
            rounds=rounds,
            eta_l=eta if options.get("decay") else 0.1,
            eta_g=eta,
            **{key: value for key, value in options.items() if key != "decay"},
        )
        norms = report.measured.gradient_norms
        yield {
            "clients": clients,
            "seed": seed,
            "variant": variant,
            "rounds": rounds,
            "mean_square": float((norms**2).mean()),
            **_terms(report),
            "G": report.constants.update_bound,
            "smallest_singular_value": report.measured.smallest_singular_values.min(),
            "broken": sum(statement.broken for statement in report.statements),
        }


def sweep_local_rate() -> Iterator[Row]:
    """eta_l at T = 100, eta_g = 0.1, K = (1, 3, 6): the drift and what it costs in descent."""
    for clients, seed, _, eta_l in _grid((None,), LOCAL_RATES):
        problem = _problem(clients, seed)
        report = check(problem, rounds=100, eta_l=eta_l, eta_g=0.1, steps=(1, 3, 6))
        it, known = report.measured, report.constants
        kept = it.client_gradient_norms @ (known.weights * known.targets)
        yield {
            "clients": clients,
            "seed": seed,
            "eta_l": eta_l,
            "client_drift": float(np.linalg.norm(it.drifts, axis=-1).max()),
            "client_drift_bound": drift_bound(known.smoothness, known.gradient_bound, eta_l, 6),
            "lost_descent": float((kept - it.descents.sum(-1)).max()),
            "lost_descent_bound": known.drift * eta_l * (known.max_steps - 1),
            "mean_square": float((it.gradient_norms**2).mean()),
            **_terms(report),
            "broken": sum(statement.broken for statement in report.statements),
        }


def _grid(variants: Iterable[Any], values: Sequence[Any]) -> Iterator[tuple[str, int, Any, Any]]:
    listed = list(variants)
    for clients in ("agree", "conflict"):
        for seed in SWEEP_SEEDS:
            for variant in listed:
                for value in values:
                    yield clients, seed, variant, value


def _problem(clients: str, seed: int) -> LogisticProblem:
    """Three clients in ten dimensions: one separator fits all, or none fits any two."""
    rng = generator(seed, f"theory-sweep-{clients}")
    if clients == "agree":
        return random_logistic(rng, (20, 20, 20), 10, heterogeneity=0.0, noise=0.0)
    return random_logistic(rng, (60, 60, 60), 10, heterogeneity=2.0, noise=0.1)


def _terms(report: Report) -> Row:
    """The bound that applies, term by term: eq. A.2 where U g >= rho, otherwise eq. A.50.

    R_t counts |delta|, so what a step reaches beyond its targets would be charged as if missed.
    """
    it, known = report.measured, report.constants
    start, rates = float(it.run.values[0]), {"eta_l": it.eta_l, "eta_g": it.eta_g}
    if it.deviations.min() >= -FEASIBLE:
        bound = convergence_bound(known, start, rounds=it.run.rounds, **rates)
        return {"where": "Theorem A.4", "bound": bound.total, **asdict(bound)}
    missed = float(np.mean([residual_term(known, row, it.eta_l) for row in it.deviations]))
    bound = residual_bound(known, start, rounds=it.run.rounds, mean_residual=missed, **rates)
    return {"where": "Corollary A.12", "bound": bound.total, **asdict(bound)}


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows with four digits; a column that a row lacks stays empty."""
    listed = [{key: _short(value) for key, value in row.items()} for row in rows]
    columns = list(dict.fromkeys(key for row in listed for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


if __name__ == "__main__":
    raise SystemExit(main())
