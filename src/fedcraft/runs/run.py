"""``Run``: the configuration, the end, the numbers and the tables of one run."""

from __future__ import annotations

import html
import io
import math
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcraft.config.schema import Config, names_another
from fedcraft.config.toml import CONFIG_FILE, checked
from fedcraft.errors import ConfigError, DataError
from fedcraft.methods import mixture_name
from fedcraft.registry import optional
from fedcraft.runs.source import DirectorySource, RunSource

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import Tensor

_DIVERGED = "not finite"
"""Start of the reason of a diverged run in fedcraft 0.1.0, which had no status field for it."""
_DONE = ("finished", "stopped")
_SCORES = ("mean", "best10", "worst10", "std")


class Run:
    """One run, from its directory or from the tables of a stored study.

    Every file is read once, when it is first needed: make a new ``Run`` to see the progress of a
    run that is still being written. Files are checked against the run's checksums; damage is a
    ``DataError`` that names the file.

    ``clients()``, ``cohorts()``, ``conflicts()``, ``cosines()``, ``labels()`` and ``rounds()``
    return pandas frames; the files behind them (``run.directory / "clients.csv"``) are plain CSV,
    which any program can read. Everything else needs no pandas.

    >>> run = fedcraft.Run("runs/craft-1f2e3d4c5b")      # doctest: +SKIP
    >>> run.final("worst10")                             # doctest: +SKIP
    0.412
    """

    def __init__(self, source: str | os.PathLike[str] | RunSource) -> None:
        if isinstance(source, (str, os.PathLike)):
            source = DirectorySource(Path(source))
        self.source: RunSource = source

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.source == other.source

    def __hash__(self) -> int:
        return hash(self.source)

    @property
    def directory(self) -> Path:
        """The run directory; of a stored run, the study's folder and the name of the run."""
        return self.source.directory

    @cached_property
    def config(self) -> Config:
        """The full configuration of the run."""
        return checked(self._given, str(self.directory / CONFIG_FILE), {}, names=False)

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The keys of the configuration with the defaults of those that it leaves out.

        Runs of Flower, or of another version of fedcraft, may have keys that :class:`Config` does
        not have; these are returned unchanged.
        """
        try:
            return self.config.values()
        except ConfigError:
            return self._given

    @cached_property
    def _given(self) -> dict[str, Any]:
        given = self.source.values()
        if given is None:
            raise ConfigError(f"{self.directory / CONFIG_FILE} does not exist: this is not a run")
        return given

    @property
    def is_run(self) -> bool:
        """Whether there is a configuration of one run; that of a sweep names no method."""
        return "method" in (self.source.values() or {})

    @property
    def method(self) -> str:
        """What tables call this run: its label, or else its method.

        If the label is the name of another method, the name of the run's method is added.
        """
        method, label = str(self._given["method"]), str(self._given.get("label") or "")
        if not label:
            return mixture_name(method, self._given)
        return f"{label} ({method})" if names_another(label, method) else label

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.values.get("seed", 0))

    @cached_property
    def status(self) -> Mapping[str, Any]:
        """The content of status.json; empty before the run has started."""
        return self.source.status()

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``stopped``, ``interrupted``, ``failed``, or ``new``."""
        return str(self.status.get("state", "new"))

    @property
    def done(self) -> bool:
        """Whether the run is complete: all rounds are done, or a stop condition was met."""
        return self.state in _DONE

    @property
    def diverged(self) -> bool:
        """Whether the run ended because a client sent NaN or Inf."""
        reason = str(self.status.get("reason", ""))
        return bool(self.status.get("diverged", reason.startswith(_DIVERGED)))

    @property
    def split_hash(self) -> str | None:
        """The fingerprint of the split into clients, if the run has recorded it."""
        value = self.status.get("split_hash")
        return None if value is None else str(value)

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """The content of environment.json: the machine and the libraries; empty without one."""
        return self.source.environment()

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl in order; of a round written twice, the later one."""
        found = {record["round"]: record for record in self.source.records()}
        return [found[number] for number in sorted(found)]

    @cached_property
    def last_round(self) -> int:
        """The number of completed rounds."""
        written = int(self.records[-1]["round"]) if self.records else 0
        return max(written, int(self.status.get("round", 0))) if self.done else written

    @cached_property
    def evaluations(self) -> dict[int, dict[str, float]]:
        """The finite numbers of each evaluation, by round."""
        found = {r["round"]: r["evaluation"] for r in self.records if r.get("evaluation")}
        return {
            number: {key: float(v) for key, v in scores.items() if _is_number(v)}
            for number, scores in found.items()
        }

    @property
    def evaluation(self) -> Mapping[str, float]:
        """The last evaluation: mean, std, best10, worst10, and the other fairness metrics."""
        return next(reversed(self.evaluations.values()), {})

    def curve(self, metric: str) -> dict[int, float]:
        """Return every evaluated value of ``metric`` by round."""
        return {n: scores[metric] for n, scores in self.evaluations.items() if metric in scores}

    def final(self, metric: str) -> float:
        """Return one number of the last evaluation, NaN if it is missing."""
        return self.evaluation.get(metric, math.nan)

    def accuracies(self, number: int | None = None) -> dict[int, float]:
        """Return the test accuracy of each client after round ``number``.

        By default that is the last evaluation that is complete. Empty if there is none.
        """
        content = self.source.table("clients")
        if content is None:
            return {}
        rounds = _rounds_from_the_end(content, self.directory / "clients.csv")
        if number is not None:
            reached = next((r for r in rounds if r[0] <= number), (number, {}))
            return reached[1] if reached[0] == number else {}
        # The last round of a table without a seal is incomplete if it has fewer rows than the one
        # before.
        last = [found for _, found in islice(rounds, 1 if self.done else 2)]
        return max(last, key=len, default={})

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """The final model by parameter and buffer name, from model.safetensors."""
        return self.source.tensors()

    def clients(self) -> pd.DataFrame:
        """Tidy per-client table: round, client, split, metric, value, n; with owners their name."""
        clients, owners = self._written("clients"), self.frame("owners")
        named: pd.DataFrame = clients.merge(owners, on="client", how="left")
        return named if len(owners) else clients

    def owners(self) -> pd.DataFrame:
        """The owner of the data behind each client: client, name."""
        return self._written("owners")

    def conflicts(self) -> pd.DataFrame:
        """Per-round, per-layer certificate of the steps."""
        return self._written("conflicts")

    def cosines(self) -> pd.DataFrame:
        """Cosine of each client's update with the step: round, client, layer, cosine."""
        return self._written("cosines")

    def cohorts(self) -> pd.DataFrame:
        """Per-round, per-client table: weight, agreement, influence ..., and why it was left out.

        Runs of fedcraft 0.1.0 have none.
        """
        return self._written("cohorts")

    def labels(self) -> pd.DataFrame:
        """How often each client has each label in its training part."""
        return self._written("labels")

    def rounds(self) -> pd.DataFrame:
        """One row per round, nested numbers as dotted columns (``evaluation.mean``)."""
        frame: pd.DataFrame = load_pandas().json_normalize(self.records)
        return frame

    def names(self, table: str) -> dict[Any, str]:
        """Return the names in the table ``owners``, ``classes`` or ``layers``, if it has any."""
        frame = self.frame(table)
        return {} if frame.empty else dict(zip(frame.iloc[:, 0], frame["name"], strict=True))

    def frame(self, name: str) -> pd.DataFrame:
        """Return a table of the run as a frame, an empty one if the run has not written it."""
        return self._parsed(name, self.source.table(name) or b"client,name\n")

    def _written(self, name: str) -> pd.DataFrame:
        content = self.source.table(name)
        if content is None:
            raise DataError(
                f"{self.directory / name}.csv does not exist; the run is {self.state} and has not "
                "written it"
            )
        return self._parsed(name, content)

    def _parsed(self, name: str, content: bytes) -> pd.DataFrame:
        # A name is text, also NA or 007.
        options: dict[str, Any] = {"dtype": {"name": str, "layer": str}}
        options["keep_default_na"] = name not in ("owners", "classes", "layers")
        try:
            frame: pd.DataFrame = load_pandas().read_csv(io.BytesIO(content), **options)
        except ValueError as error:
            path = self.directory / f"{name}.csv"
            raise DataError(f"{path} should be a CSV table, but: {error}") from error
        return frame

    def plot(self, metric: str = "mean", ax: Axes | None = None) -> Axes:
        """Draw ``metric`` by round and return matplotlib's axes."""
        optional("matplotlib", "report")
        from matplotlib import pyplot

        points = self.curve(metric)
        if not points:
            known = ", ".join(self.evaluation) or "none, there is no evaluation yet"
            raise DataError(f"metric: expected one that was evaluated ({known}), found {metric!r}")
        axes = ax if ax is not None else pyplot.subplots()[1]
        axes.plot(list(points), list(points.values()), label=self.method)
        axes.set(xlabel="round", ylabel=metric)
        return axes

    def _about(self) -> dict[str, str]:
        scores = {key: f"{self.final(key):.3f}" for key in _SCORES if key in self.evaluation}
        state = "diverged" if self.diverged else self.state
        place = {"round": f"{self.last_round}/{self.values.get('rounds', '?')}", "state": state}
        return {"method": self.method, **place, **scores, "directory": str(self.directory)}

    def __repr__(self) -> str:
        try:
            about = ", ".join(f"{key}={value}" for key, value in self._about().items())
        except (DataError, ConfigError) as error:  # a repr must not raise
            about = f"{self.directory}: {error}"
        return f"Run({about})"

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for key, value in self._about().items()
        )
        return f"<table>{cells}</table>"


def _rounds_from_the_end(content: bytes, path: Path) -> Iterator[tuple[int, dict[int, float]]]:
    """Yield each round with the test accuracies of its clients, the last round first."""
    for number, rows in groupby(_from_the_end(content, path), key=itemgetter(0)):
        backwards = [(client, value) for _, client, value in rows]
        yield number, dict(sorted(dict(reversed(backwards)).items()))


def _from_the_end(content: bytes, path: Path) -> Iterator[tuple[int, int, float]]:
    """Yield round, client and test accuracy, last row first: tables of long runs are large."""
    end = len(content)
    while end > 0:
        start = content.rfind(b"\n", 0, end - 1) + 1
        if start == 0:
            return  # the header
        row = _client_row(content[start:end], path)
        if row is not None:
            yield row
        end = start


def _client_row(line: bytes, path: Path) -> tuple[int, int, float] | None:
    """Return round, client and value of a row about test accuracy, ``None`` of another one."""
    try:
        number, client, split, metric, value, _ = line.decode().rstrip("\r\n").split(",")
        found = int(number), int(client), float(value)
    except ValueError as error:
        raise DataError(f"{path} is damaged: {line!r} is not a row of it") from error
    return found if (split, metric) == ("test", "accuracy") else None


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value)


def load_pandas() -> Any:
    """Import pandas, or raise an error that says how to install it."""
    return optional("pandas", "report")
