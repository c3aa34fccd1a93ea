"""The connection of this process to a Ray cluster."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedcraft.errors import ConfigError
from fedcraft.registry import optional

# Ray reports no usage statistics, and a worker keeps the devices it sees.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_LOCAL, _AUTO = "local", "auto"
_ANSWER_SECONDS = 10.0


class RayConnection:
    """A connection to the cluster at ``address``, closed at the end if it was made here.

    ``address`` is ``HOST:PORT``, ``ray://HOST:PORT``, ``auto`` for the cluster this machine belongs
    to, or ``local`` for a private cluster with ``cpus`` CPUs. The default is ``RAY_ADDRESS``, else
    ``local``. A process that is already connected keeps its cluster.
    """

    def __init__(self, address: str | None = None, cpus: int | None = None) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self.ray = optional("ray", "ray")
        self._own = not self.ray.is_initialized()
        if self._own:
            where = address or os.environ.get("RAY_ADDRESS") or _LOCAL
            with _same_signals():
                _connect(self.ray, where, cpus)

    @property
    def cpus(self) -> int:
        """The present number of CPUs of the cluster, at least 1."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 0)))

    @property
    def node(self) -> str:
        """The cluster's name for the machine of this process."""
        found: str = self.ray.get_runtime_context().get_node_id()
        return found

    def close(self) -> None:
        """Disconnect; a cluster that was started here ends."""
        if self._own:
            self._own = False
            with _same_signals():
                self.ray.shutdown()

    def __enter__(self) -> RayConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connect(ray: Any, address: str, cpus: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == _LOCAL:
        options |= {"num_cpus": cpus, "include_dashboard": False}
    try:
        if address not in (_LOCAL, _AUTO):
            _knock(address)
        ray.init(address=address, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"ray_address: expected HOST:PORT of a running Ray cluster, found {address!r}, where "
            f"none answers ({str(error).splitlines()[0]}). Start one with 'ray start --head', or "
            "use 'local'"
        ) from error


def _knock(address: str) -> None:
    """Raise if nothing listens there: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()


@contextmanager
def _same_signals() -> Iterator[None]:
    """Restore the process's signal handlers: Ray replaces the engine's SIGTERM handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
