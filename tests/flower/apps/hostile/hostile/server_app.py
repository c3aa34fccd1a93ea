"""A server whose rule stands behind a guard."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedcraft.flower import Strategy
from hostile.task import CLIENT_LR, CLIENTS, SEED, model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = model()
    strategy = Strategy(
        str(context.run_config["method"]),
        guard=str(context.run_config["guard"]),
        model=start,
        client_lr=CLIENT_LR,
        server_lr=1.0,
        seed=SEED,
        min_available_nodes=CLIENTS,
        min_train_nodes=CLIENTS,
        fraction_evaluate=0.0,
        run_dir=str(context.run_config["out"]),
    )
    rounds = int(context.run_config["rounds"])
    strategy.start(grid, ArrayRecord(start.state_dict()), rounds, timeout=600)
