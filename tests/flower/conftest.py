"""What the tests on Flower share: grids without processes, and real federations on loopback."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples" / "flower-app")]
