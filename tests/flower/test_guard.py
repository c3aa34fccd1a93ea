"""A federation with a node that lies about its update and about its size."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
import small
import torch
from flwr.app import Array, Message

from benchmarks.grids import InProcessGrid
from fedcraft.errors import InputError
from fedcraft.flower import Strategy

LIAR = 2


def _lying(reply: Message) -> Message:
    """Minus a hundred times the update, and a billion samples."""
    arrays = reply.content["update"]
    for name in arrays:
        arrays[name] = Array(np.asarray(-100 * arrays[name].numpy(), arrays[name].dtype))
    reply.content["metrics"]["num-examples"] = 10**9
    return reply


def _train(**options: Any) -> Strategy:
    fault = small.corrupting(LIAR, _lying, rounds=tuple(range(1, 99)))
    grid = InProcessGrid(small.app("craft-auto"), small.CLIENTS, fault=fault)
    return small.train("craft-auto", rounds=4, grid=grid, **options)


def test_the_liar_is_left_out_and_named(tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="flwr"):
        trained = _train(guard="default", run_dir=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["left_out"] for row in rows] == [[LIAR]] * 4
    assert f"the guard left out client {LIAR}: update 1" in caplog.text
    assert f"left out {LIAR} (update 1" in (tmp_path / "log.txt").read_text()
    named = [line for line in (tmp_path / "cohorts.csv").read_text().splitlines() if "long" in line]
    assert len(named) == 4
    metrics = trained.state.result.train_metrics_clientapp[4]
    assert metrics["left-out"] == 1


def test_what_is_left_out_does_not_move_the_model() -> None:
    def silent(question: Any, reply: Any) -> Any:
        mine = question.metadata.message_type == "train"
        return None if mine and reply.content["metrics"]["client-id"] == LIAR else reply

    absent = InProcessGrid(small.app("craft-auto"), small.CLIENTS, fault=silent)
    honest = small.train(
        "craft-auto", rounds=4, grid=absent, guard="default", min_train_nodes=4, timeout=1.0
    )
    torch.testing.assert_close(small.theta(_train(guard="default")), small.theta(honest))


def test_craft_caps_claimed_sizes_unless_told_otherwise() -> None:
    assert small.strategy("craft").method.guard.name == "size_cap"
    assert small.strategy("craft-auto").method.guard.name == "size_cap"
    assert small.strategy("fedavg").method.guard.name == "none"
    assert small.strategy("craft", guard="none").method.guard.name == "none"
    assert small.strategy("craft", guard={"name": "krum"}).method.guard.name == "krum"
    with pytest.raises(InputError, match="guard"):
        small.strategy("craft", guard="krumm")


def test_a_guarded_federation_resumes_with_its_memory(tmp_path) -> None:
    whole = small.train("craft", rounds=4, guard="trust", run_dir=tmp_path / "whole")
    small.train("craft", rounds=2, guard="trust", run_dir=tmp_path / "cut")
    resumed = small.train("craft", rounds=4, guard="trust", run_dir=tmp_path / "cut")
    assert torch.equal(small.theta(resumed), small.theta(whole))
