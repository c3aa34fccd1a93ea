"""One app for all methods: a message is a bundle of one message from each method."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from agreement.bundle import each
from agreement.task import federation, model
from fedcraft.flower import client_app

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    def answer(method: str, part: Message) -> Message:
        return client_app(
            lambda context: model(),
            lambda context: federation().client(int(context.node_config["partition-id"])),
            method,
            one_thread=True,
        )(part, context)

    return each(message, answer)
