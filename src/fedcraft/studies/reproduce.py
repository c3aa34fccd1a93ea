"""The paper's tables and figures: from stored results in seconds, or from scratch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedcraft
from fedcraft.errors import DataError
from fedcraft.runs import Run
from fedcraft.runs.study import is_study
from fedcraft.studies.presets import ROUNDS, Preset, Scale, preset
from fedcraft.studies.results import beside_published, missing_row, rank_correlation, stored
from fedcraft.studies.robustness import AttackRow, attack_rows
from fedcraft.studies.sweep import SweepResult, carry_out


@dataclass(frozen=True)
class Reproduction:
    """One experiment of the paper: our runs, and the paper's numbers if there are any."""

    preset: Preset
    result: SweepResult
    scale: Scale = "paper"
    only: tuple[str, ...] = ()

    @property
    def methods(self) -> list[str]:
        """The methods of the table in the paper's order: all of the preset, or ``only`` some."""
        return [name for name in self.preset.names if not self.only or name in self.only]

    @property
    def borrowed(self) -> bool:
        """Whether the runs are those of another stored experiment on the same problem."""
        return bool(self.result.runs) and self.result.folder.name == self.preset.until_stored

    @property
    def title(self) -> str:
        """The name of the experiment, with a warning at a smaller scale."""
        name, about = self.preset.name, self.preset.about
        if self.borrowed:
            return f"{name}, as far as {self.result.folder.name} has it: {about}"
        if self.scale == "paper":
            return f"{name}: {about}"
        note = "too few rounds and clients to be compared with the paper"
        return f"{name} at the {self.scale} scale: {note}"

    def rows(self, *, missing: bool = True) -> list[dict[str, Any]]:
        """Return our table in the paper's order, chosen on test data as the paper does.

        A method without runs has a row with the ``state`` "missing", unless ``missing`` is False.
        An experiment on several problems, such as attacks, has a row per problem and method.
        """
        rows = self.result.rows("test")
        if len({row["problem"] for row in rows}) > 1:
            return rows
        found = {row["method"]: row for row in rows}
        shown = [name for name in self.methods if missing or name in found]
        ours = [found.get(name) or missing_row(name) for name in shown]
        return beside_published(ours, self.preset.published) if self.preset.published else ours

    @property
    def attacks(self) -> list[AttackRow]:
        """What hostile clients do to each method; empty if no run has any."""
        rows = attack_rows(self.result.runs)
        return rows if any(row.share for row in rows) else []

    @property
    def whole(self) -> bool:
        """Whether every row is of the paper's scale and of its number of rounds."""
        return self.scale == "paper" and all(row["rounds"] == ROUNDS for row in self.rows())

    def rank_correlation(self) -> float | None:
        """Return how well our order of methods matches the paper's.

        None without the paper's numbers, with too few methods to rank, and where our runs have
        another number of rounds or another scale.
        """
        if not (self.preset.published and self.whole):
            return None
        correlation = rank_correlation(self.rows())
        return None if math.isnan(correlation) else correlation


def from_results(
    name: str, results: str | Path | None = None, methods: Sequence[str] = ()
) -> Reproduction:
    """Read the stored runs of an experiment; ``methods`` keeps only those."""
    chosen = preset(name)
    chosen.chosen(methods)  # refuses a name that it does not know
    if results is not None and not Path(results).is_dir():
        raise DataError(
            f"results: expected a folder of stored results, but {results} does not exist. Leave "
            "it out to read those of the package, or train from scratch with --rerun"
        )
    place = name if is_study(_stored_at(name, results)) else chosen.until_stored or name
    folder = _stored_at(place, results)
    runs = stored_runs(place, results)
    kept = tuple(run for run in runs if run.method in (methods or chosen.names))
    if not kept and not chosen.published:
        raise DataError(
            f"{folder}: no results of {name!r} are stored there. Train from scratch "
            f"with --rerun, or at a smaller scale: fedcraft reproduce {name} --scale small"
        )
    return Reproduction(chosen, SweepResult(folder, kept), only=tuple(methods))


def stored_runs(name: str, results: str | Path | None = None) -> tuple[Run, ...]:
    """Return the runs of an experiment that are stored, none if there are none."""
    folder = _stored_at(name, results)
    return stored(folder).runs if is_study(folder) else ()


def _stored_at(name: str, results: str | Path | None) -> Path:
    return Path(results) / name if results else results_folder(name)


def rerun(
    name: str,
    scale: Scale = "paper",
    *,
    methods: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    override: str = "",
    out: str | Path | None = None,
    **options: Any,
) -> Reproduction:
    """Do all runs of an experiment that are not finished in ``out`` yet.

    ``overrides`` change every run; ``override`` says where they come from. Where the experiment
    asks for it, the best setting of each method is then repeated. Further ``options`` are those of
    :func:`sweep`: with ``known`` runs, such as stored ones, only the others are done.
    """
    chosen = preset(name)
    plan = chosen.plan(scale, methods, override, **(overrides or {}))
    folder = Path(out) if out else Path("runs") / f"{name}-{scale}"
    result = carry_out(plan, chosen.repeats_of(plan), out=folder, **options)
    return Reproduction(chosen, result, scale, tuple(methods))


def results_folder(name: str) -> Path:
    """Return where an experiment is stored: in ``results`` here, or in what was installed."""
    package = Path(fedcraft.__file__).parent
    places = [Path("results"), package / "results", package.parents[1] / "results"]
    return next((place / name for place in places if is_study(place / name)), places[0] / name)
