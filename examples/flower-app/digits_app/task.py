"""The model and the split of the digits, which server and clients share."""

from __future__ import annotations

from functools import cache

from flwr.app import Context
from torch import nn

from fedcraft.data import Client, Federation, federate, load
from fedcraft.models import build


@cache
def split(clients: int, alpha: float, seed: int) -> Federation:
    """Split the digits among clients by a Dirichlet split that the seed fixes.

    It stands in for real clients, which have their own data.
    """
    return federate(load("digits"), "dirichlet", clients, alpha=alpha, seed=seed)


def federation(context: Context) -> Federation:
    """Return the split that the run's config describes."""
    config = context.run_config
    return split(int(config["clients"]), float(config["alpha"]), int(config["seed"]))


def model(context: Context) -> nn.Module:
    """Return a freshly initialised classifier, the same for all."""
    return build("mlp", input_shape=(64,), classes=10, seed=int(context.run_config["seed"]))


def data(context: Context) -> Client:
    """Return this client's part of the digits."""
    return federation(context).client(int(context.node_config["partition-id"]))
