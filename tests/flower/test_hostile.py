"""What one client sends outside its update neither ends the run nor changes other clients."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.grids import InProcessGrid
from fedcraft.flower import Strategy, client_app

BAD = 1


def _answering(kind: str, metrics: dict[str, Any] | None):
    """Return a fault: one node's answers of a kind say this instead (None: no metrics at all)."""

    def fault(question: Message, reply: Message) -> Message:
        node = question.metadata.dst_node_id
        if question.metadata.message_type != kind or node != fault.node:
            return reply
        known = dict(reply.content["metrics"]) if "metrics" in reply.content else {}
        said = RecordDict()
        if metrics is not None:
            said = RecordDict({"metrics": MetricRecord({**known, **metrics})})
        for name, arrays in reply.content.array_records.items():
            said[name] = arrays
        return Message(said, reply_to=question)

    return fault


def _grid(name: str, fault: Any) -> InProcessGrid:
    grid = InProcessGrid(small.app(name), small.CLIENTS, fault=fault)
    fault.node = list(grid.contexts)[BAD]
    return grid


@pytest.mark.parametrize("said", [None, {"client-id": -3}, {"client-id": 2}, {"client-id": 0.5}])
def test_a_bad_answer_to_who_are_you_ends_nothing(said: Any) -> None:
    grid = _grid("fedavg", _answering("query", said))
    trained = small.train("fedavg", rounds=4, grid=grid, fraction_train=0.5)
    assert len(trained.state.result.train_metrics_clientapp) == 4


@pytest.mark.parametrize("said", [None, {"loss-before": [1.0]}, {"loss-before": float("inf")}])
def test_a_bad_loss_in_a_line_search_ends_nothing(said: Any) -> None:
    grid = _grid("fedmdfg", _answering("query.loss", said))
    assert torch.isfinite(small.theta(small.train("fedmdfg", rounds=2, grid=grid))).all()


def test_who_misses_one_trial_of_a_step_is_not_waited_for_again() -> None:
    asked: Counter[tuple[int, str]] = Counter()

    def fault(question: Message, reply: Message) -> Message | None:
        kind, node = question.metadata.message_type, question.metadata.dst_node_id
        asked[node, kind] += 1
        silent = kind == "query.loss" and node == fault.node
        return None if silent else reply

    grid = _grid("fedmdfg", fault)
    small.train("fedmdfg", rounds=1, grid=grid, timeout=0.3)
    assert asked[fault.node, "query.loss"] == 1


def test_a_silent_node_is_not_asked_its_name_in_every_phase() -> None:
    names = Counter[int]()

    def fault(question: Message, reply: Message) -> Message | None:
        mine = question.metadata.dst_node_id == fault.node
        names[question.metadata.dst_node_id] += question.metadata.message_type == "query"
        return None if mine else reply

    grid = _grid("fedavg", fault)
    small.train("fedavg", rounds=3, grid=grid, timeout=0.3, fraction_train=0.5, evaluate_every=1)
    assert names[fault.node] == 1


@pytest.mark.parametrize("reply_is_good", [True, False])
def test_the_name_of_a_client_online_cannot_be_taken(reply_is_good: bool, tmp_path: Path) -> None:
    """Neither by a good reply nor by one that is refused; a client not drawn is online too."""
    wrong = {} if reply_is_good else {"num-examples": -1}

    def fault(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train" and reply.content["metrics"]["client-id"] == 1:
            others = {**reply.content["metrics"], "client-id": 3, **wrong}
            reply.content["metrics"] = MetricRecord(others)
        return reply

    grid = InProcessGrid(small.app("fedavg"), small.CLIENTS, fault=fault)
    run_dir = tmp_path / "run"
    trained = small.train("fedavg", rounds=6, grid=grid, fraction_train=0.5, run_dir=run_dir)
    nodes = list(grid.contexts)
    assert [trained.state.clients.client(node) for node in nodes] == [0, 1, 2, 3]
    refused = [r for row in small.tables(run_dir)["metrics"] for r in row["refused"]]
    assert refused
    assert {refusal["node"] for refusal in refused} == {str(nodes[1])}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("train", {"local-loss": [1.0, 2.0]}),
        ("train", {"local-loss": float("nan")}),
        ("evaluate", {"accuracy": [1.0, 2.0]}),
        ("evaluate", {"num-examples": 1e300}),
        ("evaluate", {"train-loss": 1.0, "train-accuracy": 1.0, "train-num-examples": 0.5}),
        ("evaluate", {"eval_acc": -0.01}),
        ("evaluate", {"accuracy": -1e-9}),
        ("evaluate", {"eval_loss": 1e308}),
        ("evaluate", {"loss": -1.7e308, "auc": 1.7e308}),
    ],
)
def test_odd_metrics_end_nothing(kind: str, said: dict[str, Any], tmp_path: Path) -> None:
    grid = _grid("fedavg", _answering(kind, said))
    small.train("fedavg", rounds=2, grid=grid, evaluate_every=1, run_dir=tmp_path / "run")
    assert len(small.tables(tmp_path / "run")["metrics"]) == 2


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"eval_acc": -0.01}, "malformed"),
        ({"eval_acc": 1e30}, "malformed"),
        ({"eval_accuracy": 87.5}, "malformed"),
        ({"accuracy": 2}, "malformed"),
        ({"train-accuracy": 1.1}, "malformed"),
        ({"eval_loss": 1e308}, "malformed"),
        ({"validation-loss": -1e31}, "malformed"),
        ({"loss": float("inf")}, "nonfinite"),
    ],
)
def test_impossible_scores_are_refused_and_counted(
    said: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    grid = _grid("fedavg", _answering("evaluate", said))
    small.train("fedavg", rounds=1, grid=grid, evaluate_every=1, run_dir=tmp_path / "run")
    (row,) = small.tables(tmp_path / "run")["metrics"]
    (refused,) = row["evaluation_problems"]["refused"]
    assert (refused["client"], refused["kind"]) == (BAD, kind)
    assert next(iter(said)) in refused["reason"]
    assert 0 < row["evaluation"]["mean"] <= row["evaluation"]["max"] <= 1
    assert 0 < row["evaluation"]["test_loss"] < 10


def test_a_perfect_score_may_be_off_by_its_rounding(tmp_path: Path) -> None:
    grid = _grid("fedavg", _answering("evaluate", {"accuracy": 1 + 1e-7}))
    small.train("fedavg", rounds=1, grid=grid, evaluate_every=1, run_dir=tmp_path / "run")
    (row,) = small.tables(tmp_path / "run")["metrics"]
    assert "evaluation_problems" not in row


def test_negative_steps_are_refused(tmp_path: Path) -> None:
    grid = _grid("fednova", _answering("train", {"steps": -5}))
    small.train("fednova", rounds=2, grid=grid, run_dir=tmp_path / "run")
    kinds = [row["refused"][0]["kind"] for row in small.tables(tmp_path / "run")["metrics"]]
    assert kinds == ["malformed", "malformed"]


def test_the_order_of_the_first_arrays_does_not_matter() -> None:
    """safetensors sorts by name, and without ``model=`` the server knows no other order."""
    state = small.model().state_dict()
    ordered = {name: state[name] for name in sorted(state)}
    assert list(ordered) != list(state)

    def trained(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        strategy = Strategy("fedavg", client_lr=small.LR, seed=small.SEED, one_thread=True)
        grid = InProcessGrid(small.app("fedavg"), small.CLIENTS)
        return strategy.start(grid, ArrayRecord(arrays), 3, 5.0).arrays.to_torch_state_dict()

    one, other = trained(state), trained(ordered)
    for name in state:
        assert torch.allclose(one[name], other[name], atol=1e-6), name


class _Normed(nn.Module):
    """BatchNorm beside a buffer that is in no state dict."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
        )
        if masked:
            self.register_buffer("mask", torch.ones(10), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs * self.mask if hasattr(self, "mask") else outputs


def test_statistics_arrive_beside_a_buffer_that_does_not_travel() -> None:
    def accuracies(masked: bool) -> list[float]:
        def model(_: object = None) -> nn.Module:
            torch.manual_seed(1)
            return _Normed(masked=masked)

        app = client_app(model, small.client_data, "fedavg", one_thread=True)
        strategy = small.strategy("fedavg", model=model(), evaluate_every=1)
        grid = InProcessGrid(app, small.CLIENTS)
        result = strategy.start(grid, ArrayRecord(model().state_dict()), 4, 5.0)
        return [m["accuracy"] for m in result.evaluate_metrics_clientapp.values()]

    assert accuracies(masked=True) == accuracies(masked=False)


def _kept(grid: InProcessGrid) -> list[int]:
    return [len(context.state.array_records) for context in grid.contexts.values()]


def test_personal_states_do_not_pile_up() -> None:
    """With checkpoints or without, and under Flower's own loop, a client keeps a handful."""
    for options in ({}, {"checkpoint_every": 0}):
        grid = InProcessGrid(small.app("ditto"), small.CLIENTS)
        small.train("ditto", rounds=8, grid=grid, **options)
        assert max(_kept(grid)) <= 3
    grid = InProcessGrid(small.app("ditto"), small.CLIENTS)
    FedAvg.start(small.strategy("ditto"), grid, small.arrays(), 8)  # type: ignore[arg-type]
    assert max(_kept(grid)) <= 3


def test_a_damaged_checkpoint_costs_no_personal_state(tmp_path: Path) -> None:
    """The server goes back to the one before it, and every client still has what it needs."""
    whole = small.train("ditto", rounds=5)
    grid = InProcessGrid(small.app("ditto"), small.CLIENTS)
    small.train("ditto", rounds=3, grid=grid, run_dir=tmp_path)
    newest = max((tmp_path / "checkpoints").iterdir())
    for file in newest.iterdir():
        file.write_bytes(file.read_bytes()[:20])
    again = small.train("ditto", rounds=5, grid=grid, run_dir=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["states_lost"] for row in rows] == [[]] * 5
    assert torch.equal(small.theta(again), small.theta(whole))


def test_the_result_is_the_model_that_was_evaluated_and_saved(tmp_path: Path) -> None:
    """AFL evaluates an average of its iterates."""
    strategy = small.strategy("afl", run_dir=tmp_path)
    grid = InProcessGrid(small.app("afl"), small.CLIENTS)
    result = strategy.start(grid, small.arrays(), 4, 5.0)
    saved = load_file(tmp_path / "model.safetensors")
    for name, value in result.arrays.to_torch_state_dict().items():
        assert torch.equal(value, saved[name]), name


def test_without_training_a_federation_only_evaluates(tmp_path: Path) -> None:
    grid = InProcessGrid(small.app("fedavg"), small.CLIENTS)
    trained = small.train(
        "fedavg", rounds=2, grid=grid, fraction_train=0.0, evaluate_every=1, run_dir=tmp_path
    )
    assert len(trained.state.result.evaluate_metrics_clientapp) == 2
    assert torch.equal(small.theta(trained), small.vector_of(small.arrays()))
