"""The worked example of the documentation runs as it is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import torch

import fedcraft

PAGE = Path(__file__).parents[2] / "docs" / "own-rule.md"


def code_blocks() -> list[str]:
    return re.findall(r"```python[^\n]*\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_example_of_a_rule_works_as_printed(tmp_path, monkeypatch, capsys):
    rule, use, remembering, wrapping = code_blocks()
    (tmp_path / "median.py").write_text(rule)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        namespace: dict[str, object] = {}
        exec(use, namespace)
        printed = capsys.readouterr().out
        comments = re.findall(r"# (\[.*?\]|\(\))", use)
        assert printed.split("\n")[:2] == comments
        exec(rule + remembering, namespace)
        smoothed = namespace["Smoothed"](share=0.25)
        smoothed.aggregate(np.array([[4.0, 0.0]]))
        step = smoothed.aggregate(np.array([[0.0, 8.0]]))
        np.testing.assert_allclose(step.direction, [0.75, 2.0])
        assert isinstance(smoothed, fedcraft.Aggregator)
        exec(wrapping, namespace)
        clipped = namespace["clipped"].aggregate(torch.eye(3, dtype=torch.float64))
        assert clipped.direction.tolist() == [0.1, 0.1, 0.1]
    finally:
        sys.modules.pop("median", None)
