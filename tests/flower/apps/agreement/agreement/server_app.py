"""All methods side by side, each in a thread with a strategy and a run directory of its own."""

from concurrent.futures import ThreadPoolExecutor

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from agreement.bundle import Bundle, Share
from agreement.task import CLIENT_LR, CLIENTS, SEED, model
from fedcraft.flower import Strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    methods = str(context.run_config["methods"]).split()
    bundle = Bundle(grid, methods)
    start = model()  # here, because threads share the random state that initialises it

    def train(method: str) -> None:
        strategy = Strategy(
            method,
            model=start,
            client_lr=CLIENT_LR,
            seed=SEED,
            min_available_nodes=CLIENTS,
            min_train_nodes=CLIENTS,
            fraction_evaluate=0.0,
            run_dir=f"{context.run_config['out']}/{method}",
            one_thread=True,
        )
        rounds = int(context.run_config["rounds"])
        strategy.start(Share(bundle, method), ArrayRecord(start.state_dict()), rounds, timeout=600)

    with ThreadPoolExecutor(len(methods)) as threads:
        list(threads.map(train, methods))
