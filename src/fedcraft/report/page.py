"""The report as one self-contained HTML page, which needs no network and no server."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fedcraft
from fedcraft.report.extras import needs
from fedcraft.report.names import COLOURS, DARK_COLOURS, style
from fedcraft.report.sections import (
    about,
    clients,
    conflicts,
    convergence,
    gains,
    grids,
    one_client,
    published,
    suspects,
    timing,
)
from fedcraft.report.verdict import verdict
from fedcraft.runs import Run
from fedcraft.runs.select import Problem, group, in_order
from fedcraft.runs.summary import (
    METRICS,
    gain_place,
    gain_text,
    interval_text,
    marks,
    note,
    one_seed,
    rows,
    spread,
)

with needs("jinja2"):
    import jinja2

_CHARTS = {
    "convergence": convergence.convergence,
    "distribution": clients.distribution,
    "radar": clients.radar,
    "spread": clients.spread,
    "client": one_client.client_view,
    "gains": gains.gains,
    "conflicts": conflicts.conflicts,
    "rates": grids.learning_rates,
    "labels": grids.labels,
    "timing": timing.timing,
}
_STYLES = ("theme", "layout", "charts", "sheet", "media")
_SCRIPTS = (
    *("core", "tooltip", "lines", "bars", "heat", "radar", "clients", "groups"),
    *("charts", "gains", "diagnostics", "rates", "client", "csv", "page", "live"),
)
_MOST_STEPS_UP = 2


def write_page(
    runs: Iterable[Run],
    path: str | os.PathLike[str],
    baseline: str | None = None,
    *,
    reference: Iterable[Mapping[str, Any]] = (),
) -> Path:
    """Write the report of ``runs`` to ``path`` (one HTML file) and return its path.

    The summary compares every method with ``baseline``, FedAvg if none is named. ``reference`` adds
    published numbers, as in :func:`fedcraft.report.render`.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    link = partial(_relative_link, target.parent.resolve())
    text = page(list(runs), baseline, link=link, reference=list(reference))
    target.write_text(text, encoding="utf-8")
    return target


def page(
    runs: Sequence[Run],
    baseline: str | None = None,
    *,
    link: Callable[[Run], str] = lambda run: "",
    reference: Sequence[Mapping[str, Any]] = (),
    version: str = "",
) -> str:
    """The HTML of the report.

    ``link`` gives the address of a run's folder, empty if there is none. A page with a ``version``
    asks its server for a newer one.
    """
    found = group(runs)
    table = rows(found, baseline)
    problems = [
        _problem_view(
            number,
            problem,
            [row for row in table if row["problem"] == problem.title],
            link,
            reference,
        )
        for number, problem in enumerate(found)
    ]
    looks = {m["key"]: m for view in problems for m in view["methods"]}
    return _template().render(
        problems=problems,
        methods=[looks[method] for method in in_order(looks)],
        data=_script_json([{k: v[k] for k in ("title", "methods", "charts")} for v in problems]),
        metrics=METRICS,
        colours=COLOURS,
        dark_colours=DARK_COLOURS,
        css="\n".join(_asset(f"css/{name}.css") for name in _STYLES),
        js="\n".join(_asset(f"js/{name}.js") for name in _SCRIPTS),
        as_of=_as_of(runs),
        version=fedcraft.__version__,
        live=version,
    )


def waiting_page(message: str, version: str) -> str:
    """A page without results that asks its server for a newer one."""
    return _template("waiting.html.j2").render(
        message=message,
        live=version,
        css="\n".join(_asset(f"css/{name}.css") for name in _STYLES),
        js=_asset("js/live.js"),
    )


def _relative_link(folder: Path, run: Run) -> str:
    """The address of a run's folder for a page in ``folder``, if it is near.

    A longer way up would show folders of the disk, and break as soon as the page is moved.
    """
    if not run.directory.is_dir():
        return ""
    way = Path(os.path.relpath(run.directory.resolve(), folder))
    return "" if way.parts.count("..") > _MOST_STEPS_UP else f"{quote(way.as_posix())}/"


def _problem_view(
    number: int,
    problem: Problem,
    table: list[dict[str, Any]],
    link: Callable[[Run], str],
    reference: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    tried = max(row["settings"] for row in table)
    return {
        "id": f"p{number}",
        "title": problem.title,
        "verdict": verdict(problem, table),
        "facts": _facts(problem, table),
        "methods": [{"key": e.name, "label": e.label, **asdict(style(e))} for e in problem.entries],
        "summary": _summary_rows(table),
        "note": " ".join(filter(None, [note(table), one_seed(table)])),
        "baseline": next((r["label"] for r in table if r["method"] == r["baseline"]), ""),
        "gained": [m for m in METRICS if any(gain_text(row, m) for row in table)],
        "covered": any(interval_text(row, METRICS[0]) for row in table),
        "seeds": max(row["seeds"] for row in table),
        "tried": tried,
        "judge": problem.judge,
        "beside": problem.judge == "validation" and tried > 1,
        "charts": {name: section(problem) for name, section in _CHARTS.items()},
        "suspects": suspects.suspects(problem),
        "configuration": about.configuration(problem),
        "environment": about.environment(problem),
        "runs": about.run_list(problem, link),
        "published": published.published(problem, reference),
    }


def _facts(problem: Problem, table: list[dict[str, Any]]) -> list[str]:
    config = problem.entries[0].chosen.config
    planned = max((e.chosen.planned for e in problem.entries), default=0)
    states = Counter(map(_state, table))
    to_come = sum(len(e.chosen.runs) - len(e.chosen.counted) for e in problem.entries)
    return [
        f"{config.get('clients', '?')} clients, {config.get('clients_per_round', '?')} per round",
        f"{max(row['rounds'] for row in table)} of {planned or '?'} rounds",
        _count(max(row["seeds"] for row in table), "seed"),
        *([f"{_count(to_come, 'run')} not evaluated yet"] if to_come else []),
        *(f"{n} {state}" for state, n in states.most_common() if state != "finished"),
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _state(row: dict[str, Any]) -> str:
    """The progress of a method; diverged takes precedence over stopped."""
    return "diverged" if row["diverged"] else str(row["state"])


def _summary_rows(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    places = {metric.key: marks(table, metric) for metric in METRICS}
    mean, conflicts = METRICS[0], METRICS[-1]
    return [
        {
            "key": row["method"],
            "label": row["label"],
            "cells": [
                {
                    "text": m.text(row[m.key]),
                    "place": places[m.key][i],
                    "name": m.key,
                    "interval": interval_text(row, m),
                }
                for m in METRICS
            ],
            "gains": {
                m.key: {"text": gain_text(row, m), "better": gain_place(row, m)} for m in METRICS
            },
            "mean_sd": spread(row),
            "on_test": mean.text(row["mean_on_test"]),
            "before": conflicts.text(row["conflicts_before"]),
            "rounds": row["rounds"],
            "state": _state(row),
            "rates": f"{row['client_lr']:g} / {row['server_lr']:g}",
        }
        for i, row in enumerate(table)
    ]


def _as_of(runs: Iterable[Run]) -> str:
    """The time of the newest numbers, so that the page of unchanged runs never changes."""
    times = [time for run in runs if (time := run.source.modified()) is not None]
    return f"{datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M} UTC" if times else ""


def _script_json(data: object) -> str:
    """JSON that cannot end its script element, whatever the names of methods and layers."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _asset(name: str) -> str:
    return files("fedcraft.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _template(name: str = "page.html.j2") -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_asset(name))
