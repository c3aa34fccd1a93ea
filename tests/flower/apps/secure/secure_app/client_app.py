"""A client that drops out by the plan, and keeps its update in a file for the test to compare."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from fedcraft.flower import SecureAnswers, client_app
from fedcraft.flower.messages import keys
from fedcraft.flower.messages import secure as wire
from secure_app.task import LIMITS, PLAN, federation, model

_COUNT = "rounds-seen"


class FaultyAnswers(SecureAnswers):
    """Fails where the plan says so. The round is the number of times that keys were asked for."""

    def train(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        self._fail(context, "train")

        def kept(message: Message, context: Context) -> Message:
            reply = call_next(message, context)
            row = reply.content.array_records[keys.UPDATE][keys.ROW].numpy()
            name = f"round-{_round(context)}-client-{_client(context)}.npy"
            folder = Path(str(context.node_config["state-dir"]))
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / name, row)
            return reply

        return super().train(message, context, kept)

    def query(self, message: Message, context: Context) -> Message:
        stage = str(message.content.config_records[keys.CONFIG][wire.STAGE])
        if stage == "keys":
            context.state[_COUNT] = ConfigRecord({"rounds": _round(context) + 1})
        self._fail(context, stage)
        return super().query(message, context)

    def _fail(self, context: Context, stage: str) -> None:
        where, who = PLAN.get(_round(context), ("", set()))
        if stage == where and _client(context) in who:
            raise RuntimeError(f"client {_client(context)} is lost at stage {stage}, as planned")


def _round(context: Context) -> int:
    found = context.state.config_records.get(_COUNT)
    return 0 if found is None else int(found["rounds"])


def _client(context: Context) -> int:
    return int(context.node_config["partition-id"])


app = client_app(
    lambda context: model(),
    lambda context: federation().client(_client(context)),
    "craft",
    one_thread=True,
    secure=FaultyAnswers(LIMITS),
)
