"""The small federation of the engine's tests, and how to compare two runs."""

from __future__ import annotations

from tests.engine.conftest import (  # noqa: F401
    federation,
    model,
    run_tables,
    same_bits,
    same_run,
    settings,
)
