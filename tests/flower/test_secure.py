"""Secure rounds on Flower's messages: the right model, and no update ever leaves a client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from small import CLIENTS, app, arrays, client_data, federation, model, strategy, theta

from benchmarks.grids import InProcessGrid, through_the_wire
from fedcraft.errors import ClientError, InputError
from fedcraft.flower import SecureAnswers, Strategy, client_app
from fedcraft.flower.messages import secure as wire
from fedcraft.secure import Secure
from fedcraft.secure.limits import Limits

OPTIONS = Secure(sketch=1024, refinements=1, most_share=1.0, precision=1e-5)  # exact angles
SUMS = Secure(sketch=0, bound=20.0, most_share=1.0, precision=1e-5)
LIMITS = Limits(most_share=1.0, most_sums=2, least_clients=2)


class RecordingGrid(InProcessGrid):
    """Keeps every reply, and loses nodes from a stage on."""

    def __init__(self, client: Any, lost: dict[str, set[int]] | None = None) -> None:
        super().__init__(client, CLIENTS)
        self.seen: list[tuple[str, int, Any]] = []
        self.lost, self.gone = lost or {}, set()
        self.nodes = list(self.contexts)
        self.fault = self._record

    def _record(self, question: Any, reply: Any) -> Any:
        stage = question.metadata.message_type
        if stage.startswith("query"):
            stage = str(question.content["config"].get(wire.STAGE, stage))
        node = question.metadata.dst_node_id
        self.gone |= {self.nodes[i] for i in self.lost.get(stage, set())}
        if node in self.gone and stage != "evaluate":
            return None
        if reply.has_content():
            self.seen.append((stage, node, reply.content))
        return reply


def secure_run(
    name: str = "craft", rounds: int = 2, lost: Any = None, **options: Any
) -> tuple[Strategy, RecordingGrid]:
    grid = RecordingGrid(app(name, secure=SecureAnswers(LIMITS)), lost)
    chosen = strategy(name, secure=OPTIONS, **options)
    chosen.start(grid, arrays(), rounds, timeout=0.3)
    return chosen, grid


def plain_run(name: str = "craft", rounds: int = 2, clients: Any = None) -> torch.Tensor:
    def only(question: Any, reply: Any) -> Any:
        node = question.metadata.dst_node_id
        return reply if clients is None or nodes.index(node) in clients else None

    grid = InProcessGrid(app(name), CLIENTS)
    nodes, grid.fault = list(grid.contexts), only
    chosen = strategy(name)
    chosen.start(grid, arrays(), rounds, timeout=0.3)
    return theta(chosen)


@pytest.mark.parametrize("name", ["craft", "craft-auto", "fedavg", "scaffold", "fedrep"])
def test_a_secure_run_ends_with_the_model_of_a_plain_one(name):
    trained, _ = secure_run(name)
    start = torch.cat([p.detach().reshape(-1) for p in model().parameters()])
    moved, plain = theta(trained) - start, plain_run(name) - start
    assert float((moved - plain).norm() / plain.norm()) < 0.02


def test_layers_longer_than_the_sketch_and_the_fold_end_with_the_model_of_a_plain_run():
    """Angles are then rough; with as many sums as clients, refinement makes the step exact."""
    limits = Limits(most_share=1.0, most_sums=4, least_clients=2)
    rough = Secure(sketch=16, fold=256, refinements=3, most_share=1.0, precision=1e-5)
    grid = RecordingGrid(app(secure=SecureAnswers(limits)))
    chosen = strategy(secure=rough)
    chosen.start(grid, arrays(), 1, timeout=0.3)
    sizes = chosen.state.wire.layout.sizes
    assert max(sizes) > rough.fold
    sketches = [
        wire.unpack(content[wire.ANSWER])["sketch"]
        for stage, _, content in grid.seen
        if stage == "train"
    ]
    assert {len(found) for found in sketches} == {sum(min(size, 16) for size in sizes)}
    start = torch.cat([p.detach().reshape(-1) for p in model().parameters()])
    moved, plain = theta(chosen) - start, plain_run(rounds=1) - start
    assert float((moved - plain).norm() / plain.norm()) < 0.02


@pytest.mark.parametrize("stage", ["keys", "shares", "train", "dots", "sum", "confirm", "unmask"])
def test_a_client_that_is_lost_at_any_stage_does_not_stop_the_run(stage):
    trained, grid = secure_run(rounds=1, lost={stage: {1}})
    assert grid.gone
    start = torch.cat([p.detach().reshape(-1) for p in model().parameters()])
    arrived = stage in ("dots", "confirm", "unmask")  # its vector was in the sum already
    plain = plain_run(rounds=1, clients=None if arrived else {0, 2, 3}) - start
    moved = theta(trained) - start
    assert float((moved - plain).norm() / plain.norm()) < 0.02


def test_nothing_that_the_server_receives_shows_an_update():
    _, grid = secure_run(rounds=1)
    data = federation()
    assert {stage for stage, _, _ in grid.seen} >= {"keys", "shares", "train", "sum", "unmask"}
    updates = {node: _plain_update(i) for i, node in enumerate(grid.nodes)}
    checked = 0
    for stage, node, content in grid.seen:
        if stage == "evaluate":
            continue
        records = content.array_records
        assert set(records) == {wire.ANSWER}
        for array in wire.unpack(records[wire.ANSWER]).values():
            values = _numbers(array, len(updates[node]))
            if values is not None:
                checked += 1
                assert abs(np.corrcoef(values, updates[node])[0, 1]) < 0.2, stage
    assert checked >= CLIENTS
    assert len(data) == CLIENTS


def test_a_client_of_secure_rounds_refuses_a_server_that_asks_for_its_update():
    grid = InProcessGrid(app(secure=SecureAnswers(LIMITS)), CLIENTS)
    with pytest.raises(ClientError, match="takes part in secure rounds only"):
        strategy(attempts=1).start(grid, arrays(), 1, timeout=0.3)


def test_a_round_that_fails_is_repeated_with_new_keys_and_ends_in_the_same_model():
    """Three of four clients do not unmask at first: the round is tried again."""
    failures = [3]

    class Flaky(RecordingGrid):
        def _record(self, question: Any, reply: Any) -> Any:
            found = super()._record(question, reply)
            stage = question.content.config_records.get("config", {}).get(wire.STAGE)
            if stage == "unmask" and failures[0] > 0:
                failures[0] -= 1
                return None
            return found

    grid = Flaky(app(secure=SecureAnswers(LIMITS)))
    chosen = strategy(secure=OPTIONS)
    chosen.start(grid, arrays(), 1, timeout=0.3)
    start = torch.cat([p.detach().reshape(-1) for p in model().parameters()])
    plain = plain_run(rounds=1) - start
    assert float((theta(chosen) - start - plain).norm() / plain.norm()) < 0.02
    assert failures == [0]


def test_a_server_that_restarts_in_a_round_continues_from_its_checkpoint(tmp_path):
    client = app(secure=SecureAnswers(LIMITS))
    whole, _ = secure_run(rounds=3)
    options = {"secure": OPTIONS, "run_dir": tmp_path / "run", "checkpoint_every": 1}

    class Killed(RecordingGrid):
        rounds = 0

        def _record(self, question: Any, reply: Any) -> Any:
            stage = question.content.config_records.get("config", {}).get(wire.STAGE)
            self.rounds += stage == "keys"
            if stage == "unmask" and self.rounds > CLIENTS:  # in the middle of round 2
                raise KeyboardInterrupt
            return super()._record(question, reply)

    grid = Killed(client)
    with pytest.raises(KeyboardInterrupt):
        strategy(**options).start(grid, arrays(), 3, timeout=0.3)
    again = RecordingGrid(client)
    again.contexts = grid.contexts  # the same nodes, with what they remember
    resumed = strategy(**options)
    resumed.start(again, arrays(), 3, timeout=0.3)
    assert float((theta(resumed) - theta(whole)).norm() / theta(whole).norm()) < 0.02


class TwoFaced(RecordingGrid):
    """Changes the request to train of one node; ``lies`` tells it the hash that it expects."""

    def __init__(self, change: Any, *, lies: bool) -> None:
        super().__init__(app("fedavg", secure=SecureAnswers(LIMITS)))
        self.change, self.lies = change, lies

    def _answer(self, message: Message) -> Message | None:
        node, content = message.metadata.dst_node_id, message.content
        if node == self.nodes[0] and message.metadata.message_type == "train":
            self.change(content)
        asked = content.array_records.get(wire.SAID, {})
        if node == self.nodes[0] and "said" in asked and self.lies:
            asked["said"] = self.contexts[node].state["fedcraft-secure"]["transcript"]
        return super()._answer(message)


def another_rate(content: RecordDict) -> None:
    content["config"]["lr"] = 0.0


def one_more_record(content: RecordDict) -> None:
    content["more"] = ConfigRecord({"lr": 0.0})


def arrays_beside_the_model(content: RecordDict) -> None:
    content["sent.control"] = content["arrays"]


CHANGES = [another_rate, one_more_record, arrays_beside_the_model]


def moved_by(grid: RecordingGrid) -> torch.Tensor:
    chosen = strategy("fedavg", secure=SUMS, attempts=1)
    chosen.start(grid, arrays(), 1, timeout=0.3)
    return theta(chosen) - torch.cat([p.detach().reshape(-1) for p in model().parameters()])


@pytest.mark.parametrize("change", CHANGES)
def test_a_server_that_asks_one_client_for_something_else_gets_no_sum_with_it(change):
    """With a rate of zero for all but one, the sum would be the update of the one."""
    start = torch.cat([p.detach().reshape(-1) for p in model().parameters()])
    others = plain_run("fedavg", rounds=1, clients={1, 2, 3}) - start
    refused = moved_by(TwoFaced(change, lies=False))
    assert float(torch.cosine_similarity(refused, others, dim=0)) > 0.9999
    noise = moved_by(TwoFaced(change, lies=True))  # its masks follow from what it was asked
    assert float(noise.norm()) > 100 * float(others.norm())
    assert abs(float(torch.cosine_similarity(noise, others, dim=0))) < 0.2
    honest = moved_by(TwoFaced(lambda content: None, lies=True))
    plain = plain_run("fedavg", rounds=1) - start
    assert float((honest - plain).norm() / plain.norm()) < 0.02


def request(*configs: dict[str, Any], **records: Any) -> RecordDict:
    named = {f"config-{i}": ConfigRecord(config) for i, config in enumerate(configs)}
    return RecordDict({**named, "arrays": arrays(), **records})


BASE = {"lr": 0.5, "seed": 1, "text": "30", "list": [1, 2]}


@pytest.mark.parametrize(
    "other",
    [
        request({**BASE, "lr": 0.25}),
        request({**BASE, "seed": 1.0}),
        request({**BASE, "seed": True}),
        request({**BASE, "text": b"0"}),
        request({**BASE, "text": b"30"}),
        request({**BASE, "more": 0}),
        request({**BASE, "list": [2, 1]}),
        request(BASE, {}),
        request(BASE, {"lr": 0.5}),
        request(BASE, **{"sent.c": arrays()}),
        RecordDict({"config-0": MetricRecord({"lr": 0.5}), "arrays": arrays()}),
    ],
)
def test_the_hash_of_a_request_covers_all_that_clients_train_with(other):
    assert wire.request_digest(other) != wire.request_digest(request(BASE))


def test_of_two_settings_with_one_name_the_last_holds_and_so_order_is_hashed():
    records = {"a": ConfigRecord({"lr": 0.5}), "b": ConfigRecord({"lr": 0.0})}
    there, back = RecordDict(records), RecordDict(dict(reversed(records.items())))
    assert wire.request_digest(there) != wire.request_digest(back)


def test_a_setting_is_not_a_metric():
    """Clients read their rate from the one and not from the other."""
    setting, metric = ({"x": kind({"lr": 0.5})} for kind in (ConfigRecord, MetricRecord))
    assert wire.request_digest(RecordDict(setting)) != wire.request_digest(RecordDict(metric))


def test_the_hash_of_a_request_is_the_same_for_all_clients_and_on_the_server():
    """Clients differ in the state that they continue from; numbers of NumPy arrive as Python's."""
    plain = wire.request_digest(request(BASE))
    backwards = dict(reversed([*BASE.items(), ("last-round", 3), ("keep-rounds", [3])]))
    own = {"initial-arrays": arrays(), wire.SAID: arrays(), wire.MINE: arrays()}
    assert wire.request_digest(request(backwards, **own)) == plain
    InProcessGrid(app(), CLIENTS)  # gives messages an identity
    sent = Message(request({**BASE, "lr": np.float64(0.5)}), dst_node_id=1, message_type="train")
    arrived = through_the_wire(sent)
    assert wire.request_digest(sent.content) == wire.request_digest(arrived.content) == plain


def test_clients_build_one_model_for_each_request():
    built = []

    def model_fn(context: Any) -> Any:
        built.append(context)
        return model()

    hidden = SecureAnswers(LIMITS)
    grid = RecordingGrid(client_app(model_fn, client_data, "craft", secure=hidden))
    strategy(secure=OPTIONS).start(grid, arrays(), 2, timeout=0.3)
    asked = [stage for stage, _, _ in grid.seen if stage in ("train", "evaluate")]
    assert len(built) == len(asked) >= 2 * CLIENTS


def test_clients_refuse_layers_that_cut_their_tensors(caplog):
    """The length of a layer of one coordinate is that coordinate."""

    class Curious(RecordingGrid):
        def _answer(self, message: Message) -> Message | None:
            if message.metadata.message_type == "train":
                asked = message.content[wire.SAID]
                asked["sizes"] = Array(np.ones(int(asked["sizes"].numpy().sum()), np.int64))
            return super()._answer(message)

    grid = Curious(app(secure=SecureAnswers(LIMITS)))
    with pytest.raises(ClientError), caplog.at_level("WARNING", logger="flwr"):
        strategy(secure=OPTIONS, attempts=1).start(grid, arrays(), 1, timeout=0.3)
    assert caplog.text.count("expected layers of whole tensors") >= CLIENTS
    assert "train" not in {stage for stage, _, _ in grid.seen}


BROKEN = Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=b"not an array")


@pytest.mark.parametrize(
    "content",
    [{"other": ArrayRecord({})}, {wire.ANSWER: ArrayRecord({"public": BROKEN})}],
    ids=["another record", "no array"],
)
@pytest.mark.parametrize("stage", ["keys", "shares", "train", "dots", "sum", "confirm", "unmask"])
def test_an_answer_that_cannot_be_read_is_logged_and_skipped(stage, content, caplog):
    class Garbled(RecordingGrid):
        def _record(self, question: Any, reply: Any) -> Any:
            config = question.content.config_records.get("config", {})
            now = config.get(wire.STAGE, question.metadata.message_type)
            if now == stage and question.metadata.dst_node_id == self.nodes[1]:
                reply.content = RecordDict({**content, **dict(reply.content.metric_records)})
            return super()._record(question, reply)

    grid = Garbled(app(secure=SecureAnswers(LIMITS)))
    chosen = strategy(secure=OPTIONS, attempts=1)
    with caplog.at_level("WARNING", logger="flwr"):
        result = chosen.start(grid, arrays(), 1, timeout=0.3)
    said = "Reply of node {} (client" if stage == "train" else "stage " + stage + ": node {}: "
    assert said.format(grid.nodes[1]) in caplog.text
    arrived = stage in ("dots", "confirm", "unmask")  # its vector was in the sum already
    assert result.train_metrics_clientapp[1]["clients"] == CLIENTS - (not arrived)


@pytest.mark.parametrize("given", [{"limits": 0.5}, {"psk": "abc"}])
def test_answers_with_limits_or_a_key_of_the_wrong_kind_are_errors_at_once(given):
    with pytest.raises(InputError, match=f"SecureAnswers.{next(iter(given))}: expected"):
        SecureAnswers(**given)


def test_options_that_need_single_updates_are_refused():
    with pytest.raises(InputError, match="max_update_norm: expected None with secure"):
        strategy(secure=OPTIONS, max_update_norm=1.0)
    with pytest.raises(InputError, match="reply: expected 'update' with secure"):
        strategy(secure=OPTIONS, reply="model")


@pytest.mark.parametrize("side", ["ServerSide", "ClientSide"])
def test_flowers_central_noise_around_craft_is_refused_and_around_fedavg_is_not(side):
    from flwr.serverapp import strategy as flower

    wrapper = getattr(flower, f"DifferentialPrivacy{side}FixedClipping")
    grid = InProcessGrid(app("craft"), CLIENTS)
    start = {"initial_arrays": arrays(), "num_rounds": 1, "timeout": 0.3}
    with pytest.raises(InputError, match="this gives no privacy"):
        wrapper(strategy("craft"), 1.0, 0.1, CLIENTS).start(grid, **start)
    if side == "ServerSide":
        wrapper(strategy("fedavg", reply="model", weighted_by_key=None), 1.0, 0.1, CLIENTS).start(
            grid, **start
        )


def _plain_update(client: int) -> np.ndarray:
    """What the client would have sent: its update in the plain way."""
    caught: dict[int, np.ndarray] = {}

    def fault(question: Any, reply: Any) -> Any:
        node = list(grid.contexts).index(question.metadata.dst_node_id)
        if question.metadata.message_type == "train" and reply.has_content():
            caught[node] = reply.content["update"]["row"].numpy().copy()
        return reply

    grid = InProcessGrid(app(), CLIENTS, fault=fault)
    strategy().start(grid, arrays(), 1, timeout=0.3)
    return caught[client]


def _numbers(array: np.ndarray, size: int) -> np.ndarray | None:
    """Read an array of at least ``size`` numbers in the width in which it could hold an update."""
    raw = array.tobytes()
    for kind in (np.uint16, np.uint8):
        if len(raw) == size * np.dtype(kind).itemsize:
            return np.frombuffer(raw, kind).astype(float)
    if len(raw) == 3 * size:
        return np.frombuffer(raw, np.uint8).reshape(-1, 3)[:, 2].astype(float)
    return array.astype(float) if array.size == size else None
