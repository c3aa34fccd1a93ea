"""What the tests on Flower share: grids without processes, and one real federation on loopback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples" / "flower-app")]

from real import CLIENTS, WarmFederation  # noqa: E402


@pytest.fixture(scope="session")
def real_federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmFederation]:
    """A SuperLink with TLS and authentication and its SuperNodes, started once for all tests."""
    with WarmFederation(tmp_path_factory.mktemp("federation")) as federation:
        federation.start_all({f"node-{i}": federation.node(i) for i in range(CLIENTS)})
        yield federation
