"""The server: a method of fedcraft as Flower's strategy."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from digits_app.task import model
from fedcraft.flower import Strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds, or resume an interrupted run."""
    config = context.run_config
    start = model(context)
    strategy = Strategy(
        str(config["method"]),
        model=start,
        client_lr=float(config["client-lr"]),
        seed=int(config["seed"]),
        min_available_nodes=int(config["clients"]),
        min_train_nodes=int(config["clients"]),
        evaluate_every=int(config["evaluate-every"]),
        run_dir=str(config["run-dir"]) or None,
        one_thread=bool(config["one-thread"]),
    )
    strategy.start(
        grid,
        initial_arrays=ArrayRecord(start.state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["deadline"]),
    )
