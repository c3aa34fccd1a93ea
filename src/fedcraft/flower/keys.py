"""The names under which things travel between a server and its clients."""

from __future__ import annotations

from typing import Final

# Records of a message; "arrays", "config" and "metrics" are Flower's own habit.
ARRAYS: Final = "arrays"
CONFIG: Final = "config"
METRICS: Final = "metrics"
INITIAL: Final = "initial-arrays"  # theta_0, for the personal model of a client that comes late
UPDATE: Final = "update"  # a reply that carries g_i = theta_t - theta_i instead of theta_i
ROW: Final = "row"  # the array in it: all coordinates in the layout's order

# What the server says.
ROUND: Final = "server-round"
RUN: Final = "run-key"
LAST: Final = "last-round"  # the client's last reply that counted; 0 for none
KEEP: Final = "keep-rounds"  # replies the server, or a checkpoint it could come back to, counts on
SEED: Final = "seed"
LR: Final = "lr"
EPOCHS: Final = "local-epochs"
BATCH: Final = "batch-size"
REPLY: Final = "reply"
LAYOUT: Final = "layout"  # the digest of the order in which the server reads a row
REPORT_LOSS: Final = "report-loss"
SPLITS: Final = "splits"

# What a client says.
CLIENT: Final = "client-id"
EXAMPLES: Final = "num-examples"
STEPS: Final = "steps"
LOSS: Final = "loss-before"  # at theta_t, before training: the one that fair methods need
LOCAL_LOSS: Final = "local-loss"  # mean over the local batches
STATE_LOST: Final = "state-lost"
ACCURACY: Final = "accuracy"  # of the test part; others as "train-accuracy", "train-loss" ...
TEST_LOSS: Final = "loss"
