"""A server with a deadline, that tells the test which process to kill."""

import os
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from faulty.task import CLIENT_LR, CLIENTS, SEED, model
from fedcraft.flower import Strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    out = Path(str(context.run_config["out"]))
    (out / "server.pid").write_text(str(os.getpid()))
    start = model()
    strategy = Strategy(
        str(context.run_config["method"]),
        model=start,
        client_lr=CLIENT_LR,
        seed=SEED,
        min_available_nodes=CLIENTS,
        min_train_nodes=CLIENTS,
        fraction_evaluate=0.0,
        run_dir=out / "run",
        attempts=10,
        one_thread=True,
    )
    strategy.start(
        grid,
        ArrayRecord(start.state_dict()),
        num_rounds=int(context.run_config["rounds"]),
        timeout=float(context.run_config["deadline"]),
    )
