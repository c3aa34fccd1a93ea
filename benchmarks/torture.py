"""Whether run directories survive damage, races and kills.

    python -m benchmarks.torture [--corruptions 300] [--races 100] [--kills 100] [--json FILE]

* A corruption flips a bit of one file of a run, truncates it, deletes it, or swaps it with another.
  The run is finished, interrupted, or killed between two rounds or within one. Then
  ``fedcraft verify``, ``table`` and ``resume`` are called on it. Each must show what it shows
  without the damage, or name an error; a resumed run must end in the same bits.
* A race is two starts on one new directory. One must run as if it were alone, the other change
  nothing.
* A kill is ``kill -9`` at a random moment. The resumed run must end in the bits and the files of
  one that was never interrupted.

The short forms of these are tests; see ``tests/runs``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

import fedcraft
from fedcraft.cli.app import app
from fedcraft.engine import Callback, Interrupted
from fedcraft.errors import ConfigError
from fedcraft.runs.verify import check

KINDS = ("flip", "truncate", "delete", "swap")
METHODS = ("craft", "fedavg", "fedfv", "ditto+craft", "fedadam", "fedrep")
STATES = ("finished", "interrupted", "killed", "killed in a round")
CONFIG: dict[str, Any] = {
    "dataset": "digits", "clients": 20, "clients_per_round": 5, "batch_size": 16, "rounds": 6,
    "model_options": {"hidden": [16]}, "evaluate_every": 2, "checkpoint_every": 2,
    "diagnostics_every": 1, "executor": "serial", "seed": 3,
}  # fmt: skip
TIMES = ("seconds", "peak_memory_mb")
Outcomes = Iterator[tuple[str, str]]
"""What came of each trial, and what was done in it."""

_MODEL = "model.safetensors"
_DIFFERS, _LEFT_OVER, _FAILED = "differing bits", "left-over files or processes", "failed attempt"


def files_of(directory: Path) -> list[Path]:
    """Return every file of a run but its lock, in order."""
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.name != ".lock")


def corrupt(directory: Path, seed: int) -> str:
    """Damage one file of a directory and return what was done to which; the same for one seed."""
    luck = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    path = luck.choice([file for file in files_of(directory) if file.stat().st_size])
    content = bytearray(path.read_bytes())
    other = luck.choice([f for f in files_of(directory) if f.read_bytes() != bytes(content)])
    if kind == "flip":
        content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
        path.write_bytes(content)
    elif kind == "truncate":
        path.write_bytes(content[: luck.randrange(len(content))])
    elif kind == "delete":
        path.unlink()
    else:
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    named = path.relative_to(directory)
    return f"{kind} {named}" + (f" and {other.relative_to(directory)}" if kind == "swap" else "")


def tables(directory: Path) -> dict[str, object]:
    """Return a run's tables without the timings."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: row[name] for name in row if name not in TIMES} for row in rows]
    texts = {name: (directory / name).read_text() for name in ("clients.csv", "conflicts.csv")}
    return {"metrics": kept, **texts}


def same_run(first: Path, second: Path) -> bool:
    """Tell whether two runs have the same bits: tables and final weights."""
    models = [(path / _MODEL).read_bytes() for path in (first, second)]
    return models[0] == models[1] and tables(first) == tables(second)


def fork(work: Callable[[], object]) -> multiprocessing.process.BaseProcess:
    """Run ``work`` in a forked process, because importing torch takes seconds."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


class _Snapshots(Callback):
    """Copies the directory of a run as a kill would leave it, within a round and after one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def on_evaluate(self, round_number: int, scores: Any) -> None:
        if round_number == 4:
            self._copy("killed in a round")

    def on_round(self, record: Any) -> None:
        if record["round"] == 5:
            self._copy("killed")

    def _copy(self, state: str) -> None:
        shutil.copytree(self.directory, self.directory.with_name(state))


class _Interrupt(Callback):
    def on_round(self, record: Any) -> None:
        if record["round"] == 3:
            os.kill(os.getpid(), signal.SIGINT)


def make_runs(folder: Path) -> None:
    """Make the run that is damaged, in each of ``STATES``."""
    config = {**CONFIG, "method": "ditto+craft"}  # clients that keep states
    finished = folder / "finished"
    fedcraft.run(config, out=finished, callbacks=[_Snapshots(finished)])
    try:
        fedcraft.run(config, out=folder / "interrupted", callbacks=[_Interrupt()])
    except Interrupted:
        return
    raise RuntimeError("the run was not interrupted")


class Corruption:
    """One damaged copy of a run, and what the commands make of it."""

    def __init__(self, source: Path, place: Path, finished: Path) -> None:
        self._place, self._finished = place, finished
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(source, place)
        self._truth = _command("table", str(place), "--json")
        self.what = f"{source.name}: "

    def outcome(self, seed: int) -> str:
        """Damage the copy and return the worst that a command did."""
        done = corrupt(self._place, seed)
        self.what += done
        code, text = _command("verify", str(self._place))
        noticed = code != 0
        if noticed and not any(Path(word).name in text for word in done.split()[1::2]):
            self.what += f"; verify shows {text}"
            return "file not named"
        shown = _command("table", str(self._place), "--json")
        if shown[0] == 0 and shown != self._truth:
            self.what += f"; table shows {shown[1]}"
            return "silent wrong"
        noticed |= shown[0] != 0
        resumed = self._resume()
        return "error" if noticed and resumed == "harmless" else resumed

    def _resume(self) -> str:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            code, text = _command("resume", str(self._place), "--quiet")
        if code:
            return "error"
        left = [found for found in check(self._place) if not found.file.startswith("checkpoints/")]
        if left or not same_run(self._place, self._finished):
            self.what += f"; resumed: {left or text}"
            return "silent wrong"
        return "recovered" if warned else "harmless"


class _Traceback(Exception):
    """A command ended in an error that is not one of its own."""


def _command(*words: str) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise _Traceback(" ".join(words)) from done.exception
    return done.exit_code, done.stdout


def corruptions(count: int, folder: Path, *, first_seed: int = 0) -> Outcomes:
    """Damage runs; yield an outcome and what was done for each."""
    make_runs(folder)
    for seed in range(first_seed, first_seed + count):
        source = folder / STATES[seed // len(KINDS) % len(STATES)]
        case = Corruption(source, folder / "damaged", folder / "finished")
        try:
            yield case.outcome(seed), case.what
        except Exception as error:
            yield "traceback", f"{case.what}: {error!r} from {error.__cause__!r}"


def race(place: Path, alone: dict[str, Path]) -> str:
    """Let two methods start on one new directory; ``one`` if one of them ran as it does alone."""
    gate = multiprocessing.get_context("fork").Barrier(2)

    def work(name: str) -> None:
        gate.wait()
        try:
            fedcraft.run(CONFIG, method=name, rounds=2, out=place)
        except ConfigError:
            os._exit(7)
        os._exit(0)

    started = [fork(partial(work, name)) for name in alone]
    for process in started:
        process.join()
    codes = [process.exitcode for process in started]
    if sorted(map(str, codes)) != ["0", "7"]:
        return f"exit codes {codes}"
    winner = list(alone.values())[codes.index(0)]
    same = (place / "config.toml").read_bytes() == (winner / "config.toml").read_bytes()
    return "one" if same and not check(place) and same_run(place, winner) else "mixed"


def races(count: int, folder: Path) -> Outcomes:
    """Let starts race; yield an outcome and a name for each."""
    alone = {name: folder / name for name in ("craft", "fedavg")}
    for name, place in alone.items():
        fedcraft.run(CONFIG, method=name, rounds=2, out=place)
    for number in range(count):
        place = folder / f"race-{number}"
        yield race(place, alone), place.name
        shutil.rmtree(place)


def descendants(pid: int) -> list[int]:
    """Return the processes below a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    return found + [below for child in found for below in descendants(child)]


def gone(pids: list[int], patience: float = 5.0) -> bool:
    """Wait for processes to end; tell whether all did."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def killed_runs(
    work: Callable[[Path], object], torn: Path, whole: Path, *, kills: int, luck: random.Random
) -> Iterator[str]:
    """Kill ``work`` at random moments; yield after each kill what is wrong with a resumed copy.

    ``whole`` does not exist yet: the work is done there once, uninterrupted, and timed. The killed
    run itself is started again and killed again, so that kills add up; one that finishes before
    its kill makes room for a fresh one.
    """
    started = time.monotonic()
    work(whole)
    seconds, done = time.monotonic() - started, 0
    copy = torn.with_name(f"{torn.name}-resumed")
    while done < kills:
        process = fork(lambda: work(torn))
        time.sleep(luck.uniform(0.0, 0.8 * seconds))
        workers = descendants(process.pid or 0)
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:  # it came to its end before the kill
            if process.exitcode:
                yield _FAILED
            shutil.rmtree(torn)
            continue
        done += 1
        if not gone(workers):
            yield _LEFT_OVER
            continue
        if torn.exists():
            shutil.copytree(torn, copy)
        work(copy)
        yield difference(copy, whole)
        shutil.rmtree(copy)


def difference(torn: Path, whole: Path) -> str:
    """Return what distinguishes a resumed run from one that was never interrupted, if anything."""
    if not same_run(torn, whole):
        return _DIFFERS
    return _LEFT_OVER if left_over(torn, whole) else ""


def left_over(torn: Path, whole: Path) -> list[str]:
    """Return the files of a resumed run that one which was never interrupted does not have."""
    found = {str(path.relative_to(torn)) for path in torn.rglob("*")}
    known = {str(path.relative_to(whole)) for path in whole.rglob("*")}
    return sorted(found - known - {"resumed.json"})


def kills(count: int, folder: Path) -> Outcomes:
    """Kill the runs of ``METHODS`` and resume them; yield an outcome and a name for each kill."""
    for number, name in enumerate(METHODS):
        executor, workers = (("serial", 1), ("processes", 2))[number % 2]
        work = partial(_begin_or_resume, method=name, executor=executor, workers=workers)
        whole, torn = folder / f"{name}-whole", folder / f"{name}-torn"
        share = count * (number + 1) // len(METHODS) - count * number // len(METHODS)
        luck = random.Random(name)
        for problem in killed_runs(work, torn, whole, kills=share, luck=luck):
            yield problem or "same", name


def _begin_or_resume(place: Path, **keys: Any) -> None:
    if (place / "config.toml").exists():
        fedcraft.resume(place)
    else:
        fedcraft.run({**CONFIG, **keys, "rounds": 16, "start_method": "fork"}, out=place)


_GOOD = {
    "corruptions": ("error", "recovered", "harmless"),
    "races": ("one",),
    "kills": ("same",),
}
_BAD = {
    "corruptions": ("silent wrong", "file not named", "traceback"),
    "races": ("mixed",),
    "kills": (_DIFFERS, _LEFT_OVER, _FAILED),
}


def main() -> None:
    """Do all of it, print the counts and write them down."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, count in (("corruptions", 300), ("races", 100), ("kills", 100)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0, help="of the first corruption")
    parser.add_argument("--json", type=Path, default=Path("results/benchmarks/torture.json"))
    options = parser.parse_args()
    counts: dict[str, dict[str, int]] = {}
    shown = Table("trial", "outcome", "count")
    trials: dict[str, Callable[[int, Path], Outcomes]] = {
        "corruptions": partial(corruptions, first_seed=options.seed),
        "races": races,
        "kills": kills,
    }
    for name, trial in trials.items():
        counts[name] = dict.fromkeys((*_GOOD[name], *_BAD[name]), 0)
        found: Counter[str] = Counter()
        with TemporaryDirectory() as folder:
            for outcome, what in trial(getattr(options, name), Path(folder)):
                found[outcome] += 1
                if outcome not in _GOOD[name]:
                    Console(stderr=True).print(f"{outcome}: {what}", markup=False)
        counts[name] |= found
        for outcome, number in counts[name].items():
            shown.add_row(name, outcome, str(number))
    Console().print(shown)
    options.json.write_text(json.dumps(counts, indent=1) + "\n")
    if any(counts[name][o] for name in counts for o in counts[name] if o not in _GOOD[name]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
