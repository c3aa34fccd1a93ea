"""Mixtures by name, rules of one's own by their place, and what tables call both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedcraft
from fedcraft.aggregators import RULES
from fedcraft.errors import ConfigError, InputError
from fedcraft.methods import method, method_title, methods, mixture_name

RULE = """
from fedcraft.aggregators import Aggregator, Outcome


class First(Aggregator):
    def direction(self, cohort):
        return Outcome(cohort.matrix[0].clone())


class NoRule:
    pass
"""


@pytest.fixture
def own_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "firstrule.py").write_text(RULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "firstrule:First"


@pytest.mark.parametrize(
    ("name", "parts", "rate", "title"),
    [
        ("fedprox+craft", ("proximal", "craft", "sgd"), 0.1, "FedProx + CRAFT"),
        ("FedProx+CRAFT", ("proximal", "craft", "sgd"), 0.1, "FedProx + CRAFT"),
        ("ditto+fedavgm", ("ditto", "average", "momentum"), 1.0, "Ditto + FedAvgM"),
        ("fedprox+fedmgda+", ("proximal", "fedmgda", "sgd"), 0.1, "FedProx + FedMGDA+"),
        ("fedrep+layer_momentum", ("fedrep", "layer_momentum", "sgd"), 1.0, None),
        ("craft+adam", ("plain", "craft", "adam"), 0.1, "CRAFT + Adam on the server"),
        ("fedprox+craft+adam", ("proximal", "craft", "adam"), 0.1, None),
    ],
)
def test_a_mixture_has_the_clients_of_one_and_the_server_of_the_other(
    name: str, parts: tuple[str, str, str], rate: float, title: str | None
) -> None:
    mixed = method(name)
    assert (mixed.local.name, mixed.aggregator.name, mixed.server.name) == parts
    assert mixed.server_lr == rate
    assert title in (None, mixed.title)


def test_a_row_of_the_table_comes_before_a_mixture() -> None:
    assert method("ditto+craft").summary != method("ditto+fedfv").summary


@pytest.mark.parametrize("name", ["fedprox+crafd", "proxfed+craft", "+craft", "craft+", "a+b+c"])
def test_half_a_mixture_is_not_a_method(name: str) -> None:
    with pytest.raises(InputError, match="such as fedprox\\+craft"):
        method(name)


def test_a_custom_rule_is_named_by_its_import_path(own_rule: str) -> None:
    assert type(fedcraft.aggregator(own_rule)).__name__ == "First"
    assert method(own_rule).local.name == "plain"
    assert method(own_rule).title == own_rule
    assert method(f"fedprox+{own_rule}").title == f"FedProx + {own_rule}"
    assert method("fedprox", aggregator=own_rule).aggregator.name == own_rule


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("firstrule:NoRule", "expected a kind of Aggregator"),
        ("firstrule:Second", "cannot be imported.*Second"),
        ("nowhere:Rule", "cannot be imported.*nowhere"),
        (":Rule", "cannot be imported"),
        ("./firstrule.py:First", "cannot be imported.*expected package.module:Name"),
        ("median", "unknown name 'median'.*package.module:Name"),
    ],
)
def test_a_place_without_a_rule_is_an_error(own_rule: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fedcraft.aggregator(name)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"method": "fedprox"}, "fedprox"),
        ({"method": "fedprox", "aggregator": {"name": "craft"}}, "fedprox+craft"),
        ({"method": "fedprox", "aggregator": {"name": "average"}}, "fedprox"),
        ({"method": "craft", "server": {"name": "adam", "tau": 0.01}}, "craft+adam"),
        ({"method": "craft", "local": {"name": "ditto"}}, "ditto+craft"),
        ({"method": "craft", "aggregator": {"name": "mine:Own"}, "local": {}}, "craft+mine:Own"),
        ({"method": "fedprox+mine:Own"}, "fedprox+mine:Own"),
        ({"method": "fedmgda+"}, "fedmgda+"),
        ({"method": "FedMGDA"}, "fedmgda+"),
        ({"method": "FedProx+CRAFT"}, "fedprox+craft"),
        ({"method": "fedavgm+craft"}, "fedavgm+craft"),
        ({"method": "fedavgm", "aggregator": {"name": "craft"}}, "fedavgm+craft+momentum"),
        ({"method": "fedavgm", "aggregator": {"name": "mine:Own"}}, "fedavgm+mine:Own"),
        ({"method": "unheard-of", "aggregator": {"name": "x"}}, "unheard-of"),
        ({"method": "craft", "aggregator": "no table"}, "craft"),
    ],
)
def test_a_run_is_called_by_the_parts_that_were_exchanged(
    config: dict[str, Any], name: str
) -> None:
    assert mixture_name(config["method"], config) == name


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("server", [{}, {"server": {"name": "yogi"}}])
def test_what_a_run_is_called_is_what_it_is_made_of(rule: str, server: dict[str, Any]) -> None:
    tables = {"aggregator": {"name": rule}, **server}
    for row in methods():
        run, called = method(row.name, **tables), method(mixture_name(row.name, tables))
        for part in ("local", "aggregator", "server"):
            assert getattr(called, part).name == getattr(run, part).name


@pytest.mark.parametrize("place", ["mine:Craft", "mine:FedAvg", "mine:Adam"])
def test_a_custom_class_is_not_taken_for_fedcrafts(place: str) -> None:
    for config in ({"method": place}, {"method": "fedavg", "aggregator": {"name": place}}):
        assert place in method_title(mixture_name(config["method"], config))


@pytest.mark.parametrize("label", ["my own label + more", "rates:low", "<a>(javascript:x)"])
def test_labels_stay_as_they_are(label: str) -> None:
    assert method_title(label) == label


def test_exchanged_parts_are_a_separate_row(tmp_path: Path, own_rule: str) -> None:
    """CRAFT's numbers must not stand as FedProx's, nor a rule of one's own as FedAvg's."""
    common = {"dataset": "digits", "rounds": 1, "workers": 1, "executor": "serial"}
    chosen = [
        {"method": "fedprox"},
        {"method": "fedprox", "aggregator": {"name": "craft"}},
        {"method": "fedavg", "aggregator": {"name": own_rule}},
        {"method": own_rule},
    ]
    runs = [
        fedcraft.run(**common, **keys, out=tmp_path / str(place))
        for place, keys in enumerate(chosen)
    ]
    named = ["fedprox", "fedprox+craft", f"fedavg+{own_rule}", own_rule]
    assert [run.method for run in runs] == named
    pytest.importorskip("pandas")
    from fedcraft.report import load_runs
    from fedcraft.runs.select import group

    (problem,) = group(load_runs([tmp_path]))
    labels = {entry.label for entry in problem.entries}
    assert labels == {"FedProx", "FedProx + CRAFT", f"fedavg+{own_rule}", own_rule}


def test_a_config_says_what_is_wrong_with_a_place() -> None:
    with pytest.raises(ConfigError, match=r"cannot be imported.*nowhere"):
        fedcraft.Config(rounds=1).but(method="nowhere:Rule")
    with pytest.raises(ConfigError, match="mixtures of clients and a server"):
        fedcraft.Config(rounds=1).but(method="fedprox+crafd")


def test_a_guard_in_either_half_of_a_mixture_stays() -> None:
    for name in ("multi-krum+craft", "fedprox+multi-krum"):
        assert fedcraft.method(name).guard.name == "multi_krum"
    with pytest.raises(InputError, match="krum and rfa each have a guard"):
        fedcraft.method("krum+rfa")


def test_a_method_that_is_a_guard_takes_no_other() -> None:
    with pytest.raises(InputError, match="of which krum consists, found default"):
        fedcraft.method("krum", guard="default")
    assert fedcraft.method("rfa", guard={"iterations": 5}).guard.params["iterations"] == 5
