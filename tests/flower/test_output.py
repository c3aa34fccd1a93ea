"""Which model clients train from, and which one is evaluated, returned and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small
import torch
from clipping import Clipping
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.grids import InProcessGrid
from fedcraft.errors import InputError
from fedcraft.flower import Strategy

ROUNDS = 3
OPTIONS = {"client_lr": small.LR, "seed": small.SEED, "one_thread": True}


class Watched(Strategy):
    """Keeps the server's vectors after every round."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        done = super().aggregate_train(server_round, replies)
        server = self.state.server
        self.seen = {**getattr(self, "seen", {}), server_round: (server.start, server.output)}
        assert torch.equal(small.vector_of(done[0]), server.theta)  # the last iterate
        return done


class Listening(InProcessGrid):
    """Keeps the model that the messages of every round contain."""

    def __init__(self) -> None:
        super().__init__(small.app(), small.CLIENTS, fault=self._listen)
        self.heard: dict[tuple[str, int], Tensor] = {}

    def _listen(self, question: Message, reply: Message) -> Message:
        number = int(question.content["config"]["server-round"])
        key = question.metadata.message_type, number
        self.heard[key] = small.vector_of(question.content["arrays"])
        return reply


def _shifted(record: ArrayRecord) -> ArrayRecord:
    return ArrayRecord({name: Array(array.numpy() + 1) for name, array in record.items()})


@pytest.mark.parametrize("average", ["none", "tail"])
def test_clients_train_ahead_of_the_model_that_is_evaluated_and_saved(
    average: str, tmp_path: Path
) -> None:
    chosen = Watched(model_average=average, run_dir=tmp_path, evaluate_every=1, **OPTIONS)
    grid, central = Listening(), {}

    def evaluate_fn(number: int, arrays: ArrayRecord) -> None:
        central[number] = small.vector_of(arrays)

    result = chosen.start(grid, small.arrays(), ROUNDS, 5, evaluate_fn=evaluate_fn)
    for number, (start, output) in chosen.seen.items():
        assert not torch.equal(start, output)
        assert torch.equal(grid.heard["evaluate", number], output)
        assert torch.equal(central[number], output)
        if number < ROUNDS:
            assert torch.equal(grid.heard["train", number + 1], start)
    assert torch.equal(small.vector_of(result.arrays), output)
    saved = load_file(tmp_path / "model.safetensors")
    assert torch.equal(torch.cat([saved[name].reshape(-1) for name in result.arrays]), output)
    assert torch.equal(chosen.state.server.theta, output) == (average == "none")


@pytest.mark.parametrize("name", ["craft-auto", "fedavg"])
@pytest.mark.parametrize(
    "options",
    [
        {"model_average": "tail", "look_ahead": 0.5},
        {"model_average": "ema", "server_lr_schedule": "cosine"},
    ],
)
def test_every_option_of_the_server_gives_the_simulators_bits(name: str, options: Any) -> None:
    trained = small.train(name, rounds=ROUNDS, **options)
    assert torch.equal(small.theta(trained), small.simulate(name, rounds=ROUNDS, **options))


def test_a_method_looks_ahead_unless_another_number_is_given() -> None:
    assert Strategy(look_ahead=None).settings.look_ahead == Strategy().settings.look_ahead == "auto"
    assert Strategy(look_ahead=0.0).settings.look_ahead == 0


def test_a_subclass_may_change_the_model_after_a_step() -> None:
    """Training and the average continue from the changed model; clients start ahead of it."""

    class Shifting(Strategy):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            self.changed = _shifted(arrays)
            return self.changed, metrics

    chosen = Shifting(model_average="tail", **OPTIONS)
    grid = Listening()
    chosen.start(grid, small.arrays(), 1, 5)
    model, server = small.vector_of(chosen.changed), chosen.state.server
    assert torch.equal(server.theta, model)
    assert torch.equal(small.vector_of(chosen.state.broadcast), model - server.ahead)
    assert torch.allclose(grid.heard["evaluate", 1], model, atol=1e-6)


def test_a_subclass_may_change_what_clients_train_from() -> None:
    """Their updates are measured from what they received."""

    class Shifting(Strategy):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            given = _shifted(arrays) if server_round == 2 else arrays
            return super().configure_train(server_round, given, config, grid)

    chosen, grid = Shifting(reply="model", **OPTIONS), Listening()
    chosen.start(grid, small.arrays(), 1, 5)
    model, ahead = chosen.state.server.theta, chosen.state.server.ahead
    list(chosen.configure_train(2, chosen.state.broadcast, {}, grid))
    assert torch.equal(chosen.state.sent, model - ahead + 1)
    assert torch.allclose(chosen.state.server.theta, model + 1, atol=1e-6)


def test_a_wrapping_strategy_sees_the_model_that_clients_receive() -> None:
    """It clips updates, so it must know where they start: there is no look-ahead then."""
    wrapped = Clipping(Strategy(**OPTIONS), longest=1e6)
    grid = Listening()
    result = wrapped.start(grid, small.arrays(), ROUNDS)
    plain = small.train("craft-auto", rounds=ROUNDS, look_ahead=0.0)
    assert torch.allclose(small.vector_of(result.arrays), small.theta(plain), atol=1e-5)
    for number in range(1, ROUNDS):
        assert torch.equal(grid.heard["train", number + 1], grid.heard["evaluate", number])


@pytest.mark.parametrize("name", ["run_dir", "model_average", "server_lr_schedule"])
def test_what_a_wrapping_strategy_would_ignore_is_refused(name: str, tmp_path: Path) -> None:
    values = {"run_dir": tmp_path, "model_average": "ema", "server_lr_schedule": "linear"}
    inner = small.strategy("fedavg", **{name: values[name]})
    wrapped = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1.0, small.CLIENTS)
    with pytest.raises(InputError, match=rf"{name}: only start\(\) of this strategy can use"):
        wrapped.start(InProcessGrid(small.app("fedavg"), small.CLIENTS), small.arrays(), 1)
