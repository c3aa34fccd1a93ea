"""Flower's own processes on loopback, for benchmarks: no TLS, nothing from the network."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HOST = "127.0.0.1"
_PROJECT = """
[project]
name = "{name}"
version = "1.0.0"
description = "benchmark"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedcraft"
[tool.flwr.app.components]
serverapp = "{name}.server_app:app"
clientapp = "{name}.client_app:app"
[tool.flwr.app.config]
{config}
"""


def write_app(folder: Path, name: str, config: str, server: str, client: str) -> Path:
    """Write a Flower project and return its folder."""
    package = folder / name / name
    package.mkdir(parents=True, exist_ok=True)
    project = _PROJECT.format(name=name, config=config)
    (folder / name / "pyproject.toml").write_text(project, encoding="utf-8")
    (package / "__init__.py").touch()
    (package / "server_app.py").write_text(server, encoding="utf-8")
    (package / "client_app.py").write_text(client, encoding="utf-8")
    return folder / name


def environment(home: Path, port: int) -> dict[str, str]:
    """Write Flower's config for a SuperLink ``link``; return the environment of all processes."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "link"\n[superlink.link]\naddress = "{HOST}:{port}"\n'
        "insecure = true\n"
    )
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }


def start(
    stack: contextlib.ExitStack, words: tuple[str, ...], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process that ends with the stack, as do its children; its output goes to log.txt."""
    with (Path(environment["FLWR_HOME"]) / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            words, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    stack.callback(end)
    return process


def start_link(stack: contextlib.ExitStack, port: int, environment: dict[str, str]) -> None:
    """Start a SuperLink and wait until it answers."""
    link = ("flower-superlink", "--insecure", "--host", HOST, "--port", str(port))
    start(stack, link, environment)
    for _ in range(600):
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=2)
            return
        time.sleep(0.2)
    raise TimeoutError("the SuperLink does not answer")


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
