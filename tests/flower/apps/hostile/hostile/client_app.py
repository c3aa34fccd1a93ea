"""An honest client app, which lies on the sixth node if the run says how."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedcraft.flower import client_app
from hostile.task import LIAR, client, lying, model

honest = client_app(
    lambda context: model(),
    lambda context: client(int(context.node_config["partition-id"])),
    lambda context: str(context.run_config["method"]),
)
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    reply = honest(message, context)
    liar = int(context.node_config["partition-id"]) == LIAR
    lie = str(context.run_config["lie"])
    return lying(reply, lie) if liar and lie else reply


app.evaluate()(honest)
app.query()(honest)
