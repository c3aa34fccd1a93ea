"""Aggregate updates that do not fit in memory: 10 clients x 100 million parameters by default.

    python -m benchmarks.outofcore [--clients 10] [--millions 100] [--budget-mb 512] [--folder DIR]

Writes one safetensors file per client, aggregates two rounds with CRAFT in a process of its own and
prints that process's peak memory, everything included, beside the time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYER = 10_000_000

_WORKER = """
import json, sys, time
import torch, fedcraft
torch.set_num_threads(1)


def peak_kb():
    status = open("/proc/self/status").read()  # ru_maxrss would count the parent's memory too
    return int(status.split("VmHWM:")[1].split()[0])


budget, out, *files = sys.argv[1:]
craft, seconds = fedcraft.aggregator("craft"), []
for round in range(2):
    start = time.perf_counter()
    step = fedcraft.aggregate_files(craft, files, out, budget_mb=int(budget))
    seconds.append(time.perf_counter() - start)
print(json.dumps({
    "seconds": seconds,
    "peak_mb": peak_kb() / 1024,
    "conflicts_after": step.certificate.whole.conflicts_after,
    "residual": float(step.certificate.layers.residual.max()),
}))
"""


def write_clients(folder: Path, clients: int, millions: int) -> list[Path]:
    """Write every client's update in layers of ten million parameters, the last one larger."""
    paths = []
    for client in range(clients):
        generator = torch.Generator().manual_seed(client)
        count = max(1, millions * 10**6 // LAYER - 1)
        sizes = [LAYER] * (count - 1) + [millions * 10**6 - LAYER * (count - 1)]
        tensors = {
            f"layer{i}.weight": torch.randn(size, generator=generator) * 0.01
            for i, size in enumerate(sizes)
        }
        paths.append(folder / f"client{client}.safetensors")
        save_file(tensors, paths[-1])
        print(f"wrote {paths[-1].name}", flush=True)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--millions", type=int, default=100)
    parser.add_argument("--budget-mb", type=int, default=512)
    parser.add_argument("--folder", type=Path, help="where the files go (a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        files = write_clients(folder, options.clients, options.millions)
        out = folder / "step.safetensors"
        command = [sys.executable, "-c", _WORKER, str(options.budget_mb), str(out)]
        done = subprocess.run(
            [*command, *map(str, files)], check=True, capture_output=True, text=True
        )
        print(json.dumps(json.loads(done.stdout), indent=1))


if __name__ == "__main__":
    main()
