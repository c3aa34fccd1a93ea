"""Client apps and strategies that were written for Flower's FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import small
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from benchmarks.grids import InProcessGrid
from fedcraft.errors import ClientError, InputError
from fedcraft.flower import Strategy

Arrays = dict[str, np.ndarray]
Change = Callable[[Arrays, int], Arrays]


def _a_step(arrays: Arrays, client: int) -> Arrays:
    """Move every float by something that depends on the client."""
    return {
        name: value - ((client + 1) * 0.01 * np.cos(np.arange(value.size)).reshape(value.shape))
        .astype(value.dtype)
        if value.dtype.kind == "f"
        else value
        for name, value in arrays.items()
    }  # fmt: skip


def foreign_app(
    change: Change = _a_step,
    *,
    arrays_name: str = "arrays",
    metrics_name: str = "metrics",
    trained: Callable[[int], dict[str, Any]] = lambda client: {"num-examples": 64},
    tested: Callable[[int], dict[str, Any]] = lambda client: {"num-examples": 64},
) -> ClientApp:
    """Return a ClientApp that knows nothing of fedcraft."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        found = {name: array.numpy() for name, array in message.content["arrays"].items()}
        record = ArrayRecord({n: Array(np.asarray(v)) for n, v in change(found, client).items()})
        said = MetricRecord(trained(client))
        return Message(RecordDict({arrays_name: record, metrics_name: said}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        said = MetricRecord(tested(int(context.node_config["partition-id"])))
        return Message(RecordDict({metrics_name: said}), reply_to=message)

    return app


def federation(app: ClientApp | None = None, **options: Any) -> InProcessGrid:
    return InProcessGrid(app or foreign_app(), 4, **options)


def started(chosen: Strategy, grid: InProcessGrid, rounds: int = 2, **options: Any) -> Any:
    options.setdefault("initial_arrays", small.arrays())
    return chosen.start(grid, num_rounds=rounds, timeout=2, **options)


@pytest.mark.parametrize("named_in", ["train", "evaluate"])
def test_a_client_that_names_itself_once_is_that_client(named_in: str, tmp_path: Path) -> None:
    def said(kind: str) -> Callable[[int], dict[str, Any]]:
        scores = {"num-examples": 64, "eval_acc": 0.5, "eval_loss": 1.0}
        return lambda client: {**scores, "client-id": client} if kind == named_in else scores

    grid = federation(foreign_app(trained=said("train"), tested=said("evaluate")))
    chosen = Strategy("craft", run_dir=tmp_path / "run", evaluate_every=1)
    started(chosen, grid, rounds=3)
    rows = small.tables(tmp_path / "run")["metrics"]
    assert rows[-1]["clients"] == [0, 1, 2, 3]
    assert all("evaluation_problems" not in row for row in rows)
    assert "3,2,test,accuracy,0.5,64" in (tmp_path / "run" / "clients.csv").read_text()


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_who_named_itself_once_is_that_client_after_a_restart(share: float, tmp_path: Path) -> None:
    app = foreign_app(
        trained=lambda client: {"num-examples": 64 + client, "loss-before": 1.0 + client},
        tested=lambda client: {"num-examples": 64, "client-id": 3 - client},
    )
    found = []
    for name, stops in (("whole", [4]), ("resumed", [2, 4])):
        for rounds in stops:
            options = {"run_dir": tmp_path / name, "evaluate_every": 1}
            chosen = Strategy("afl", fraction_train=share, **options)
            result = started(chosen, federation(app), rounds=rounds)
        found.append(result.arrays)
    assert torch.equal(*map(small.vector_of, found))
    whole, resumed = (small.tables(tmp_path / name) for name in ("whole", "resumed"))
    assert whole == resumed


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(4, 4, bias=False) for _ in range(2))
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 3)


def test_tied_weights_move_under_all_their_names() -> None:
    initial = Tied().state_dict()
    for options in ({"model": Tied()}, {}):
        chosen = Strategy("fedavg", fraction_evaluate=0.0, **options)
        result = started(chosen, federation(), initial_arrays=ArrayRecord(initial))
        found = result.arrays.to_torch_state_dict()
        assert torch.equal(found["first.weight"], found["second.weight"])
        assert (found["second.weight"] - initial["second.weight"]).abs().max() > 0.01


def test_a_foreign_record_may_be_called_update() -> None:
    found = [
        started(Strategy("craft", fraction_evaluate=0.0), federation(foreign_app(arrays_name=name)))
        for name in ("arrays", "update")
    ]
    assert torch.equal(*(small.vector_of(result.arrays) for result in found))


def test_a_config_that_was_used_before_does_not_stop_the_clock() -> None:
    numbers = []

    def note(question: Message, reply: Message) -> Message:
        numbers.append(question.content["config"]["server-round"])
        return reply

    used = {"train_config": ConfigRecord({"server-round": 7}),
            "evaluate_config": ConfigRecord({"server-round": 7})}  # fmt: skip
    started(Strategy("craft", evaluate_every=1), federation(fault=note), **used)
    assert numbers == [1] * 8 + [2] * 8


def test_custom_functions_get_the_reports_of_clients() -> None:
    """Under the clients' own names, with NaN where one reports it, and they may return nothing."""
    losses = [0.5, float("nan"), 2.0, 1.0]
    app = foreign_app(
        metrics_name="mine",
        trained=lambda client: {"loss": losses[client], "num-examples": 3, "client-id": client},
        tested=lambda client: {"rmse": losses[client], "num-examples": 3},
    )

    def worst(replies: list[RecordDict], key: str) -> MetricRecord:
        said = [reply["mine"] for reply in replies]
        assert [(record["client-id"], record[key]) for record in said] == [(i, 3) for i in range(4)]
        return MetricRecord({"worst": float(np.nanmax([record["loss"] for record in said]))})

    chosen = Strategy(
        "craft", train_metrics_aggr_fn=worst, evaluate_metrics_aggr_fn=lambda replies, key: None
    )
    result = started(chosen, federation(app))
    assert result.train_metrics_clientapp[2]["worst"] == 2.0
    assert not result.evaluate_metrics_clientapp


def test_a_subclass_can_call_the_functions_that_aggregate_metrics() -> None:
    """As one of Flower's FedAvg does, which has them whether they were given or not."""

    class Calling(Strategy):
        def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
            sent = [reply.content for reply in replies]
            return self.evaluate_metrics_aggr_fn(sent, str(self.weighted_by_key))

    app = foreign_app(tested=lambda client: {"num-examples": 1 + client % 2, "rmse": client / 4})
    result = started(Calling("craft"), federation(app))
    assert result.evaluate_metrics_clientapp[2]["rmse"] == pytest.approx((0 + 0.5 + 0.5 + 1.5) / 6)


class Reading(Strategy):
    """Looks at the replies before it aggregates them, as many do to log them."""

    as_list = False

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        kept = list(replies)
        return super().aggregate_train(server_round, kept if self.as_list else replies)


def test_replies_that_were_read_can_be_passed_on_as_a_list() -> None:
    chosen = Reading("craft", fraction_evaluate=0.0)
    with pytest.raises(InputError, match=r"list\(replies\)"):
        started(chosen, federation())
    chosen.as_list = True
    assert started(chosen, federation()).train_metrics_clientapp[2]["clients"] == 4


def test_replies_can_be_counted_before_they_are_aggregated() -> None:
    class Counting(Strategy):
        counts: ClassVar[list[int]] = []

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            self.counts.append(len(replies))
            return super().aggregate_train(server_round, replies)

    result = started(Counting("craft", fraction_evaluate=0.0), federation())
    assert Counting.counts == [4, 4]
    assert result.train_metrics_clientapp[2]["clients"] == 4


def test_a_round_that_a_subclass_rejects_did_not_happen() -> None:
    class Rejecting(Strategy):
        rejected = False

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            done = super().aggregate_train(server_round, replies)
            if server_round == 2 and not self.rejected:
                self.rejected = True
                return None, None
            return done

    found = []
    for kind in (Strategy, Rejecting):
        chosen = kind("craft", fraction_evaluate=0.0)
        found.append(started(chosen, federation(), rounds=3))
    assert torch.equal(*(small.vector_of(result.arrays) for result in found))


@pytest.mark.parametrize(("healthy", "asked"), [(8, 2), (1, 2)])
def test_a_repeated_round_asks_others_first(healthy: int, asked: int) -> None:
    """Else two broken clients could end a federation of ten, and again after every restart."""
    broken: set[int] = set()
    cohorts: list[set[int]] = []

    def fault(question: Message, reply: Message) -> Message | None:
        node = question.metadata.dst_node_id
        if not cohorts or len(cohorts[-1]) == asked:
            cohorts.append(set())
        cohorts[-1].add(node)
        if len(broken) < asked:
            broken.add(node)  # the first cohort, for ever
        return None if node in broken else reply

    grid = InProcessGrid(foreign_app(), healthy + asked, fault=fault)
    chosen = Strategy("craft", fraction_train=asked / (healthy + asked), fraction_evaluate=0.0)
    chosen.start(grid, small.arrays(), 1, timeout=0.1)
    assert cohorts[0] == broken
    assert len(cohorts) == 2
    assert len(cohorts[1] - broken) == min(healthy, asked)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mask", torch.triu(torch.full((3, 3), -torch.inf), 1))


def _same_mask(arrays: Arrays, client: int) -> Arrays:
    return {**_a_step(arrays, client), "mask": arrays["mask"]}


@pytest.mark.parametrize(
    "options", [{"model": Masked()}, {"model": Masked(), "buffers": "keep"}, {}]
)
def test_a_mask_of_inf_is_a_buffer_like_any_other(options: dict[str, Any]) -> None:
    arrays = ArrayRecord(Masked().state_dict())
    chosen = Strategy("craft", fraction_evaluate=0.0, **options)
    result = started(chosen, federation(foreign_app(_same_mask)), initial_arrays=arrays)
    found = result.arrays.to_torch_state_dict()
    assert torch.equal(found["mask"], Masked().mask)
    assert result.train_metrics_clientapp[2]["clients"] == 4


@pytest.mark.parametrize(("was", "sent"), [(0, np.nan), (-np.inf, np.nan), (-np.inf, np.inf)])
def test_a_mask_that_would_make_nan_of_the_mean_is_refused(was: float, sent: float) -> None:
    def one_spoils(arrays: Arrays, client: int) -> Arrays:
        mask = arrays["mask"]
        bad = np.where((mask == was) & (client == 0), sent, mask).astype(mask.dtype)
        return {**_a_step(arrays, client), "mask": bad}

    arrays = ArrayRecord(Masked().state_dict())
    chosen = Strategy("craft", fraction_evaluate=0.0, model=Masked())
    result = started(chosen, federation(foreign_app(one_spoils)), initial_arrays=arrays)
    assert result.train_metrics_clientapp[2]["refused"] == 1
    assert torch.equal(result.arrays.to_torch_state_dict()["mask"], Masked().mask)


def test_a_model_that_starts_with_nan_is_not_taken_for_a_mask() -> None:
    initial = Masked().state_dict()
    initial["linear.weight"][0, 0] = torch.nan
    chosen = Strategy("craft", fraction_evaluate=0.0, attempts=1)
    with pytest.raises(ClientError, match="NaN"):
        started(chosen, federation(), initial_arrays=ArrayRecord(initial))


def test_buffers_that_the_server_keeps_need_not_be_sent() -> None:
    def without(arrays: Arrays, client: int) -> Arrays:
        return {n: v for n, v in _a_step(arrays, client).items() if n != "mask"}

    arrays = ArrayRecord(Masked().state_dict())
    kept = Strategy("craft", fraction_evaluate=0.0, model=Masked(), buffers="keep")
    result = started(kept, federation(foreign_app(without)), initial_arrays=arrays)
    assert result.train_metrics_clientapp[2]["clients"] == 4
    averaged = Strategy("craft", fraction_evaluate=0.0, model=Masked(), attempts=1)
    with pytest.raises(ClientError, match="'mask' is missing"):
        started(averaged, federation(foreign_app(without)), initial_arrays=arrays)


@pytest.mark.parametrize("key", ["n", None])
def test_evaluations_are_kept_whatever_the_sizes_are_called(
    key: str | None, tmp_path: Path
) -> None:
    sizes = {} if key is None else {key: 20}
    app = foreign_app(
        trained=lambda client: {"train_loss": 1.0, **sizes},
        tested=lambda client: {"eval_acc": client / 4, "eval_loss": 1.0, **sizes},
    )
    started(Strategy("craft", weighted_by_key=key, run_dir=tmp_path / "run"), federation(app))
    last = small.tables(tmp_path / "run")["metrics"][-1]
    assert last["evaluation"]["mean"] == pytest.approx(0.375)


def test_every_number_of_every_client_is_in_the_table(tmp_path: Path) -> None:
    """Also a NaN, which is a client's own affair: its accuracy counts."""
    aucs = [0.5, float("nan"), 0.7, 0.8]
    app = foreign_app(
        tested=lambda client: {
            "accuracy": client / 4,
            "loss": 1.0,
            "auc": aucs[client],
            "num-examples": 9,
            "client-id": client,
        }
    )
    result = started(Strategy("craft", run_dir=tmp_path / "run"), federation(app))
    rows = (tmp_path / "run" / "clients.csv").read_text()
    assert "2,3,test,auc,0.8,9" in rows
    assert "2,1,test,accuracy,0.25,9" in rows
    assert "test,num-examples" not in rows
    assert small.tables(tmp_path / "run")["metrics"][-1]["evaluation"]["mean"] == 0.375
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.375)


@pytest.mark.parametrize("name", ["accuracy", "eval_acc"])
def test_an_accuracy_without_a_loss_is_in_the_table(name: str, tmp_path: Path) -> None:
    said = {name: 0.5, "num-examples": 9}
    app = foreign_app(tested=lambda client: {**said, "client-id": client})
    started(Strategy("craft", run_dir=tmp_path / "run"), federation(app))
    assert "2,3,test,accuracy,0.5,9" in (tmp_path / "run" / "clients.csv").read_text()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_clients_that_change_nothing_are_seen_to_change_nothing(dtype: str) -> None:
    """An update is the model as it was sent minus the reply, not the server's finer one."""
    start = {"w": np.linspace(-1, 1, 2500, dtype=dtype), "v": np.linspace(1, 2, 400, dtype=dtype)}
    moves = []

    def note(question: Message, reply: Message) -> Message:
        moves.append(small.vector_of(question.content["arrays"]).to(torch.float64))
        return reply

    def first_round_only(arrays: Arrays, client: int) -> Arrays:
        return _a_step(arrays, client) if np.array_equal(arrays["w"], start["w"]) else arrays

    grid = federation(foreign_app(first_round_only), fault=note)
    chosen = Strategy("craft", fraction_evaluate=0.0)
    arrays = ArrayRecord({name: Array(value) for name, value in start.items()})
    started(chosen, grid, rounds=4, initial_arrays=arrays)
    assert not torch.equal(moves[0], moves[4])
    assert torch.equal(moves[4], moves[8])
    assert torch.equal(moves[8], moves[12])
