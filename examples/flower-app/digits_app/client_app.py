"""The client: a model, its own data, and the method's local objective."""

from digits_app.task import data, model
from fedcraft.flower import client_app

app = client_app(
    model, data, method=lambda context: str(context.run_config["method"]), one_thread=True
)
