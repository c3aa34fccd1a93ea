"""The model, the split, and who drops out in which round and at which stage."""

from functools import cache

from torch import nn

from fedcraft.data import Federation, federate, load
from fedcraft.models import build
from fedcraft.secure import Secure
from fedcraft.secure.limits import Limits

SEED, CLIENTS, CLIENT_LR = 11, 5, 0.05
OPTIONS = Secure(sketch=1024, refinements=1, most_share=1.0, precision=1e-5)
LIMITS = Limits(most_share=1.0, most_sums=2, least_clients=3)
PLAN: dict[int, tuple[str, set[int]]] = {
    2: ("keys", {1}),
    3: ("shares", {2}),
    4: ("train", {0}),
    5: ("dots", {3}),
    6: ("sum", {4}),
    7: ("unmask", {1}),
    8: ("sum", {0, 2}),
}
ARRIVED = ("unmask",)  # the vectors of clients that are lost here are in the sum already


@cache
def federation() -> Federation:
    data = load("digits")
    return federate(data, "dirichlet", CLIENTS, alpha=0.5, seed=SEED)


def model() -> nn.Module:
    return build("mlp", input_shape=(64,), classes=10, seed=SEED, hidden=[8])
