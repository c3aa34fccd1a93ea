"""The names of records, settings and metrics in the messages between server and clients."""

from __future__ import annotations

from typing import Final

# Records of a message; Flower's own strategies use "arrays", "config" and "metrics" too.
ARRAYS: Final = "arrays"
CONFIG: Final = "config"
METRICS: Final = "metrics"
INITIAL: Final = "initial-arrays"  # theta_0, for the personal model of a client that joins late
SENT: Final = "sent."  # before the name of a vector that the rule sends beside the model
UPDATE: Final = "update"  # a reply with g_i = theta_t - theta_i instead of theta_i
ROW: Final = "row"  # the array in it: all coordinates in the layout's order

# Settings that the server sends.
ROUND: Final = "server-round"
RUN: Final = "run-key"
LAST: Final = "last-round"  # the round of the client's last reply that counted; 0 for none
KEEP: Final = "keep-rounds"  # rounds whose client state the run, or a checkpoint of it, needs
SEED: Final = "seed"
LR: Final = "lr"
EPOCHS: Final = "local-epochs"
BATCH: Final = "batch-size"
REPLY: Final = "reply"
LAYOUT: Final = "layout"  # the digest of the order in which the server reads a row
REPORT_LOSS: Final = "report-loss"
SPLITS: Final = "splits"

# Metrics that a client reports.
CLIENT: Final = "client-id"
EXAMPLES: Final = "num-examples"
STEPS: Final = "steps"
LOSS: Final = "loss-before"  # at theta_t, before training, which the fair methods need
LOCAL_LOSS: Final = "local-loss"  # mean over the local batches
STATE_LOST: Final = "state-lost"
CLIP: Final = "privacy-clip"  # the length to which a client has clipped its update
NOISE: Final = "privacy-noise"  # the standard deviation of the noise that it has added
ACCURACY: Final = "accuracy"  # on the test split; "train-accuracy", "train-loss" ... on others
TEST_LOSS: Final = "loss"
