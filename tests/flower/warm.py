"""Start Flower's many short-lived processes from one that has everything imported already.

A SuperNode starts a new Python for every message, which imports torch and Flower for four seconds
before it does a millisecond of work. Here the commands on PATH ask a server to fork instead. What
runs afterwards is Flower's own command in a process of its own, with its own environment.

    python warm.py serve SOCKET          (the server, one per federation)
    python warm.py install FOLDER SOCKET (commands for PATH)
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import sys

COMMANDS = {
    "flwr": "flwr.cli.app:app",
    "flwr-clientapp": "flwr.supernode.cli:flwr_clientapp",
    "flwr-serverapp": "flwr.superlink.cli:flwr_serverapp",
    "flower-superexec": "flwr.supercore.cli:flower_superexec",
}
PRELOADED = ("fedcraft.flower", "fedcraft.engine.simulation", "sklearn.datasets")


def install(folder: str, address: str) -> None:
    """Write the commands: each sends its arguments to the server and waits for the child's end."""
    os.makedirs(folder, exist_ok=True)
    for name in COMMANDS:
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as script:
            # -I -S: none of the imports that make an ordinary start slow
            script.write(
                f"#!{sys.executable} -IS\n"
                f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
                f"import warm; warm.ask({address!r}, {name!r})\n"
            )
        os.chmod(path, 0o755)


def ask(address: str, name: str) -> None:
    """Hand this process's arguments and files to the server; live as long as the child does."""
    wanted = {"argv": [name, *sys.argv[1:]], "cwd": os.getcwd(), "environ": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        socket.send_fds(line, [json.dumps(wanted).encode() + b"\0"], [0, 1, 2])
        child = int(_read(line, b"\n"))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, frame: os.kill(child, received))
        code = _read(line, b"\n")  # empty if the child was killed
    os._exit(int(code) if code else 1)


def serve(address: str) -> None:
    """Import everything, then fork a child for every request, until the parent is gone."""
    import importlib

    targets = {name: path.split(":") for name, path in COMMANDS.items()}
    for module in (*PRELOADED, *(module for module, _ in targets.values())):
        importlib.import_module(module)
    children: set[int] = set()
    signal.signal(signal.SIGTERM, lambda *_: _end(children))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen(64)
        while True:
            line, _ = door.accept()
            _bury(children)
            child = os.fork()
            if child == 0:
                door.close()
                _become(line, targets)
            children.add(child)
            line.close()


def _bury(children: set[int]) -> None:
    """Forget the children that have ended, so that no signal goes to somebody else's process."""
    for child in list(children):
        if os.waitpid(child, os.WNOHANG)[0]:
            children.discard(child)


def _end(children: set[int]) -> None:
    """End with everybody who is left."""
    _bury(children)
    for child in children:
        os.kill(child, signal.SIGKILL)
    os._exit(0)


def _become(line: socket.socket, targets: dict[str, list[str]]) -> None:
    """Be the command that was asked for, in the asker's place."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    wanted, files = _receive(line)
    line.sendall(f"{os.getpid()}\n".encode())
    for own, given in enumerate(files):
        os.dup2(given, own)
    os.setsid()
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environ"])
    sys.argv = wanted["argv"]
    module, attribute = targets[sys.argv[0]]
    code = 0
    try:
        getattr(sys.modules[module], attribute)()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            line.sendall(f"{code}\n".encode())
        os._exit(code)


def _receive(line: socket.socket) -> tuple[dict, list[int]]:
    message, files = b"", array.array("i")
    while not message.endswith(b"\0"):
        part, given, _, _ = socket.recv_fds(line, 1 << 16, 3)
        message += part
        files.extend(given)
    return json.loads(message[:-1]), list(files)


def _read(line: socket.socket, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        part = line.recv(64)
        if not part:
            return b""
        found += part
    return found


if __name__ == "__main__":
    {"serve": serve, "install": install}[sys.argv[1]](*sys.argv[2:])
