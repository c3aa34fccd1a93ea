"""A secure run that records everything the server receives, and may be killed in a round."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

from fedcraft.flower import Strategy
from secure_app.task import CLIENT_LR, CLIENTS, OPTIONS, SEED, model

app = ServerApp()


class Recorder:
    """Passes everything on to the grid, and writes every array that arrives to a file."""

    def __init__(self, grid: Grid, folder: Path, kill_at: int) -> None:
        self._grid, self._folder, self._kill_at = grid, folder, kill_at
        self._count = self._sums = 0
        folder.mkdir(parents=True, exist_ok=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        stages = {str(m.content.config_records["config"].get("secure-stage", "")) for m in sent}
        self._sums += "sum" in stages
        if self._kill_at and self._sums == self._kill_at:
            os._exit(9)  # in the middle of a round, like a machine that goes down
        return self._grid.push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(self._grid.pull_messages(message_ids))
        for message in found:
            if message.has_content():
                for record in message.content.array_records.values():
                    for name, array in record.items():
                        self._count += 1
                        np.save(self._folder / f"{self._count:05d}-{name}.npy", array.numpy())
        return found


@app.main()
def main(grid: Grid, context: Context) -> None:
    out, start = Path(str(context.run_config["out"])), model()
    recorder: Any = Recorder(grid, out / "received", int(context.run_config["kill"]))
    strategy = Strategy(
        "craft",
        model=start,
        client_lr=CLIENT_LR,
        seed=SEED,
        min_available_nodes=CLIENTS,
        min_train_nodes=CLIENTS,
        fraction_evaluate=0.0,
        checkpoint_every=1,
        run_dir=out / "run",
        one_thread=True,
        secure=OPTIONS,
    )
    rounds = int(context.run_config["rounds"])
    strategy.start(recorder, ArrayRecord(start.state_dict()), rounds, timeout=600)
