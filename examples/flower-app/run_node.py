"""A SuperNode that is watched: it is started again when it, or the process it depends on, is gone.

    python run_node.py --longest 3600 -- flower-supernode --superlink server.example:8000 ...

A SuperNode starts a SuperExec, which starts a process of the app for every message. Two things stop
a node without ending it, and the SuperLink still lists it as online:

* the SuperExec is gone: the SuperNode waits for ever, so all of it is started again;
* a process of the app hangs: it is ended after ``--longest`` seconds. About a minute later the
  SuperNode reports an error for its message and takes the next one.

SIGTERM and Ctrl-C end the SuperNode and this script.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

EXECUTOR, APP = "flower-superexec", "flwr-clientapp"


@dataclass(frozen=True)
class Process:
    """A line of ``ps``."""

    pid: int
    parent: int
    seconds: int
    command: str


def descendants(root: int) -> list[Process]:
    """Return the processes that a process has started, and those that these have started."""
    words = ("ps", "-A", "-ww", "-o", "pid=,ppid=,etime=,args=")  # -ww: whole lines
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    everyone = [_process(line) for line in output.splitlines()]
    found, parents = [], {root}
    while parents:
        children = [process for process in everyone if process.parent in parents]
        found += children
        parents = {child.pid for child in children}
    return found


def _process(line: str) -> Process:
    pid, parent, elapsed, *command = line.split(maxsplit=3)
    days, _, clock = elapsed.rpartition("-")
    hours, minutes, seconds = ([0, 0] + [int(part) for part in clock.split(":")])[-3:]
    age = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return Process(int(pid), int(parent), age, "".join(command))


def is_complete(children: Sequence[Process]) -> bool:
    """Tell whether the SuperNode still has the process that starts the app."""
    return any(EXECUTOR in child.command for child in children)


def end_hanging(children: Sequence[Process], longest: float) -> list[Process]:
    """End processes of the app that have run too long, and return them."""
    hanging = [c for c in children if APP in c.command and c.seconds > longest]
    for process in hanging:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return hanging


def watch(
    words: Sequence[str], *, longest: float, every: float = 5.0, patience: float = 60.0
) -> Iterator[str]:
    """Keep a SuperNode running, and yield a sentence about everything that had to be done.

    ``patience`` is how long a new SuperNode may take until its SuperExec is there. One that ended
    earlier than that is started again after a pause: the SuperLink refuses a second node with the
    same key as long as it believes in the first, which is up to a minute after a crash.
    """
    while True:
        node, started = subprocess.Popen(words), time.monotonic()
        try:
            while node.poll() is None:
                time.sleep(every)
                children = descendants(node.pid)
                for process in end_hanging(children, longest):
                    yield f"ended process {process.pid} of the app after {process.seconds} s"
                if time.monotonic() - started > patience and not is_complete(children):
                    yield f"{EXECUTOR} is gone"
                    break
        finally:
            end(node)
        yield f"the SuperNode has ended with code {node.returncode} and is started again"
        if time.monotonic() - started < patience:
            time.sleep(min(patience, 10.0))


def end(node: subprocess.Popen[bytes]) -> None:
    """End a SuperNode, which tells the SuperLink that it leaves, and what it has started."""
    children = descendants(node.pid)
    node.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.wait(10)
    node.kill()
    node.wait()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Watch until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longest", type=float, default=3600, help="seconds an answer may take")
    parser.add_argument("command", nargs="+", help="after --: flower-supernode and its arguments")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    with contextlib.suppress(KeyboardInterrupt):
        for sentence in watch(options.command, longest=options.longest):
            print(f"run_node: {sentence}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
