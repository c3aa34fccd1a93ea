"""A small laboratory: a network on real digits, a client, a task, and its training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedcraft.data import Tensors
from fedcraft.local import ClientData, LocalResult, LocalTask, SeedAddress, local_objective
from fedcraft.models import FlatModel, seeded


class Lab:
    """Networks always start from the same weights, so ``task`` and ``train`` agree on theta."""

    def __init__(self) -> None:
        inputs, labels = load_digits(return_X_y=True)
        scaled = torch.tensor(inputs / 16.0, dtype=torch.float32)
        self.digits = Tensors(scaled, torch.tensor(labels))

    def network(self, *, dropout: float = 0.0, norm: bool = False) -> nn.Module:
        with seeded(5):
            middle = [nn.BatchNorm1d(16)] if norm else []
            return nn.Sequential(
                nn.Linear(64, 16), *middle, nn.Dropout(dropout), nn.ReLU(), nn.Linear(16, 10)
            )

    def client(self, samples: int = 33) -> ClientData:
        return ClientData(self.digits, np.arange(100, 100 + samples))

    def task(self, module: nn.Module, data: ClientData, **given: Any) -> LocalTask:
        theta = FlatModel(module).vector.clone()
        settings = {"lr": 0.1, "batch_size": 8, "address": SeedAddress(77, 3, 12)} | given
        return LocalTask(theta, data, **settings)

    def train(
        self, name: str, module: nn.Module, asked: LocalTask, **params: Any
    ) -> tuple[Tensor, LocalResult]:
        row = torch.full_like(asked.theta, torch.nan)
        return row, local_objective(name, **params).train(FlatModel(module), asked, row)


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
