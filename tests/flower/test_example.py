"""The scripts of the example: a federation that shows its progress, and a node that is watched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import run_node
from run_federation import LoopbackFederation

# Stands in for a SuperNode: it writes down its start, and has a SuperExec and a ClientApp.
NODE = """
import pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
wait = "import time; time.sleep(100)"
children = {}
for name in sys.argv[2:]:
    children[name] = subprocess.Popen([sys.executable, "-c", wait, name])
    (folder / name).write_text(str(children[name].pid))
with (folder / "starts").open("a") as file:
    file.write("x")
for child in children.values():
    child.wait()
time.sleep(100)
"""


def _watched(folder: Path, *children: str, longest: float, patience: float) -> Iterator[str]:
    words = (sys.executable, "-c", NODE, str(folder), *children)
    return run_node.watch(words, longest=longest, every=0.1, patience=patience)


def _command(pid: int) -> str:
    words = ("ps", "-ww", "-o", "args=", "-p", str(pid))
    return subprocess.run(words, capture_output=True, text=True).stdout


def test_a_node_without_its_executor_is_started_again(tmp_path: Path) -> None:
    watched = _watched(tmp_path, longest=1000, patience=1.5)
    assert next(watched) == "flower-superexec is gone"
    assert "the SuperNode has ended" in next(watched)
    assert next(watched) == "flower-superexec is gone"
    watched.close()
    assert (tmp_path / "starts").read_text() == "xx"


def test_a_process_of_the_app_that_hangs_is_ended(tmp_path: Path) -> None:
    children = "flower-superexec", "flwr-clientapp"
    watched = _watched(tmp_path, *children, longest=1, patience=100)
    sentence = next(watched)
    executor, app = (int((tmp_path / name).read_text()) for name in children)
    assert sentence.startswith(f"ended process {app} of the app")
    assert "flower-superexec" in _command(executor)
    watched.close()
    assert "flower-superexec" not in _command(executor)


@pytest.mark.parametrize(
    ("elapsed", "seconds"), [("00:07", 7), ("01:02:03", 3723), ("2-00:00:01", 172801)]
)
def test_the_age_of_a_process_is_read_from_ps(elapsed: str, seconds: int) -> None:
    found = run_node._process(f"  12   1  {elapsed} flwr-clientapp --token x")
    assert found == run_node.Process(12, 1, seconds, "flwr-clientapp --token x")


def test_the_log_of_a_run_is_printed_while_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = LoopbackFederation.__new__(LoopbackFederation)
    federation.home, federation.processes, federation.environment = tmp_path, {}, {}
    (tmp_path / "logs").mkdir()
    code = "import time; print('round 1', flush=True); time.sleep(1); print('the end')"
    shown: list[tuple[str, bool]] = []

    def note(text: str, **_: object) -> None:
        running = federation.processes["run"].poll() is None
        shown.extend([(text, running)] if text else [])

    with monkeypatch.context() as patch:
        patch.setattr("builtins.print", note)
        federation.start("run", sys.executable, "-c", code)
        assert federation.follow("run") == 0
    assert shown[0] == ("round 1\n", True)
    assert "".join(text for text, _ in shown) == "round 1\nthe end\n"
