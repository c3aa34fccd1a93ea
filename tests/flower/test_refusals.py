"""Replies that must not count: each is refused with its node and reason; the round continues."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import small
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord

from benchmarks.grids import InProcessGrid
from fedcraft.errors import ClientError

BAD = 1


def _arrays(reply: Message) -> ArrayRecord:
    return reply.content["arrays"]


def _nan(reply: Message) -> Message:
    values = _arrays(reply)["1.bias"].numpy()
    values[3] = np.nan
    _arrays(reply)["1.bias"] = Array(values)
    return reply


def _set(name: str, array: Array):
    def change(reply: Message) -> Message:
        _arrays(reply)[name] = array
        return reply

    return change


def _metric(name: str, value):
    def change(reply: Message) -> Message:
        metrics = {**reply.content["metrics"], name: value}
        if value is None:
            del metrics[name]
        reply.content["metrics"] = MetricRecord(metrics)
        return reply

    return change


def _drop_array(reply: Message) -> Message:
    del _arrays(reply)["1.bias"]
    return reply


def _two_records(reply: Message) -> Message:
    reply.content["more"] = ArrayRecord([np.ones(2)])
    return reply


def _no_metrics(reply: Message) -> Message:
    del reply.content["metrics"]
    return reply


def _lying_header() -> Array:
    honest = Array(np.zeros(8, np.float32))
    return Array("float32", (8,), "numpy.ndarray", honest.data[:-4])


def _bytes(data: bytes):
    return _set("1.bias", Array("float32", (8,), "numpy.ndarray", data))


def _header(text: str, version: bytes = b"\x01\x00") -> bytes:
    size = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + text.encode()


def _npz() -> bytes:
    buffer = BytesIO()
    np.savez(buffer, np.zeros(8, np.float32))
    return buffer.getvalue()


_HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}"
CASES = {
    **{
        name: (_bytes(data), "malformed", "not a readable array")
        for name, data in {
            "half a zip": b"PK\x03\x04garbage",
            "a zip": _npz(),
            "half a header": _header("{"),
            "a deep header": _header("-" * 9000 + "1"),
            "a huge shape": _header(_HUGE),
            "a huge shape, version 2": _header(_HUGE, b"\x02\x00"),
        }.items()
    },
    "NaN": (_nan, "nonfinite", "NaN or Inf"),
    "wrong shape": (_set("1.bias", Array(np.zeros(9, np.float32))), "malformed", r"shape \(8,\)"),
    "wrong dtype": (_set("1.bias", Array(np.zeros(8))), "malformed", "expected float32"),
    "integers": (_set("1.bias", Array(np.zeros(8, np.int32))), "malformed", "expected float32"),
    "garbage": (
        _set("1.bias", Array("float32", (8,), "numpy.ndarray", b"garbage")),
        "malformed",
        "not a readable array",
    ),
    "short": (_set("1.bias", _lying_header()), "malformed", "not a readable array"),
    "foreign": (
        _set("1.bias", Array("float32", (8,), "pickle", b"")),
        "malformed",
        "serialised as",
    ),
    "missing array": (_drop_array, "malformed", "'1.bias' is missing"),
    "two records": (_two_records, "malformed", "expected one ArrayRecord, found 2"),
    "no metrics": (_no_metrics, "malformed", "expected one MetricRecord, found 0"),
    "no size": (_metric("num-examples", None), "malformed", "'num-examples': expected a number"),
    "negative size": (_metric("num-examples", -1), "malformed", "expected 0 to"),
    "no samples": (_metric("num-examples", 0), "malformed", "expected > 0"),
    "too large a size": (_metric("num-examples", 1.7e308), "malformed", "expected 0 to"),
    "infinite size": (_metric("num-examples", np.inf), "nonfinite", "num-examples"),
    "list as size": (_metric("num-examples", [1, 2]), "malformed", "found list"),
    "loss NaN": (_metric("loss-before", np.nan), "nonfinite", "loss-before"),
    "negative loss": (_metric("loss-before", -1.0), "malformed", "expected 0 to"),
    "huge loss": (_metric("loss-before", 1e300), "malformed", "expected 0 to"),
    "no loss": (_metric("loss-before", None), "malformed", "'loss-before': expected a number"),
    "odd name": (_metric("client-id", -3), "malformed", "whole number >= 0"),
    "other's name": (_metric("client-id", 2), "malformed", "calls itself client 2"),
}


def _federation(change, rounds=(2,)) -> InProcessGrid:
    fault = small.corrupting(BAD, change, rounds=rounds)
    return InProcessGrid(small.app("fedfv"), small.CLIENTS, fault=fault)


@pytest.mark.parametrize("case", CASES)
def test_a_bad_reply_is_refused_counted_and_named(case: str, tmp_path) -> None:
    change, kind, reason = CASES[case]
    grid = _federation(change)
    trained = small.train("fedfv", rounds=3, grid=grid, run_dir=tmp_path / "run", reply="model")
    first, second, third = small.tables(tmp_path / "run")["metrics"]
    assert first["refused"] == third["refused"] == []
    assert third["clients"] == [0, 1, 2, 3]
    (refused,) = second["refused"]
    assert refused["node"] == str(list(grid.contexts)[BAD])
    assert refused["kind"] == kind
    assert torch.isfinite(small.theta(trained)).all()
    import re

    assert re.search(reason, refused["reason"])


def test_without_the_refused_the_round_is_that_of_the_others() -> None:
    """The weights are renormalised over the good replies, as if the other had not been asked."""
    grid = InProcessGrid(
        small.app("fedavg"), small.CLIENTS, fault=small.corrupting(BAD, _nan, rounds=(1,))
    )
    refused = small.train("fedavg", rounds=1, grid=grid, reply="model")
    rows = refused.state.updates.accepted
    weights = torch.tensor([reply.weight for reply in rows])
    matrix = refused.state.updates.sort()
    expected = small.vector_of(small.arrays()) - (weights / weights.sum()) @ matrix
    assert [reply.client for reply in rows] == [0, 2, 3]
    assert torch.allclose(small.theta(refused), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (np.zeros(5, np.float32), "expected shape"),
        (np.zeros(610), "expected float32"),
        (np.full(610, np.inf, np.float32), "NaN or Inf"),
        (None, "is missing"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row, reason: str, tmp_path) -> None:
    def change(reply: Message) -> Message:
        reply.content["update"] = ArrayRecord({} if row is None else {"row": Array(row)})
        return reply

    assert sum(p.numel() for p in small.model().parameters()) == 610
    small.train("fedfv", rounds=2, grid=_federation(change), run_dir=tmp_path / "run")
    (refused,) = small.tables(tmp_path / "run")["metrics"][1]["refused"]
    assert reason in refused["reason"]


def test_a_client_that_raises_is_refused_with_its_own_words() -> None:
    def fault(question: Message, reply: Message) -> Message:
        return Message(Error(code=0, reason="out of cheese"), reply_to=question)

    grid = _federation(lambda reply: reply)
    grid.fault = fault
    with pytest.raises(ClientError, match=r"min_clients = 1 good replies in 2 attempts.*cheese"):
        small.train("fedfv", grid=grid, attempts=2)


def test_silence_ends_with_the_deadline_and_is_counted(tmp_path) -> None:
    grid = _federation(lambda reply: None)
    small.train("fedfv", rounds=3, grid=grid, timeout=0.3, run_dir=tmp_path / "run")
    rows = small.tables(tmp_path / "run")["metrics"]
    assert [row["missing"] for row in rows] == [[], [BAD], []]
    assert [row["clients"] for row in rows] == [[0, 1, 2, 3], [0, 2, 3], [0, 1, 2, 3]]


def test_a_late_reply_enters_no_other_round(tmp_path) -> None:
    """It is still there when round 2 asks, and must not be taken for an answer to it."""
    held: list[Message] = []

    def hold(reply: Message) -> None:
        held.append(reply)

    grid = _federation(hold, rounds=(1,))
    late = small.strategy("fedavg")
    honest = grid.push_messages

    def push(messages):
        if held:
            grid.replies["message-from-round-1"] = held.pop()
        return honest(messages)

    grid.push_messages = push
    late.start(grid, small.arrays(), 2, 0.3)
    assert list(grid.replies) == ["message-from-round-1"]
    assert [reply.client for reply in late.state.updates.accepted] == [0, 1, 2, 3]


def test_a_round_with_too_few_is_repeated_and_then_counts_once(tmp_path) -> None:
    seen: list[int] = []

    def lose_first_attempt(reply: Message) -> Message | None:
        seen.append(1)
        return None if len(seen) == 1 else reply

    grid = _federation(lose_first_attempt, rounds=(2,))
    options = {"min_clients": small.CLIENTS, "run_dir": tmp_path / "run"}
    trained = small.train("fedfv", rounds=3, grid=grid, timeout=0.3, **options)
    rows = small.tables(tmp_path / "run")["metrics"]
    assert [row["attempts"] for row in rows] == [1, 2, 1]
    assert torch.equal(small.theta(trained), small.simulate("fedfv", rounds=3))


@pytest.mark.parametrize(("size", "kind"), [(1e25, "nonfinite"), (50.0, "malformed")])
def test_updates_of_absurd_length_are_refused(size: float, kind: str, tmp_path) -> None:
    huge = _set("1.bias", Array(np.full(8, size, np.float32)))
    options = {"max_update_norm": 100.0, "run_dir": tmp_path / "run", "reply": "model"}
    small.train("fedfv", rounds=2, grid=_federation(huge), **options)
    (refused,) = small.tables(tmp_path / "run")["metrics"][1]["refused"]
    assert refused["kind"] == kind
