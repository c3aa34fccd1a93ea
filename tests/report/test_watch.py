"""The live page: it follows the files, answers this computer only, and changes nothing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedcraft.errors import ConfigError, DataError
from fedcraft.report.watch import LivePage, serve

MakeRun = Callable[..., Path]


@pytest.fixture
def live(make_run: MakeRun, tmp_path: Path) -> LivePage:
    make_run("runs/a", method="fedavg", written=20, state="running", clients=20)
    make_run("runs/b", method="craft", written=20, state="running", clients=20)
    return LivePage(tmp_path / "runs")


@pytest.fixture
def port(live: LivePage) -> Iterator[int]:
    with serve(live, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def ask(port: int, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{port}")
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def now(live: LivePage) -> str:
    """The newest version, without the rest between two pages."""
    live._rest_until = 0.0
    return live.snapshot().version


def test_the_page_is_made_again_only_when_the_files_changed(
    live: LivePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = live.snapshot()
    made = []
    monkeypatch.setattr("fedcraft.report.watch.page", lambda runs, **_: made.append(1) or "new")
    assert now(live) == first.version
    assert made == []
    (live.folder / "b" / "log.txt").write_text("a line that the page does not show\n")
    assert now(live) == first.version
    with (live.folder / "b" / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 21, "evaluation": {"mean": 0.9}}\n')
    assert now(live) != first.version
    assert (made, live.snapshot().html) == ([1], "new")


def test_a_large_page_of_fast_runs_is_not_made_at_every_question(live: LivePage) -> None:
    first = live.snapshot()
    with (live.folder / "b" / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 21, "evaluation": {"mean": 0.9}}\n')
    assert live.snapshot() is first
    assert now(live) != first.version


def test_new_rounds_and_new_runs_appear(live: LivePage, make_run: MakeRun) -> None:
    assert "20 of 60 rounds" in live.snapshot().html
    make_run("runs/c", method="fedavgm", written=25, state="running", clients=20)
    now(live)
    assert "FedAvgM" in live.snapshot().html


def test_a_half_written_run_does_not_break_the_page(live: LivePage) -> None:
    whole = now(live)
    (live.folder / "b" / "config.toml").write_text('method = "cra')
    assert now(live) != whole
    broken = live.snapshot()
    assert "config.toml should be TOML" in broken.problem
    assert "FedAvg" in broken.html
    (live.folder / "a" / "config.toml").write_text('method = "fed')
    now(live)
    assert "Waiting for the first evaluation" in live.snapshot().html


def test_an_empty_folder_waits_for_its_first_run(tmp_path: Path, make_run: MakeRun) -> None:
    live = LivePage(tmp_path)
    assert "No run has started yet" in live.snapshot().html
    make_run("a")
    now(live)
    assert "CRAFT" in live.snapshot().html


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere should be a folder of runs"):
        LivePage(tmp_path / "nowhere")


def test_the_server_serves_the_page_its_version_and_the_files_of_runs(port: int) -> None:
    status, text = ask(port, "/")
    assert (status, 'href="runs/a/"' in text) == (200, True)
    version = json.loads(ask(port, "/version")[1])
    assert f'data-live="{version["version"]}"' in text
    assert version["problem"] == ""
    status, listing = ask(port, "/runs/a/")
    assert (status, 'href="config.toml"' in listing) == (200, True)
    assert ask(port, "/runs/a/config.toml")[1].startswith('method = "fedavg"')


@pytest.mark.parametrize(
    "path",
    [
        "/runs/../../secret.txt",
        "/runs/a/../../../secret.txt",
        "/runs/%2e%2e/secret.txt",
        "/runs/a/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/runs//secret.txt",
        "/runs/a/link.txt",
        "/runs/a/model.safetensors",
        "/secret.txt",
        "/../secret.txt",
    ],
)
def test_nothing_else_is_served(port: int, live: LivePage, path: str) -> None:
    (live.folder.parent / "secret.txt").write_text("secret")
    (live.folder / "secret.txt").write_text("secret")
    (live.folder / "a" / "link.txt").symlink_to(live.folder / "secret.txt")
    (live.folder / "a" / "model.safetensors").write_text("secret")
    status, text = ask(port, path)
    assert (status, "secret" in text) == (404, False)


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1.example.org:80", ""])
def test_other_names_for_this_computer_are_refused(port: int, host: str) -> None:
    assert ask(port, "/", host=host or " ")[0] == 421
    assert ask(port, "/version", host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_the_server_is_read_only(port: int, method: str) -> None:
    assert ask(port, "/", method=method)[0] == 501


def test_the_server_listens_on_this_computer_only(live: LivePage) -> None:
    with serve(live, 0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_named_unless_it_was_not_asked_for(live: LivePage) -> None:
    with serve(live, 0) as server:
        taken = server.server_address[1]
        with pytest.raises(ConfigError, match=rf"--port: {taken} cannot be used"):
            serve(live, taken)
    with serve(live) as first, serve(live) as second:
        assert first.server_address[1] != second.server_address[1]


def test_ctrl_c_ends_the_command_in_order(live: LivePage) -> None:
    command = [sys.executable, "-m", "fedcraft", "watch", str(live.folder), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as watch:
        assert watch.stdout is not None
        address = watch.stdout.readline()
        assert "http://127.0.0.1:" in address
        port = int(address.rstrip("/\n").rpartition(":")[2])
        assert ask(port, "/version")[0] == 200
        watch.send_signal(signal.SIGINT)
        assert watch.stdout.read().endswith("Ended.\n")
    assert watch.returncode == 0
