"""The child process of a sweep: one run after another on one torch thread, until its input ends."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Tell = Callable[[dict[str, Any]], None]
Tasks = queue.SimpleQueue[str | None]

_TELL_EVERY = 0.2  # seconds
_idle = threading.Event()


def main() -> None:
    """Read run directories as JSON lines; answer with JSON lines."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints must not mix with the answers

    def tell(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    tasks: Tasks = queue.SimpleQueue()
    _idle.set()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    import torch

    torch.set_num_threads(1)
    while (task := tasks.get()) is not None:
        answer = attempt(Path(task), tell)
        _idle.set()
        tell(answer)


def _listen(tasks: Tasks) -> None:
    """Pass tasks on; end the process if the parent ends in the middle of a run."""
    for line in sys.stdin:
        _idle.clear()
        tasks.put(json.loads(line))
    if not _idle.is_set():
        os._exit(1)
    tasks.put(None)


def attempt(
    directory: Path, tell: Tell, objects: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Finish a run; return ``error``, empty if it went well, and ``busy``.

    ``objects`` are the Python objects of its configuration.
    """
    from fedcraft.engine import Callback, Interrupted
    from fedcraft.errors import BusyError, FedcraftError, explain_os_error
    from fedcraft.studies.run import resume

    class Teller(Callback):
        """Reports the round of the run, at most a few times per second."""

        last = 0.0

        def on_round(self, record: Mapping[str, Any]) -> None:
            now = time.monotonic()
            if now - self.last >= _TELL_EVERY:
                self.last = now
                tell({"round": record["round"]})

    try:
        resume(directory, callbacks=(Teller(),), **(objects or {}))
    except Interrupted as error:
        return {"error": str(error), "interrupted": True}
    except BusyError as error:
        return {"error": str(error), "busy": True}
    except FedcraftError as error:
        return {"error": str(error)}
    except OSError as error:
        traceback.print_exc()
        return {"error": explain_os_error(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": ""}


if __name__ == "__main__":
    main()
