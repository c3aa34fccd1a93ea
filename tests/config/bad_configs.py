"""Thirty and more kinds of bad configuration, generated from the schema and by hand.

Each is (name, content of the file, key that must be named, fix that must be offered).
"""

from __future__ import annotations

from typing import NamedTuple

from fedcraft.config.schema import Config

__all__ = ["BAD_CONFIGS", "BadConfig"]


class BadConfig(NamedTuple):
    name: str
    text: str
    key: str
    fix: str


def _misspelt() -> list[BadConfig]:
    keys = ["method", "clients_per_round", "client_lr", "batch_size", "evaluate_every", "partition"]
    return [
        BadConfig(f"misspelt {key}", f"{key[:-2] + key[-1] + key[-2]} = 1\n", key, "Did you mean")
        for key in keys
    ]


def _below_bound() -> list[BadConfig]:
    bounds = {"rounds": 0, "client_lr": 0.0, "server_lr": -1.0, "batch_size": 0, "seed": -1}
    more = {"workers": -2, "alpha": 0.0, "local_epochs": 0, "max_minutes": 0.0, "patience": 0}
    return [
        BadConfig(f"{key} too small", f"{key} = {value}\n", key, "leave it out")
        for key, value in (bounds | more).items()
    ]


def _above_bound() -> list[BadConfig]:
    bounds = {"lr_decay": 1.5, "dropout": 1.0, "target_accuracy": 70.0, "train_fraction": 1.0}
    return [
        BadConfig(f"{key} too large", f"{key} = {value}\n", key, "leave it out")
        for key, value in (bounds | {"validation_fraction": 1.0}).items()
    ]


def _wrong_type() -> list[BadConfig]:
    values = {"rounds": '"ten"', "client_lr": "true", "offline": "1", "model": "3", "seed": "1.5"}
    more = {"clients": "[1, 2]", "client_lr ": '"0.1"', "server_lr": "nan", "local": "1"}
    return [
        BadConfig(f"{key.strip()} = {v}", f"{key} = {v}\n", key.strip(), "")
        for key, v in (values | more).items()
    ]


def _wrong_choice() -> list[BadConfig]:
    choices = {"executor": "vectorised", "nonfinite": "rise", "partition": "dirichlett"}
    more = {"tracking": "tensorbord", "layers": "layr", "device": "cuda0"}
    return [
        BadConfig(f"{key} of {value}", f'{key} = "{value}"\n', key, "Did you mean")
        for key, value in (choices | more).items()
    ]


def _unknown_name() -> list[BadConfig]:
    return [
        BadConfig("unknown method", 'method = "fedavgg"\n', "method", "Did you mean 'fedavg'"),
        BadConfig("unknown data set", 'dataset = "cifar11"\n', "dataset", "Did you mean 'cifar1"),
        BadConfig("unknown model", 'model = "resnet21"\n', "model", "Did you mean 'resnet"),
        BadConfig(
            "model not importable", 'model = "nowhere:Net"\n', "model", "package.module:Name"
        ),
    ]


def _do_not_fit() -> list[BadConfig]:
    return [
        BadConfig("cohort", "clients = 5\nclients_per_round = 6\n", "clients_per_round", "Lower"),
        BadConfig("minimum", "min_clients = 11\n", "min_clients", "Lower"),
        BadConfig("alpha of iid", 'partition = "iid"\nalpha = 0.1\n', "alpha", "Leave alpha out"),
        BadConfig("writers of digits", "max_samples = 9\n", "max_samples", "Leave out max_samples"),
        BadConfig("owners of digits", 'partition = "natural"\n', "partition", "dirichlet"),
        BadConfig("rule parameter", "[aggregator]\ntaau = 1\n", "aggregator", "tau"),
        BadConfig("local parameter", "[local]\nnu = 1\n", "local", ""),
        BadConfig("server parameter", "[server]\nbeta9 = 1\n", "server", ""),
        BadConfig("label of two lines", 'label = "a\\nb"\n', "label", "Leave out line breaks"),
        BadConfig("label that hides", 'label = "a\\u202eb"\n', "label", "control characters"),
        *(
            BadConfig(
                f"label {name}",
                f'method = "fedavg"\nlabel = "{name}"\n',
                "label",
                "Choose another label",
            )
            for name in ("craft", "CRAFT", " Craft", "FedLF with history")
        ),
        BadConfig("unknown table", "[agregator]\ntau = 1\n", "agregator", "'aggregator'"),
    ]


def _no_toml() -> list[BadConfig]:
    return [
        BadConfig("no quotes", "method = craft\n", "method", "text in quotes"),
        BadConfig("key twice", "rounds = 1\nrounds = 2\n", "rounds", "every key once"),
        BadConfig("no value", "rounds =\n", "rounds", "key = value"),
        BadConfig("open table", "[local\n", "local", "key = value"),
    ]


BAD_CONFIGS = [
    *(*_misspelt(), *_below_bound(), *_above_bound(), *_wrong_type(), *_wrong_choice()),
    *(*_unknown_name(), *_do_not_fit(), *_no_toml()),
]
assert all(bad.key.split(" ")[0] in {*Config.model_fields, "agregator"} for bad in BAD_CONFIGS)
