"""Ditto with and without CRAFT, pair of rates by pair of rates, for docs/results.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from benchmarks.pages.markdown import rates, table
from fedcraft.runs import Run
from fedcraft.studies.reproduce import Reproduction

__all__ = ["ditto_table", "ditto_verdict"]

Pair = tuple[float, float]
_SCORES = ("mean", "worst10")


def ditto_table(made: Reproduction) -> str:
    """A row a pair of rates: both means, both worst tenths."""
    plain, crafted = _by_rates(made, "ditto"), _by_rates(made, "ditto+craft")
    rows = (
        [
            rates(plain[pair].config),
            *(_cell(runs[pair], score) for score in _SCORES for runs in (plain, crafted)),
        ]
        for pair in sorted(plain)
    )
    heads = ("rates (client, server)", "Ditto, mean", "Ditto+CRAFT, mean")
    return table((*heads, "Ditto, worst 10 %", "Ditto+CRAFT, worst 10 %"), rows)


def ditto_verdict(made: Reproduction) -> str:
    """How often and by how much CRAFT helps, and the best of both."""
    plain, crafted = _by_rates(made, "ditto"), _by_rates(made, "ditto+craft")
    both = [pair for pair in plain if not (plain[pair].diverged or crafted[pair].diverged)]
    gains = [crafted[pair].final("mean") / plain[pair].final("mean") - 1 for pair in both]
    better = sum(gain > 0 for gain in gains)
    return (
        f"* At {len(both)} of {len(plain)} pairs neither diverges. There CRAFT inside has the "
        f"higher mean {better} times, and on average {statistics.fmean(gains):+.1%}.\n"
        f"* The best mean is {_best(plain):.3f} without CRAFT and {_best(crafted):.3f} with it."
    )


def _cell(run: Run, score: str) -> str:
    return "diverged" if run.diverged else f"{run.final(score):.3f}"


def _by_rates(made: Reproduction, method: str) -> dict[Pair, Run]:
    runs = (run for run in made.result.runs if run.method == method)
    return {(run.config.client_lr, run.config.server_lr): run for run in runs}


def _best(runs: Mapping[Pair, Run]) -> float:
    return max(run.final("mean") for run in runs.values() if not run.diverged)
