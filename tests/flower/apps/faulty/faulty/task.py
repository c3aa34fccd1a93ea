"""The model and the split that every way of running shares."""

from functools import cache

from torch import nn

from fedcraft.data import Federation, federate, load
from fedcraft.models import build

SEED = 11
CLIENTS = 3
CLIENT_LR = 0.05


@cache
def federation() -> Federation:
    return federate(load("digits"), "dirichlet", CLIENTS, alpha=0.3, seed=SEED)


def model() -> nn.Module:
    return build("mlp", input_shape=(64,), classes=10, seed=SEED, hidden=[32])
