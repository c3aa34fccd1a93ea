"""One app for all methods: a message is a bundle of one letter from each."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from agreement.bundle import each
from agreement.task import federation, model
from fedcraft.flower import client_app

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    def answer(method: str, letter: Message) -> Message:
        return client_app(
            lambda context: model(),
            lambda context: federation().client(int(context.node_config["partition-id"])),
            method,
            one_thread=True,
        )(letter, context)

    return each(message, answer)
