"""Random damage to the files of a directory, the same for the same seed."""

from __future__ import annotations

import random
from pathlib import Path

KINDS = ("flip", "truncate", "delete", "swap")


def files_of(directory: Path) -> list[Path]:
    """Return every file of a run but its lock, in order."""
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.name != ".lock")


def corrupt(directory: Path, seed: int) -> str:
    """Damage one file of a directory and return what was done to which."""
    luck = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    path = luck.choice([file for file in files_of(directory) if file.stat().st_size])
    content = bytearray(path.read_bytes())
    other = luck.choice([f for f in files_of(directory) if f.read_bytes() != bytes(content)])
    if kind == "flip":
        content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
        path.write_bytes(content)
    elif kind == "truncate":
        path.write_bytes(content[: luck.randrange(len(content))])
    elif kind == "delete":
        path.unlink()
    else:
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    named = path.relative_to(directory)
    return f"{kind} {named}" + (f" and {other.relative_to(directory)}" if kind == "swap" else "")
