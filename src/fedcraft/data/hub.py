"""The Parquet files of a named data set: in a local folder, or on the Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedcraft.data.schemas import SCHEMAS, Schema
from fedcraft.errors import DataError
from fedcraft.registry import optional

_YES = {"1", "on", "true", "yes"}
_NAME_IT = "name it by data_root (root= of fedcraft.data.load) or FEDCRAFT_DATA"


def is_offline(offline: bool | None) -> bool:
    """Return ``offline``, or if it is None whether FEDCRAFT_OFFLINE or HF_HUB_OFFLINE is set."""
    if offline is not None:
        return offline
    names = ("FEDCRAFT_OFFLINE", "HF_HUB_OFFLINE")
    return any(os.environ.get(name, "").lower() in _YES for name in names)


def parquet_files(schema: Schema, root: str | Path | None, offline: bool | None) -> list[Path]:
    """Return all shards of all splits, in order; ask the Hub only if no folder has them.

    The folders are ``<repository>/<folder>``, ``<folder>`` and ``.`` below ``root`` or else
    FEDCRAFT_DATA. One with only some of the splits or shards is an error, not a reason to download.
    """
    given = root or os.environ.get("FEDCRAFT_DATA")
    folder = _folder_of(schema, given)
    if folder is not None:
        return _complete(schema, folder)
    missing = f"data set {schema.name!r} is not in {given or 'any local folder'}"
    if is_offline(offline):
        raise DataError(
            f"{missing} and the network is switched off; put "
            f"{schema.repository}/{schema.folder}/*.parquet into a folder and {_NAME_IT}, or allow "
            "the download"
        )
    return _complete(schema, _download(schema, missing))


def place(name: str) -> str:
    """Return in a few words where the files of a data set are: for a list, nothing is fetched."""
    if name not in SCHEMAS:
        return "with scikit-learn"
    schema = SCHEMAS[name]
    try:
        files = parquet_files(schema, None, offline=True)
    except DataError as error:
        base = os.environ.get("FEDCRAFT_DATA")
        folder = _folder_of(schema, base)
        return f"incomplete: {error}" if folder else _on_hub(schema)
    return f"in {files[0].parent}"


def _on_hub(schema: Schema) -> str:
    """Return whether the Hub's own cache has a data set."""
    try:
        from huggingface_hub import snapshot_download

        snapshot_download(
            schema.repository,
            repo_type="dataset",
            allow_patterns=[f"{schema.folder}/*.parquet"],
            local_files_only=True,
        )
    except Exception:  # not installed, or not there
        return "not here: from the Hub, or a folder of yours"
    return "in the Hub's cache"


def _folder_of(schema: Schema, base: str | Path | None) -> Path | None:
    """Return the folder below ``base`` that has Parquet files of a data set, if there is one."""
    if base is None:
        return None
    root = Path(base).expanduser()
    places = (root / schema.repository / schema.folder, root / schema.folder, root)
    return next((folder for folder in places if any(folder.glob("*.parquet"))), None)


def _complete(schema: Schema, folder: Path) -> list[Path]:
    found = {split: sorted(folder.glob(f"{split}-*.parquet")) for split in schema.splits}
    for split, files in found.items():
        if not files:
            raise DataError(f"{folder} has no {split}-*.parquet, which {schema.name!r} needs")
        named = [match for f in files if (match := re.search(r"-of-(\d+)\.parquet$", f.name))]
        counts = {int(match[1]) for match in named}
        if counts and counts != {len(files)}:
            raise DataError(
                f"{folder} must hold all shards of {split!r}: by their names there are "
                f"{sorted(counts)}, but {len(files)} were found; fetch the others"
            )
    return [file for files in found.values() for file in files]


def _download(schema: Schema, missing: str) -> Path:
    hub = optional("huggingface_hub", "data")
    try:
        snapshot = hub.snapshot_download(
            schema.repository, repo_type="dataset", allow_patterns=[f"{schema.folder}/*.parquet"]
        )
    except Exception as error:  # the Hub's client has no common base class for what can go wrong
        why = str(error).partition("\n")[0]
        raise DataError(
            f"{missing} and could not be fetched from the Hub ({why}); put its Parquet files in a "
            f"folder and {_NAME_IT}"
        ) from error
    return Path(snapshot) / schema.folder
