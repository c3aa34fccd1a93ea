"""``fedcraft compare`` and ``sweep``: many runs, a table, a page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcraft.cli.complete import complete_method
from fedcraft.cli.console import Json, Quiet
from fedcraft.cli.outcome import (
    Baseline,
    Estimate,
    Jobs,
    Page,
    finish,
    print_estimate,
    sweep_bar,
    will_draw,
)
from fedcraft.cli.words import argument, split_words

if TYPE_CHECKING:
    from fedcraft.studies.sweep import SweepResult


def compare(
    words: Annotated[
        list[str] | None,
        argument(
            "[METHOD]... [KEY=VALUE]...",
            "Methods (fedavg, fedavgm, config, craft, craft-auto if none is named) and overrides.",
            complete_method,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file with the problem.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the runs.")] = Path(
        "runs/compare"
    ),
    repeats: Annotated[
        int, typer.Option("--repeats", min=0, help="More seeds for the best rates of each method.")
    ] = 2,
    jobs: Jobs = 0,
    page: Page = None,
    baseline: Baseline = None,
    estimate: Estimate = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare methods on one problem, each at its best rates from the same small grid.

    The rates are chosen on the clients' validation parts, or on their test parts if the problem has
    no validation_fraction; the table is made on their test parts, over the seed of the grid and two
    more (--repeats). Rates that are given, here or in the TOML file, are not searched. Without
    arguments: five methods on scikit-learn's digits over 50 clients, in about a minute.

    Examples:

    * `fedcraft compare`
    * `fedcraft compare craft fedavg fedlf rounds=200`
    * `fedcraft compare craft fedavg client_lr=0.1 server_lr=0.1` (no grid: these rates)
    * `fedcraft compare craft fedavgm grid.server_lr=[0.1,0.3] dataset=femnist`
    """
    from fedcraft.config.toml import COMMAND_LINE
    from fedcraft.runs.summary import require_baseline
    from fedcraft.studies.compare import DEFAULT_METHODS, comparison_plan, further_seeds
    from fedcraft.studies.sweep import carry_out

    names, overrides = split_words(words)
    methods = names or list(DEFAULT_METHODS)
    plan = comparison_plan(methods, config, overrides=overrides, override=COMMAND_LINE)
    seeds = further_seeds(plan, repeats)
    require_baseline(baseline, [run.name for run in plan.configs()])
    if estimate:
        print_estimate(plan.configs(), jobs, as_json, len(seeds))
        return
    page = will_draw(page, quiet)
    with sweep_bar(quiet or as_json) as bar:
        result = carry_out(plan, seeds, out=out, jobs=jobs, observer=bar)
    finish(result, page=page, quiet=quiet, as_json=as_json, baseline=baseline)


def sweep(
    config: Annotated[Path, typer.Argument(help="TOML file with a [grid] table.", exists=True)],
    words: Annotated[
        list[str] | None,
        argument(
            "[KEY=VALUE]...",
            "Overrides, also of the grid's keys; grid.key=[...] changes the grid.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the runs; runs/NAME if left out.")
    ] = None,
    jobs: Jobs = 0,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Do the runs on a Ray cluster: HOST:PORT, auto, or local. All nodes must see the "
            "folder of the runs.",
        ),
    ] = None,
    page: Page = None,
    baseline: Baseline = None,
    estimate: Estimate = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every point of a grid, several at once, and report the best of each method.

    Finished runs are skipped and interrupted ones resumed, so the same command finishes a sweep
    after any interruption. A grid may contain any key, also seeds:

    * `[grid]`
    * `method = ["craft", "fedavg"]`
    * `client_lr = [0.01, 0.1]`
    * `seed = [1, 2, 3]`

    Examples:

    * `fedcraft sweep mine.toml --jobs 2`
    * `fedcraft sweep mine.toml --ray 10.0.0.1:6379 --out /shared/mine`
    """
    from fedcraft.config.toml import COMMAND_LINE, parse_overrides
    from fedcraft.runs.summary import require_baseline
    from fedcraft.studies.plan import Plan

    plan = Plan.read(config, parse_overrides(words or []), COMMAND_LINE)
    require_baseline(baseline, [run.name for run in plan.configs()])
    if estimate:
        print_estimate(plan.configs(), jobs, as_json)
        return
    page = will_draw(page, quiet)
    with sweep_bar(quiet or as_json) as bar:
        work = _sweeper(ray)
        result = work(plan, out=out or Path("runs") / config.stem, jobs=jobs, observer=bar)
    finish(result, page=page, quiet=quiet, as_json=as_json, baseline=baseline)


def _sweeper(ray: str | None) -> Callable[..., SweepResult]:
    """Return the runner of a sweep: local processes, or a cluster."""
    if ray is None:
        from fedcraft.studies.sweep import sweep as locally

        return locally
    from fedcraft.cluster import sweep as remotely

    return partial(remotely, address=ray)
