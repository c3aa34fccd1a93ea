"""Run directories as the engine writes them, made from a seed instead of from training.

``python tests/report/made_runs.py FOLDER`` writes the whole set, to look at the report by hand.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = ("conv1", "conv2", "fc1", "fc2", "head")


@dataclass(frozen=True)
class Made:
    """The knobs of one made run."""

    method: str = "craft"
    seed: int = 0
    clients: int = 100
    rounds: int = 60
    written: int | None = None  # rounds written so far; None = all
    level: float = 0.7  # mean accuracy it converges to
    speed: float = 12.0  # rounds to get most of the way
    spread: float = 0.15
    client_lr: float = 0.05
    server_lr: float = 1.0
    dataset: str = "cifar10"
    model: str = "cnn"
    state: str = "finished"
    diagnostics: bool = True
    validation: float | None = None  # final mean on validation data; None = no such part
    reason: str = ""


def write_run(folder: Path, made: Made) -> Path:
    """Write one run directory and return it."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([made.seed, *made.method.encode()])
    written = made.rounds if made.written is None else made.written
    _write_config(folder, made)
    _write_status(folder, made, written)
    accuracies = {t: _accuracies(made, t, rng) for t in range(0, written + 1, 5)}
    _write_metrics(folder, made, written, accuracies, rng)
    _write_clients(folder, accuracies, rng)
    _write_labels(folder, made)
    if made.diagnostics:
        _write_conflicts(folder, made, written, rng)
        _write_cosines(folder, made, written)
    return folder


def write_plan(folder: Path, made: Made) -> Path:
    """Write a run directory as it is before the run has started: its configuration alone."""
    folder.mkdir(parents=True)
    _write_config(folder, made)
    return folder


def add_keys(folder: Path, **values: Any) -> None:
    """Write more keys into the configuration of a made run."""
    with (folder / "config.toml").open("a", encoding="utf-8") as stream:
        stream.writelines(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def write_comparison(root: Path, **changes: Any) -> Path:
    """Five methods with two seeds, and Ditto with and without CRAFT over a 3 x 3 grid."""
    methods = {
        "fedavg": (0.60, 22.0, 0.19),
        "fedavgm": (0.65, 16.0, 0.15),
        "config": (0.63, 14.0, 0.16),
        "fedlf-history": (0.66, 11.0, 0.15),
        "craft": (0.73, 8.0, 0.12),
    }
    base = replace(Made(), **changes)
    for name, (level, speed, spread) in methods.items():
        for seed in (0, 1):
            made = replace(base, method=name, seed=seed, level=level, speed=speed, spread=spread)
            write_run(root / f"{name}-s{seed}", made)
    for name, gain in (("ditto", 0.0), ("ditto+craft", 0.06)):
        for i, client_lr in enumerate((0.01, 0.05, 0.1)):
            for j, server_lr in enumerate((0.01, 0.1, 1.0)):
                level = 0.35 + gain + 0.09 * i + 0.05 * j - 0.06 * (i == 2 and j == 2)
                made = replace(
                    base, method=name, level=level, client_lr=client_lr, server_lr=server_lr
                )
                write_run(root / f"{name}-{client_lr}-{server_lr}", made)
    return root


def write_all_methods(root: Path, names: list[str]) -> Path:
    """One short run of every method, to see a crowded report."""
    for place, name in enumerate(names):
        level = 0.4 + 0.3 * place / len(names)
        write_run(root / name, Made(method=name, level=level, rounds=20, clients=40))
    write_run(root / "second seed", Made(method="craft", level=0.75, rounds=20, clients=40, seed=1))
    return root


def _write_config(folder: Path, made: Made) -> None:
    values = {
        "method": made.method,
        "dataset": made.dataset,
        "model": made.model,
        "clients": made.clients,
        "clients_per_round": 10,
        "rounds": made.rounds,
        "client_lr": made.client_lr,
        "server_lr": made.server_lr,
        "batch_size": 50,
        "local_epochs": 1,
        "seed": made.seed,
        "partition": "dirichlet",
        "alpha": 0.1,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    (folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_status(folder: Path, made: Made, written: int) -> None:
    status = {
        "state": made.state,
        "round": written,
        "reason": made.reason,
        "split_hash": f"split-{made.dataset}-{made.clients}-{made.seed}",
        "version": "0.1.0",
    }
    environment = {
        "python": "3.11.2",
        "torch": "2.13.0",
        "platform": "Linux x86_64",
        "cpu": {"cores": 2, "threads": 1},
    }
    (folder / "status.json").write_text(json.dumps(status), encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")


def _accuracies(made: Made, number: int, rng: np.random.Generator) -> np.ndarray:
    """Each client has its own difficulty; all climb towards the method's level."""
    talent = np.random.default_rng([made.seed, 99]).normal(size=made.clients)
    climbed = 1 - np.exp(-number / made.speed)
    centre = 0.1 + (made.level - 0.1) * climbed + rng.normal(scale=0.008)
    noise = rng.normal(scale=0.05, size=made.clients)
    raw = centre + made.spread * (0.3 + 0.7 * climbed) * talent + noise
    return np.round(np.clip(raw, 0, 1) * 40) / 40


def _evaluation(values: np.ndarray, number: int, made: Made) -> dict[str, float]:
    ordered, tenth = np.sort(values), max(1, len(values) // 10)
    validated = {} if made.validation is None else {"validation_mean": made.validation}
    return validated | {
        "train_loss": float(2.3 * np.exp(-number / made.speed / 2) + 0.4),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "best10": float(ordered[-tenth:].mean()),
        "worst10": float(ordered[:tenth].mean()),
        "min": float(ordered[0]),
    }


def _write_metrics(
    folder: Path,
    made: Made,
    written: int,
    accuracies: dict[int, np.ndarray],
    rng: np.random.Generator,
) -> None:
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(written + 1):
            record: dict[str, Any] = {"round": number}
            if number:
                record |= _round(made, number, rng)
            if number in accuracies:
                record["evaluation"] = _evaluation(accuracies[number], number, made)
            stream.write(json.dumps(record) + "\n")


def _round(made: Made, number: int, rng: np.random.Generator) -> dict[str, Any]:
    aligned = made.method in ("craft", "config", "ditto+craft")
    average = int(rng.binomial(10, 0.32))
    return {
        "seconds": {
            "train": float(rng.uniform(0.3, 0.5)),
            "aggregate": float(rng.uniform(0.02, 0.09) * (2 if aligned else 1)),
            "evaluate": 0.15 if number % 5 == 0 else 0.0,
            "idle": float(rng.uniform(0.0, 0.04)),
        },
        "peak_memory_mb": 412.0,
        "clients": sorted(int(c) for c in rng.choice(made.clients, 10, replace=False)),
        "dropped": [],
        "client_lr": made.client_lr * 0.999**number,
        "conflicts": {
            "average": average,
            "reference": int(rng.binomial(10, 0.25)),
            "after": int(rng.binomial(10, 0.02)) if aligned else average,
        },
        "update_norm": float(rng.uniform(0.5, 2.0)),
    }


def _write_clients(
    folder: Path, accuracies: dict[int, np.ndarray], rng: np.random.Generator
) -> None:
    with (folder / "clients.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["round", "client", "split", "metric", "value", "n"])
        for number, values in accuracies.items():
            for client, value in enumerate(values):
                loss = round(float(2.3 * (1 - value) + rng.uniform(0, 0.1)), 4)
                writer.writerow([number, client, "test", "accuracy", float(value), 40])
                writer.writerow([number, client, "train", "loss", loss, 160])


def _write_labels(folder: Path, made: Made) -> None:
    rng = np.random.default_rng([made.seed, 5])
    with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["client", "label", "count"])
        for client in range(made.clients):
            size = int(rng.integers(30, 900))
            counts = rng.multinomial(size, rng.dirichlet([0.1] * 10))
            writer.writerows([client, label, int(n)] for label, n in enumerate(counts) if n)


def _write_conflicts(folder: Path, made: Made, written: int, rng: np.random.Generator) -> None:
    aligned = made.method in ("craft", "config", "ditto+craft")
    names = ["round", "layer", "min_cosine", "mean_cosine", "conflicts_average"]
    names += ["conflicts_reference", "conflicts_after", "residual", "rank", "active"]
    with (folder / "conflicts.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*names, "correction_norm"])
        for number in range(1, written + 1):
            for depth, layer in enumerate((*LAYERS, "all")):
                low = 0.25 - 0.05 * depth if aligned else -0.1 - 0.09 * depth
                cosine = float(np.clip(low + rng.normal(scale=0.12), -1, 1))
                norm = float(1.4 * np.exp(-number / 80) * rng.uniform(0.8, 1.2)) if aligned else 0.0
                row = [number, layer, cosine, cosine + 0.3, 3, 2, 0 if cosine > 0 else 1]
                writer.writerow([*row, 1e-7, 10, 10, norm])


def _write_cosines(folder: Path, made: Made, written: int) -> None:
    """Every tenth round; CRAFT goes against nobody, other methods against the odd clients."""
    lines = ["round,client,layer,cosine"]
    for number in range(10, written + 1, 10):
        for client in range(number % 7, made.clients, 10):
            sign = 1 if made.method == "craft" or client % 2 == 0 else -1
            lines += [f"{number},{client},{layer},{sign * 0.3}" for layer in (*LAYERS, "all")]
    (folder / "cosines.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = [f"{layer},{layer.title()}" for layer in LAYERS]
    (folder / "layers.csv").write_text("\n".join(["layer,name", *names]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_comparison(Path(sys.argv[1]))
