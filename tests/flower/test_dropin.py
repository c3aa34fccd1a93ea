"""An app written for Flower alone: one import and one line changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import small
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.grids import InProcessGrid
from fedcraft.flower import Strategy

DOCS = Path(__file__).parents[2] / "docs" / "deployment.md"

# An ordinary Flower client that has never heard of fedcraft.
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    module = small.model()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = small.client_data(context).tensors("train")
    optimizer = torch.optim.SGD(module.parameters(), lr=message.content["config"]["lr"])
    for first in range(0, len(labels), 32):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            module(inputs[first : first + 32]), labels[first : first + 32]
        )
        loss.backward()
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"train_loss": loss.item(), "num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    module = small.model()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = small.client_data(context).tensors("test")
    with torch.no_grad():
        outputs = module(inputs)
    metrics = MetricRecord(
        {
            "eval_loss": torch.nn.functional.cross_entropy(outputs, labels).item(),
            "eval_acc": (outputs.argmax(1) == labels).float().mean().item(),
            "num-examples": len(labels),
        }
    )
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


def _blocks() -> tuple[str, str]:
    """Return the server app of the documentation before and after the change."""
    text = DOCS.read_text(encoding="utf-8")
    (diff,) = re.findall(r"```diff\n( # server_app\.py.*?)```", text, flags=re.DOTALL)
    lines = [(line[:1], line[1:]) for line in diff.splitlines()]
    before, after = ([line for mark, line in lines if mark != other] for other in "+-")
    return "\n".join(before), "\n".join(after)


def _main(source: str) -> Callable[..., None]:
    names: dict[str, object] = {"Net": small.model}
    exec(compile(source, "server_app.py", "exec"), names)
    return names["app"]._main  # type: ignore[attr-defined]


def test_the_documented_change_is_one_import_and_one_line() -> None:
    before, after = (block.splitlines() for block in _blocks())
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 2
    assert changed[0][1].startswith("from fedcraft.flower import")
    assert "strategy = " in changed[1][1]


@pytest.mark.parametrize("block", [0, 1])
def test_both_documented_server_apps_train(block: int, capsys: pytest.CaptureFixture[str]) -> None:
    context = Context(1, 1, {}, RecordDict(), {"num-server-rounds": 2, "lr": 0.1})
    _main(_blocks()[block])(InProcessGrid(app, small.CLIENTS), context)


def test_fedavg_by_fedcraft_is_fedavg_by_flower() -> None:
    found = []
    for strategy in (FedAvg(fraction_train=1.0), Strategy("fedavg", fraction_train=1.0)):
        config = ConfigRecord({"lr": 0.1})
        grid = InProcessGrid(app, small.CLIENTS)
        result = strategy.start(grid, small.arrays(), num_rounds=3, train_config=config)
        found.append((small.vector_of(result.arrays), result.evaluate_metrics_clientapp[3]))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6)
    for name in ("eval_acc", "eval_loss"):
        assert found[0][1][name] == pytest.approx(found[1][1][name], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "evaluated", "said"),
    [
        ({}, [5, 7], r"after every 5 rounds and the last \(evaluate_every=1: after every round"),
        ({"evaluate_every": 1}, [1, 2, 3, 4, 5, 6, 7], "after every round"),
        ({"evaluate_every": 0}, [7], "after the last round"),
        ({"fraction_evaluate": 0.0}, [], "none"),
    ],
)
def test_clients_evaluate_when_the_log_says_so(
    options: dict, evaluated: list[int], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An evaluation is another message to every client: by default it is not in every round."""
    strategy = Strategy("fedavg", **options)
    result = strategy.start(
        InProcessGrid(app, 2), small.arrays(), 7, 5, train_config=ConfigRecord({"lr": 0.1})
    )
    assert list(result.evaluate_metrics_clientapp) == evaluated
    assert re.search(f"Evaluation by clients: {said}", caplog.text)


def test_a_foreign_client_is_asked_nothing_it_has_no_function_for() -> None:
    """Neither by the draws of a round, nor by those of an evaluation."""
    kinds: set[str] = set()

    def fault(question: Message, reply: Message) -> Message:
        kinds.add(question.metadata.message_type)
        assert not reply.has_error(), reply.error.reason
        return reply

    chosen = Strategy("craft", fraction_train=0.5, fraction_evaluate=0.5)
    grid = InProcessGrid(app, small.CLIENTS, fault=fault)
    chosen.start(grid, small.arrays(), 3, 5, train_config=ConfigRecord({"lr": 0.1}))
    assert kinds == {"train", "evaluate"}


def test_a_foreign_clients_metrics_reach_the_tables(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    grid = InProcessGrid(app, small.CLIENTS)
    chosen = small.strategy("craft", run_dir=run_dir, evaluate_every=1)
    chosen.start(grid, small.arrays(), 2, 5, train_config=ConfigRecord({"lr": 0.1}))
    rows = (run_dir / "clients.csv").read_text()
    for node in grid.contexts:
        assert f"2,{node},test,accuracy," in rows
        assert f"2,{node},train,train_loss," in rows
    assert small.tables(run_dir)["metrics"][1]["evaluation"]["mean"] > 0


def test_a_method_that_needs_losses_says_what_a_foreign_client_must_send() -> None:
    from fedcraft.errors import ClientError

    chosen = small.strategy("qfedavg", attempts=1)
    with pytest.raises(ClientError, match="'loss-before': expected a number, found nothing"):
        chosen.start(InProcessGrid(app, 2), small.arrays(), 1, 5, ConfigRecord({"lr": 0.1}))


def test_arrays_without_names_are_separate_layers() -> None:
    record = ArrayRecord([p.detach().numpy() for p in small.model().parameters()])
    echo = ClientApp()

    @echo.train()
    def train(message: Message, context: Context) -> Message:
        shifted = [a.numpy() - np.float32(1) for a in message.content["arrays"].values()]
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(shifted), "metrics": metrics})
        return Message(content, reply_to=message)

    chosen = small.strategy("fedavg", model=None, fraction_evaluate=0.0)
    result = chosen.start(InProcessGrid(echo, 2), record, 1, 5)
    assert chosen.state.wire.layout.names == ("0", "1", "2", "3")
    expected = small.vector_of(record) - 1
    assert torch.allclose(small.vector_of(result.arrays), expected, atol=1e-6)
