"""One app for all methods: a message says which of them it belongs to."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from agreement.task import federation, model
from fedcraft.flower import client_app

app = ClientApp()


def _answer(message: Message, context: Context) -> Message:
    chosen = client_app(
        lambda context: model(),
        lambda context: federation().client(int(context.node_config["partition-id"])),
        str(message.content["config"]["method"]),
        one_thread=True,
    )
    return chosen(message, context)


app.train()(_answer)
app.evaluate()(_answer)
