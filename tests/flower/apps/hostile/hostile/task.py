"""The model, the split, and what the sixth node sends."""

from functools import cache

import numpy as np
import torch
from flwr.app import Array, Message
from torch import nn

from fedcraft.data import Client, Federation, federate, load
from fedcraft.models import build

SEED = 11
HONEST = 5
LIAR = HONEST
CLIENTS = HONEST + 1
CLIENT_LR = 0.1
LIES = {"flip": (-1, None), "hundredfold": (100, None), "claim": (1, 10**9)}
"""What the sixth node multiplies its update with, and the samples that it claims."""


@cache
def federation() -> Federation:
    return federate(load("digits"), "shards", HONEST, shards_per_client=2, seed=SEED)


def client(partition: int) -> Client:
    """The sixth node has the data of the first, so that its absence costs no label."""
    return federation().client(partition % HONEST)


def model() -> nn.Module:
    return build("mlp", input_shape=(64,), classes=10, seed=SEED, hidden=[32])


def lying(reply: Message, lie: str) -> Message:
    """Return the reply with one of the ``LIES``."""
    factor, samples = LIES[lie]
    arrays = reply.content["update"]
    for name in arrays:
        arrays[name] = Array(np.asarray(factor * arrays[name].numpy(), arrays[name].dtype))
    if samples is not None:
        reply.content["metrics"]["num-examples"] = samples
    return reply


def accuracy(tensors: dict[str, torch.Tensor]) -> float:
    """The share of all test samples that a model classifies correctly."""
    module = model()
    module.load_state_dict(tensors)
    inputs, labels = federation().tensors().gather(federation().test.indices)
    with torch.inference_mode():
        return float((module(inputs).argmax(1) == labels).double().mean())
