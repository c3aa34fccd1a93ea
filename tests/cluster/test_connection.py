"""Without Ray, with a wrong address: errors that say what to do."""

from __future__ import annotations

import sys

import pytest

from fedcraft.cluster import RayConnection
from fedcraft.engine.executors.choose import ADAPTERS
from fedcraft.errors import ConfigError, MissingExtraError


def test_the_executor_is_found_where_the_engine_looks_for_it():
    assert ADAPTERS["ray"] == "fedcraft.cluster:make_ray_executor"


def test_without_ray_the_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedcraft\[ray\]'"):
        RayConnection("local")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere", "host:port"])
def test_an_address_where_nobody_answers_is_reported_at_once(address):
    with pytest.raises(ConfigError, match=r"ray_address: expected HOST:PORT .* 'ray start --head'"):
        RayConnection(address)
