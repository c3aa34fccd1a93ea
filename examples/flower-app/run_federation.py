"""A real federation on this machine: TLS, authenticated SuperNodes, nothing from the network.

    python run_federation.py --out /tmp/digits-federation

makes a certificate authority and keys, starts a SuperLink and three SuperNodes on
loopback, runs the app beside this file, and ends every process that it started.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

APP = Path(__file__).resolve().parent
HOST = "127.0.0.1"


class LoopbackFederation:
    """A SuperLink with TLS and SuperNode authentication, and its SuperNodes, on loopback.

    Use it in a ``with`` block, whose end stops every process that it started.
    """

    def __init__(self, home: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ca, self.link_key, self.link_certificate = make_certificates(home / "tls")
        (home / "flwr").mkdir(parents=True, exist_ok=True)
        (home / "logs").mkdir(exist_ok=True)
        self.environment = {**os.environ, **offline(home / "flwr"), **(environment or {})}
        (home / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "loopback"\n[superlink.loopback]\n'
            f'address = "{HOST}:{self.port}"\nroot-certificates = "{self.ca}"\n'
        )

    def __enter__(self) -> LoopbackFederation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in reversed(list(self.processes)):
            self.stop(name)

    def start_link(self, *, database: bool = True) -> None:
        """Start the SuperLink and wait until it answers; a database keeps its state."""
        self.start(
            "superlink",
            "flower-superlink",
            *("--host", HOST, "--port", str(self.port)),
            *("--ssl-ca-certfile", str(self.ca)),
            *("--ssl-certfile", str(self.link_certificate)),
            *("--ssl-keyfile", str(self.link_key)),
            "--enable-supernode-auth",
            *(("--database", str(self.home / "superlink.db")) if database else ()),
        )
        context = ssl.create_default_context(cafile=str(self.ca))
        wait_for(lambda: self._answers(context), 60, "the SuperLink to answer")

    def register(self, *names: str) -> None:
        """Make a key pair for each node and register the public keys with the SuperLink."""
        calls = []
        for name in names:
            public = make_node_key(self.home / "keys", name)
            calls.append(self._call("flwr", "supernode", "register", str(public), "loopback"))
        for call in calls:
            output, _ = call.communicate(timeout=120)
            if call.returncode:
                raise RuntimeError(f"a SuperNode could not be registered: {output.decode()}")

    def start_node(
        self,
        name: str,
        config: Mapping[str, Any],
        *,
        key: Path | None = None,
        ca: Path | None = None,
        authenticate: bool = True,
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode with its key; the other arguments make nodes that must be refused."""
        secret = key or self.home / "keys" / name
        return self.start(
            name,
            "flower-supernode",
            *("--superlink", f"{HOST}:{self.port}"),
            *("--root-certificates", str(ca or self.ca)),
            *("--host", HOST, "--port", str(free_port())),
            *("--node-config", _words(config)),
            *(("--auth-supernode-private-key", str(secret)) if authenticate else ()),
        )

    def run(
        self, app: Path, config: Mapping[str, Any], *options: str, name: str = "run"
    ) -> subprocess.Popen[bytes]:
        """Submit a run; the returned process ends with it and prints the log of the ServerApp."""
        words = ["flwr", "run", str(app), "loopback", "--stream", *options]
        return self.start(name, *words, *(["--run-config", _words(config)] if config else []))

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a process of this federation; its output goes to ``logs/NAME.log``."""
        with (self.home / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def stop(self, name: str, *, hard: bool = False, patience: float = 10.0) -> None:
        """End a process and its children by their ids; ``hard`` kills them at once."""
        process = self.processes.pop(name)
        if not hard:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(patience)

    def log(self, name: str) -> str:
        """Return the output of a process so far."""
        path = self.home / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def follow(self, name: str) -> int:
        """Print the output of a process while it comes, and return the code that it ends with."""
        process, shown = self.processes[name], 0
        while True:
            ended = process.poll() is not None
            with (self.home / "logs" / f"{name}.log").open("rb") as log:
                log.seek(shown)
                new = log.read()
            print(new.decode(errors="replace"), end="", flush=True)
            shown += len(new)
            if ended:
                return int(process.returncode)
            time.sleep(0.2)

    def _call(self, *words: str) -> subprocess.Popen[bytes]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(words, env=self.environment, stdin=subprocess.DEVNULL, **pipes)

    def _answers(self, context: ssl.SSLContext) -> bool:
        if self.processes["superlink"].poll() is not None:
            raise RuntimeError(f"the SuperLink has ended: {self.log('superlink')}")
        try:
            urllib.request.urlopen(f"https://{HOST}:{self.port}/health", context=context, timeout=2)
        except (urllib.error.URLError, OSError):
            return False
        return True


def _words(config: Mapping[str, Any]) -> str:
    """Return settings as Flower's command line takes them: TOML values between blanks."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())


def offline(flwr_home: Path) -> dict[str, str]:
    """Return an environment in which Flower does not use the network on its own account."""
    scripts = str(Path(sys.executable).parent)
    return {
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(flwr_home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }


def make_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Make an authority and a server certificate for loopback: (CA, key, certificate)."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = ec.generate_private_key(ec.SECP384R1())
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback superlink")])
    root = _certificate(issuer, issuer, authority.public_key(), authority, is_authority=True)
    leaf = _certificate(subject, issuer, key.public_key(), authority, is_authority=False)
    paths = folder / "ca.pem", folder / "superlink.key", folder / "superlink.pem"
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    contents = root.public_bytes(pem), secret, leaf.public_bytes(pem)
    for path, content in zip(paths, contents, strict=True):
        _write_private(path, content)
    return paths


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(signer_id, critical=False)
        .sign(signer, hashes.SHA384())
    )


def make_node_key(folder: Path, name: str) -> Path:
    """Make a SuperNode's key pair and return the path of the public key."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_private(folder / name, secret)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / f"{name}.pub"


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_for(ready: Any, seconds: float, what: str) -> None:
    """Wait until ``ready()`` is true."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.2)


def main() -> int:
    """Start everything, run the app, and print where its tables are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for keys, logs and the run")
    parser.add_argument("--method", default="craft-auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    home: Path = options.out.resolve()
    home.mkdir(parents=True, exist_ok=True)
    names = [f"node-{index}" for index in range(options.nodes)]
    with LoopbackFederation(home) as federation:
        print(
            f"starting a SuperLink and {len(names)} SuperNodes; logs: {home / 'logs'}", flush=True
        )
        federation.start_link()
        federation.register(*names)
        for index, name in enumerate(names):
            federation.start_node(name, {"partition-id": index, "state-dir": str(home / "states")})
        config = {
            "method": options.method,
            "rounds": options.rounds,
            "clients": options.nodes,
            "run-dir": str(home / "run"),
        }
        federation.run(APP, config)
        code = federation.follow("run")
    print(f"tables, checkpoints and model: {home / 'run'}")
    return code if (home / "run" / "model.safetensors").exists() else 1


if __name__ == "__main__":
    raise SystemExit(main())
