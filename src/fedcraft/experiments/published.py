"""The paper's numbers: Table 1 and the three tables of Appendix D, to be set beside ours.

Mean, best 10 %, worst 10 % and standard deviation of the clients' test accuracy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AUTHORS_RUNS", "DITTO_BEST", "TABLES", "Published", "frame"]


class Published(NamedTuple):
    """One row of a table of the paper."""

    mean: float
    best10: float
    worst10: float
    std: float


def _table(text: str) -> dict[str, Published]:
    rows = [line.split() for line in text.split("\n") if line.strip()]
    return {name: Published(*map(float, numbers)) for name, *numbers in rows}


TABLES: dict[str, dict[str, Published]] = {
    "femnist-mlp": _table(
        """
        fedavg 0.570 0.776 0.305 0.136
        fedprox 0.565 0.770 0.300 0.135
        fednova 0.589 0.804 0.337 0.135
        fedavgm 0.655 0.843 0.408 0.125
        fedadagrad 0.645 0.828 0.405 0.121
        fedadam 0.638 0.825 0.390 0.125
        fedyogi 0.639 0.830 0.381 0.130
        afl 0.548 0.774 0.301 0.137
        fedfv 0.489 0.742 0.246 0.144
        fedmgda+ 0.386 0.658 0.133 0.166
        qfedavg 0.555 0.774 0.298 0.137
        fedlf 0.426 0.688 0.177 0.154
        config 0.600 0.801 0.333 0.136
        craft 0.706 0.878 0.474 0.115
        """
    ),
    "cifar10-resnet20": _table(
        """
        fedavg 0.356 0.727 0.015 0.195
        fedprox 0.356 0.728 0.015 0.195
        fednova 0.381 0.734 0.040 0.190
        fedavgm 0.463 0.871 0.040 0.241
        fedadagrad 0.427 0.799 0.072 0.206
        fedadam 0.412 0.790 0.065 0.197
        fedyogi 0.398 0.777 0.047 0.201
        afl 0.294 0.732 0.000 0.217
        fedfv 0.421 0.780 0.078 0.194
        fedmgda+ 0.235 0.612 0.000 0.193
        qfedavg 0.352 0.716 0.019 0.191
        fedlf 0.501 0.845 0.149 0.208
        config 0.525 0.872 0.146 0.211
        craft 0.806 1.000 0.479 0.159
        """
    ),
    "cifar10-resnet56": _table(
        """
        fedavg 0.362 0.728 0.016 0.196
        fedprox 0.363 0.721 0.012 0.197
        fednova 0.378 0.737 0.022 0.199
        fedavgm 0.399 0.826 0.009 0.243
        fedadagrad 0.401 0.792 0.026 0.215
        fedadam 0.376 0.760 0.020 0.204
        fedyogi 0.368 0.771 0.010 0.214
        afl 0.294 0.701 0.000 0.203
        fedfv 0.416 0.793 0.076 0.199
        fedmgda+ 0.249 0.693 0.000 0.219
        qfedavg 0.350 0.760 0.006 0.214
        fedlf 0.494 0.831 0.132 0.206
        config 0.317 0.694 0.000 0.196
        craft 0.823 1.000 0.500 0.154
        """
    ),
    "cifar10-resnet110": _table(
        """
        fedavg 0.325 0.712 0.000 0.201
        fedprox 0.325 0.713 0.000 0.203
        fednova 0.329 0.741 0.000 0.217
        fedavgm 0.344 0.811 0.000 0.244
        fedadagrad 0.361 0.767 0.005 0.212
        fedadam 0.348 0.785 0.001 0.224
        fedyogi 0.336 0.760 0.000 0.220
        afl 0.250 0.597 0.000 0.189
        fedfv 0.385 0.779 0.029 0.208
        fedmgda+ 0.252 0.693 0.000 0.224
        qfedavg 0.310 0.712 0.000 0.210
        fedlf 0.468 0.822 0.082 0.215
        config 0.185 0.556 0.000 0.177
        craft 0.818 1.000 0.486 0.158
        """
    ),
    "cifar100-resnet20": _table(
        """
        fedavg 0.122 0.336 0.000 0.104
        fedprox 0.122 0.336 0.000 0.104
        fednova 0.124 0.337 0.000 0.105
        fedavgm 0.213 0.462 0.008 0.130
        fedadagrad 0.178 0.433 0.000 0.127
        fedadam 0.174 0.415 0.000 0.121
        fedyogi 0.172 0.408 0.000 0.120
        afl 0.067 0.244 0.000 0.079
        fedfv 0.139 0.352 0.000 0.110
        fedmgda+ 0.029 0.164 0.000 0.057
        qfedavg 0.126 0.349 0.000 0.108
        fedlf 0.206 0.443 0.000 0.127
        config 0.208 0.458 0.000 0.131
        craft 0.398 0.673 0.137 0.154
        """
    ),
    "cifar100-resnet56": _table(
        """
        fedavg 0.097 0.297 0.000 0.097
        fedprox 0.097 0.298 0.000 0.097
        fednova 0.100 0.298 0.000 0.097
        fedavgm 0.166 0.398 0.000 0.117
        fedadagrad 0.132 0.352 0.000 0.108
        fedadam 0.123 0.335 0.000 0.105
        fedyogi 0.116 0.327 0.000 0.104
        afl 0.053 0.213 0.000 0.072
        fedfv 0.120 0.329 0.000 0.104
        fedmgda+ 0.011 0.098 0.000 0.032
        qfedavg 0.098 0.291 0.000 0.095
        fedlf 0.149 0.383 0.000 0.113
        config 0.181 0.418 0.000 0.121
        craft 0.381 0.661 0.112 0.156
        """
    ),
    "cifar100-resnet110": _table(
        """
        fedavg 0.091 0.273 0.000 0.088
        fedprox 0.093 0.281 0.000 0.090
        fednova 0.086 0.281 0.000 0.091
        fedavgm 0.141 0.372 0.000 0.114
        fedadagrad 0.121 0.328 0.000 0.103
        fedadam 0.111 0.314 0.000 0.101
        fedyogi 0.078 0.265 0.000 0.087
        afl 0.044 0.194 0.000 0.067
        fedfv 0.097 0.295 0.000 0.095
        fedmgda+ 0.013 0.114 0.000 0.040
        qfedavg 0.081 0.259 0.000 0.085
        fedlf 0.141 0.360 0.000 0.110
        config 0.072 0.250 0.000 0.084
        craft 0.363 0.629 0.110 0.149
        """
    ),
    "cifar10-cnn": _table(
        """
        fedavg 0.636 0.856 0.318 0.167
        fedprox 0.640 0.867 0.335 0.162
        fednova 0.667 0.867 0.413 0.138
        fedavgm 0.662 0.846 0.491 0.108
        fedadagrad 0.648 0.850 0.472 0.116
        fedadam 0.621 0.872 0.272 0.173
        fedyogi 0.607 0.865 0.345 0.152
        afl 0.562 0.733 0.285 0.134
        fedfv 0.641 0.875 0.361 0.150
        fedmgda+ 0.410 0.690 0.083 0.182
        qfedavg 0.586 0.808 0.336 0.143
        fedlf 0.603 0.872 0.303 0.165
        config 0.609 0.834 0.362 0.142
        craft 0.722 0.896 0.491 0.116
        """
    ),
    "cifar100-cnn": _table(
        """
        fedavg 0.335 0.474 0.209 0.079
        fedprox 0.342 0.485 0.223 0.079
        fednova 0.345 0.490 0.229 0.078
        fedavgm 0.319 0.446 0.201 0.070
        fedadagrad 0.340 0.464 0.236 0.068
        fedadam 0.314 0.456 0.207 0.069
        fedyogi 0.333 0.453 0.237 0.063
        afl 0.276 0.394 0.172 0.062
        fedfv 0.346 0.474 0.225 0.074
        fedmgda+ 0.090 0.197 0.017 0.051
        qfedavg 0.299 0.420 0.197 0.065
        fedlf 0.332 0.482 0.212 0.075
        config 0.341 0.472 0.218 0.077
        craft 0.359 0.484 0.255 0.069
        """
    ),
}

DITTO_BEST = {
    "cifar10": {"ditto": 0.644, "ditto+craft": 0.771},
    "cifar100": {"ditto": 0.245, "ditto+craft": 0.487},
}
"""The best mean accuracy of each heat map (Section 5.4); the cells are not in the text."""

AUTHORS_RUNS: dict[str, dict[int, float]] = {
    "cifar10-resnet20": dict(
        zip(
            (25, 50, 75, 100, 150, 200, 300, 400, 500),
            (0.153, 0.333, 0.515, 0.564, 0.659, 0.701, 0.750, 0.782, 0.806),
            strict=True,
        )
    ),
}
"""CRAFT's mean accuracy by round in the run that the authors released, at the rates 0.005, 0.1."""


def frame(table: str) -> pd.DataFrame:
    """Return one table as a frame with the column ``method``: what the report sets beside ours."""
    import pandas

    rows = [{"method": name, **row._asdict()} for name, row in TABLES[table].items()]
    return pandas.DataFrame(rows)
