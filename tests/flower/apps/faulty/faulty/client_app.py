"""Clients that misbehave by plan: ``faults`` is a list of ``round.client.fault``."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp

from faulty.task import federation, model
from fedcraft.flower import client_app

honest = client_app(
    lambda context: model(),
    lambda context: federation().client(int(context.node_config["partition-id"])),
    lambda context: str(context.run_config["method"]),
    one_thread=True,
)
app = ClientApp()


def _planned(message: Message, context: Context) -> str:
    number = message.content["config"]["server-round"]
    here = f"{number}.{context.node_config['partition-id']}."
    plan = str(context.run_config["faults"]).split(",")
    return next((entry.removeprefix(here) for entry in plan if entry.startswith(here)), "")


def _leave_word(message: Message, context: Context) -> bool:
    """Tell the test that this client is at work; False if it has told so before."""
    number = message.content["config"]["server-round"]
    place = Path(str(context.run_config["out"]))
    word = place / f"client-{context.node_config['partition-id']}-in-round-{number}"
    first = not word.exists()
    word.touch()
    return first


@app.train()
def train(message: Message, context: Context) -> Message:
    fault = _planned(message, context)
    first = _leave_word(message, context)
    reply = honest(message, context)
    arrays = reply.content["update"]
    if fault == "nan":
        arrays["row"] = Array(np.full_like(arrays["row"].numpy(), np.nan))
    if fault == "shape":
        arrays["row"] = Array(arrays["row"].numpy()[1:])
    if fault == "silent" or (fault == "killed" and first):
        time.sleep(float(context.run_config["deadline"]) + 1)
    return reply


app.evaluate()(honest)
app.query()(honest)
