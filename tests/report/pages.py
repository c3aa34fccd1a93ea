"""Reads a page of the report as its script does."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedcraft.report import load_runs, write_page


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """Read packed numbers as the page's script does."""
    return np.frombuffer(base64.b64decode(packed["data"]), f"<u{packed['bytes']}")


def page_of(folder: Path) -> str:
    return write_page(load_runs(folder), folder / "page.html").read_text()
