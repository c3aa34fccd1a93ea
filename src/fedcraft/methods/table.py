"""The table of methods. A new method is one more row."""

from __future__ import annotations

from fedcraft.methods.method import Method, Part

__all__ = ["markdown_table", "methods"]

# The server rules of Reddi et al., with the constants their paper recommends and no bias
# correction, which its algorithm 2 does not have.
_ADAPTIVE = {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
_FEDOPT = "Reddi et al., ICLR 2021"
# For rules whose direction has a length of its own: this rate alone sets the length of a step.
_OWN_LENGTH = 0.1
_CRAFT = Part("craft")

_ROWS = (
    Method(
        "fedavg",
        "FedAvg",
        "data-weighted mean of the clients' updates",
        "McMahan et al., AISTATS 2017",
        client_lr=0.1,
    ),
    Method(
        "fedprox",
        "FedProx",
        "FedAvg with clients pulled back to the broadcast model",
        "Li et al., MLSys 2020",
        local=Part("proximal", {"mu": 0.01}),
        client_lr=0.1,
    ),
    Method(
        "fednova",
        "FedNova",
        "mean of the clients' average steps, so that more local steps do not mean more weight",
        "Wang et al., NeurIPS 2020",
        aggregator=Part("fednova"),
        client_lr=0.1,
    ),
    Method(
        "fedavgm",
        "FedAvgM",
        "FedAvg with momentum on the server",
        "Hsu et al., 2019",
        server=Part("momentum", {"beta": 0.9}),
    ),
    Method(
        "fedadagrad",
        "FedAdaGrad",
        "FedAvg's update as a gradient for AdaGrad on the server",
        _FEDOPT,
        server=Part("adagrad", {"tau": 1e-3}),
        server_lr=0.01,
    ),
    Method(
        "fedadam",
        "FedAdam",
        "FedAvg's update as a gradient for Adam on the server",
        _FEDOPT,
        server=Part("adam", _ADAPTIVE),
        server_lr=0.01,
    ),
    Method(
        "fedyogi",
        "FedYogi",
        "FedAvg's update as a gradient for Yogi on the server",
        _FEDOPT,
        server=Part("yogi", _ADAPTIVE),
        server_lr=0.01,
    ),
    Method(
        "afl",
        "AFL",
        "weights climb the losses: the worst mixture of clients is trained",
        "Mohri et al., ICML 2019",
        aggregator=Part("afl", {"gamma": 0.1}),
    ),
    Method(
        "qfedavg",
        "q-FedAvg",
        "clients weigh by their loss to the power q",
        "Li et al., ICLR 2020",
        aggregator=Part("qfedavg", {"q": 0.1}),
    ),
    Method(
        "fedmgda+",
        "FedMGDA+",
        "shortest mixture of unit updates with weights near the data's",
        "Hu et al., IEEE TNSE 2022",
        aggregator=Part("fedmgda", {"epsilon": 0.1}),
        server_lr=_OWN_LENGTH,
    ),
    Method(
        "fedfv",
        "FedFV",
        "conflicting updates are projected off each other before the mean",
        "Wang et al., IJCAI 2021",
        aggregator=Part("fedfv", {"alpha": 0.1, "tau": 1}),
    ),
    Method(
        "fedlf",
        "FedLF",
        "per layer, the shortest mixture of updates and of a fairness direction",
        "Pan et al., AAAI 2024",
        aggregator=Part("fedlf"),
    ),
    Method(
        "fedlf-history",
        "FedLF with history",
        "FedLF with the recent updates of absent clients in the mixture",
        "Pan et al., AAAI 2024",
        aggregator=Part("fedlf", {"history": True}),
    ),
    Method(
        "fedmdfg",
        "FedMDFG",
        "shortest mixture of updates and of a fairness direction, with a step-size search",
        "Pan et al., AAAI 2023",
        aggregator=Part("fedmdfg"),
        in_paper=False,
    ),
    Method(
        "config",
        "ConFIG",
        "per layer, the shortest step on which every client gets its share: CRAFT without memory",
        "Liu et al., ICLR 2025",
        aggregator=Part("config", {"meaning": "layerwise"}),
        server_lr=_OWN_LENGTH,
    ),
    Method(
        "craft",
        "CRAFT",
        "per layer, the step nearest to the previous one on which every client gets its share",
        "the paper, algorithm 1",
        aggregator=_CRAFT,
        server_lr=_OWN_LENGTH,
    ),
    Method(
        "craft-one-sided",
        "CRAFT, one-sided",
        "CRAFT that gives every client at least its share, and corrects only who falls short",
        "fedcraft's own",
        aggregator=Part("craft", {"constraint": "at_least"}),
        in_paper=False,
        server_lr=_OWN_LENGTH,
    ),
    Method(
        "craft-fair",
        "CRAFT, fair variant",
        "CRAFT that gives every client at least an equal share, and corrects only who falls short",
        "fedcraft's own",
        aggregator=Part("craft", {"constraint": "at_least", "target": "uniform"}),
        in_paper=False,
        server_lr=_OWN_LENGTH,
    ),
    Method(
        "layer-momentum",
        "Layer momentum (control)",
        "CRAFT's memory and scale without its conflict resolution: the ablations' control",
        "fedcraft's own",
        aggregator=Part("layer_momentum"),
        in_paper=False,
        server_lr=_OWN_LENGTH,
    ),
    Method(
        "ditto",
        "Ditto",
        "a personal model per client, drawn to FedAvg's global one",
        "Li et al., ICML 2021",
        local=Part("ditto", {"lam": 1.0}),
    ),
    Method(
        "ditto+craft",
        "Ditto + CRAFT",
        "a personal model per client, drawn to CRAFT's global one",
        "the paper, section 5.4",
        local=Part("ditto", {"lam": 1.0}),
        aggregator=_CRAFT,
        server_lr=_OWN_LENGTH,
    ),
    Method(
        "perfedavg",
        "Per-FedAvg",
        "a global model that is good after one step on a client's own data",
        "Fallah et al., NeurIPS 2020",
        local=Part("perfedavg"),
        in_paper=False,
    ),
    Method(
        "perfedavg+craft",
        "Per-FedAvg + CRAFT",
        "Per-FedAvg's clients with CRAFT's aggregation",
        "fedcraft's own",
        local=Part("perfedavg"),
        aggregator=_CRAFT,
        in_paper=False,
        server_lr=_OWN_LENGTH,
    ),
    Method(
        "fedrep",
        "FedRep",
        "a shared body, and a head per client that is never uploaded",
        "Collins et al., ICML 2021",
        local=Part("fedrep"),
        in_paper=False,
    ),
    Method(
        "fedrep+craft",
        "FedRep + CRAFT",
        "FedRep's clients with CRAFT's aggregation of the body",
        "fedcraft's own",
        local=Part("fedrep"),
        aggregator=_CRAFT,
        in_paper=False,
        server_lr=_OWN_LENGTH,
    ),
)


def methods() -> tuple[Method, ...]:
    """Return all methods, in the order of the table."""
    return _ROWS


def markdown_table() -> str:
    """Return the table of methods as Markdown: what README and documentation show."""
    head = ("method", "clients", "aggregation", "server", "in the paper", "in one line", "source")
    lines = [_line(head), _line(["---"] * len(head))]
    for row in _ROWS:
        parts = (f"`{part}`" for part in (row.local, row.aggregator, row.server))
        shown = "yes" if row.in_paper else ""
        lines.append(_line([f"`{row.name}`", *parts, shown, row.summary, row.reference]))
    return "\n".join(lines) + "\n"


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"
