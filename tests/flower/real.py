"""Real federations for tests: Flower's own processes on loopback, started quickly."""

from __future__ import annotations

import contextlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import warm
from run_federation import HOST, LoopbackFederation, free_port, offline, wait_for

APPS = Path(__file__).parent / "apps"
CLIENTS = 3


class WarmFederation(LoopbackFederation):
    """A loopback federation whose short-lived processes are forked from one that is warm."""

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        fast = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", **(environment or {})}
        super().__init__(home, environment=fast)
        # A socket's path may have 107 bytes, which pytest's folders exceed.
        address = f"/tmp/fedcraft-warm-{os.getpid()}-{self.port}"
        warm.install(str(home / "bin"), address)
        _install_supernode(home / "bin" / "flower-supernode")
        self.start("warm", sys.executable, warm.__file__, "serve", address)
        self.environment["PATH"] = f"{home / 'bin'}{os.pathsep}{self.environment['PATH']}"
        self._address = Path(address)
        wait_for(self._address.exists, 60, "the warm process")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._address.unlink(missing_ok=True)

    def start_all(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Start the SuperLink and register and start nodes, each with its config."""
        self.start_link(database=False)
        self.register(*nodes)
        for name, config in nodes.items():
            self.start_node(name, config)

    def node(self, index: int) -> dict[str, Any]:
        """Return the config of a node."""
        return {"partition-id": index, "state-dir": str(self.home / "states")}

    def restart_node(self, name: str, config: Mapping[str, Any], seconds: float) -> None:
        """Start a node that was killed, again and again until the SuperLink has missed it.

        As long as the SuperLink believes in the old process it refuses a new one with its key.
        """
        joined = self.log(name).count("SuperNode ID")
        self.start_node(name, config)

        def is_back() -> bool:
            if self.log(name).count("SuperNode ID") > joined:
                return True
            if self.processes[name].poll() is not None:
                self.stop(name, hard=True)
                self.start_node(name, config)
            return False

        wait_for(is_back, seconds, f"{name} to be let in again")


def _install_supernode(path: Path) -> None:
    """Write a SuperNode with the shortest heartbeat a SuperLink allows: 10 s instead of 30."""
    path.write_text(
        f"#!{sys.executable}\n"
        "from flwr.supercore import heartbeat\n"
        "from flwr.supernode import fleet_http_connection\n"
        "from flwr.supernode.cli import flower_supernode\n"
        "heartbeat.HEARTBEAT_DEFAULT_INTERVAL = 10\n"
        "fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10\n"
        "flower_supernode()\n"
    )
    path.chmod(0o755)


class Simulation(LoopbackFederation):
    """A SuperLink in simulation mode: what ``flwr run`` starts for a local simulation."""

    def start_link(self, *, database: bool = False) -> None:
        where = ("--host", HOST, "--port", str(self.port))
        self.start("superlink", "flower-superlink", "--insecure", "--simulation", *where)
        config = self.home / "flwr" / "config.toml"
        config.write_text(
            '[superlink]\ndefault = "loopback"\n[superlink.loopback]\n'
            f'address = "{HOST}:{self.port}"\ninsecure = true\n'
        )
        wait_for(self._is_up, 60, "the SuperLink to answer")

    def _is_up(self) -> bool:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=2)
            return True
        return False


__all__ = ["APPS", "CLIENTS", "Simulation", "WarmFederation", "free_port", "offline", "wait_for"]
