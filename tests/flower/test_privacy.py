"""Differential privacy on Flower: noise before an update leaves, and an account that is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from benchmarks.grids import InProcessGrid
from fedcraft.aggregators import aggregator
from fedcraft.errors import ClientError, ConfigError, InputError, StateError
from fedcraft.flower import SecureAnswers
from fedcraft.flower.messages.arrays import open_array
from fedcraft.flower.server.clients import KnownClients
from fedcraft.flower.server.private_rounds import FederatedPrivacy
from fedcraft.privacy import Privacy
from fedcraft.privacy.accounting import gaussian_epsilon
from fedcraft.secure import Secure
from fedcraft.secure.limits import Limits

LOCAL = Privacy(mode="local", clip=0.5, noise=2.0)
CENTRAL = Privacy(mode="central", clip=0.5, noise=2.0)
DISTRIBUTED = Privacy(mode="distributed", clip=0.5, noise=2.0)
SUMS = Secure(sketch=0, bound=50.0)


class Replies(InProcessGrid):
    """Keeps the training replies; stops the server in the middle of one round."""

    def __init__(self, app: Any, *, stop_in: int = 0) -> None:
        super().__init__(app, small.CLIENTS, fault=self._keep)
        self.kept: list[Any] = []
        self.stop_in = stop_in

    def _keep(self, question: Any, reply: Any) -> Any:
        if question.metadata.message_type == "train":
            if question.content["config"]["server-round"] == self.stop_in:
                raise KeyboardInterrupt
            self.kept.append(reply.content)
        return reply


def epsilon(rounds: int) -> float:
    return gaussian_epsilon(2.0, rounds, 1e-5)


def private_run(name: str = "craft", *, rounds: int = 2, grid: Any = None, **options: Any) -> Any:
    grid = grid or Replies(small.app(name, privacy=LOCAL))
    chosen = small.strategy(name, **{"privacy": LOCAL, **options})
    return chosen.start(grid, small.arrays(), rounds, timeout=0.3), grid, chosen


def test_only_noisy_updates_leave_and_every_round_reports_its_budget(tmp_path):
    result, grid, _ = private_run(run_dir=tmp_path / "run")
    rows = [open_array(content["update"]["row"]) for content in grid.kept]
    deviation = 2 * LOCAL.clip * LOCAL.noise
    assert np.concatenate(rows).std() == pytest.approx(deviation, rel=0.05)
    assert {name for content in grid.kept for name in content["metrics"]} == {
        "num-examples", "client-id", "state-lost", "privacy-clip", "privacy-noise",
    }  # fmt: skip
    assert {content["metrics"]["num-examples"] for content in grid.kept} == {1}
    spent = [record["epsilon"] for record in result.train_metrics_clientapp.values()]
    assert spent == [epsilon(1), epsilon(2)]
    table = small.tables(tmp_path / "run")["metrics"]
    assert [row["privacy"]["epsilon"] for row in table] == spent


@pytest.mark.parametrize(
    "stated", [None, Privacy(mode="local", clip=1.0, noise=2.0),
               Privacy(mode="local", clip=0.5, noise=1.9)],
    ids=["nothing", "longer", "less noise"],
)  # fmt: skip
def test_replies_with_less_privacy_than_the_account_assumes_are_refused(stated):
    with pytest.raises(ClientError, match="privacy-"):
        private_run(grid=Replies(small.app(privacy=stated)), attempts=1)


def test_a_round_beyond_the_budget_is_not_started(tmp_path):
    limited = Privacy(mode="local", clip=0.5, noise=2.0, epsilon=epsilon(2) + 1e-6)
    result, grid, _ = private_run(rounds=5, privacy=limited, run_dir=tmp_path / "run")
    assert len(grid.kept) == 2 * small.CLIENTS
    assert list(result.train_metrics_clientapp) == [1, 2]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert "one more round would exceed epsilon" in status["reason"]


def test_clients_that_were_asked_count_even_if_the_server_was_stopped(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        private_run(grid=Replies(small.app(privacy=LOCAL), stop_in=2), run_dir=folder)
    result, _, _ = private_run(run_dir=folder)  # round 2 is repeated
    assert result.train_metrics_clientapp[2]["epsilon"] == epsilon(3)


def test_failed_attempts_count():
    silent = Replies(small.app(privacy=LOCAL))
    silent.fault = lambda question, reply: (
        None if question.metadata.message_type == "train" else reply
    )
    chosen = small.strategy(privacy=LOCAL, attempts=3)
    with pytest.raises(ClientError):
        chosen.start(silent, small.arrays(), 1, timeout=0.1)
    assert chosen.state.private.accountant.epsilon() == epsilon(3)


def test_a_run_without_its_account_does_not_continue(tmp_path):
    folder = tmp_path / "run"
    private_run(run_dir=folder, rounds=1)
    (folder / "privacy.json").unlink()
    with pytest.raises(StateError, match="no account"), pytest.warns(match="privacy.json"):
        private_run(run_dir=folder)


def test_a_client_without_a_number_may_be_any_so_all_rounds_count(tmp_path):
    grid = Replies(small.app(privacy=LOCAL))
    grid.fault = small.nameless
    options = {"fraction_train": 0.5, "min_train_nodes": 1}
    result, _, _ = private_run(rounds=4, grid=grid, **options)
    assert result.train_metrics_clientapp[4]["epsilon"] == epsilon(4)


def test_an_unnamed_node_after_a_restart_counts_as_anyone():
    """A restarted node may be another client than the one that the checkpoint names."""

    def account() -> FederatedPrivacy:
        found = FederatedPrivacy(LOCAL, aggregator("craft"), None, 1)
        found.accountant.load_state_dict({"rounds": 5, "sample": 1, "counts": [[0, 1], [1, 4]]})
        return found

    clients = KnownClients()
    clients.by_node = {70: 0, 71: 1}  # from the checkpoint
    restarted = account()
    restarted.ask([70], clients)
    assert restarted.accountant.epsilon() == epsilon(6)  # it may be one that took part in all five
    clients.online = [70]
    clients.enter(70, 0)  # the node has said again who it is
    restarted.ask([70], clients)
    assert restarted.accountant.epsilon() == epsilon(7)  # what was unknown stays in the account
    named = account()
    named.ask([70], clients)
    assert named.accountant.epsilon() == epsilon(4)


@pytest.mark.parametrize(
    ("options", "answers"),
    [({}, True), ({"privacy": LOCAL}, False), ({"secure": SecureAnswers()}, False)],
    ids=["plain", "privacy", "secure"],
)
def test_a_client_that_hides_its_update_answers_no_loss_query(options, answers):
    """Losses at many models close to each other show the gradient, and carry no noise."""
    grid = InProcessGrid(small.app("fedavg", **options), 1)
    (node,) = grid.get_node_ids()
    content = RecordDict({"arrays": small.arrays(), "config": ConfigRecord({})})
    asked = Message(content, dst_node_id=node, message_type="query.loss")
    (reply,) = grid.send_and_receive([asked])
    assert reply.has_error() != answers


def test_distributed_noise_takes_part_in_rounds_of_sums_only(caplog):
    """The limits that the user gave hold for clients without noise, and are not changed."""
    mine = SecureAnswers(Limits(most_share=1.0, least_clients=2))
    app = small.app("fedavg", privacy=DISTRIBUTED, secure=mine)
    curious = small.strategy("fedavg", secure=Secure(sketch=64, most_share=1.0), attempts=1)
    grid = Replies(app)
    reason = (
        r"missing \[\], .*4 refused the secure round, node \d+ because: stage keys: .*sums only"
    )
    with caplog.at_level("WARNING", logger="flwr"), pytest.raises(ClientError, match=reason):
        curious.start(grid, small.arrays(), 1, timeout=0.3)
    assert caplog.text.count("takes part in rounds of sums only") == small.CLIENTS
    assert not grid.kept  # nobody was trained
    assert mine.limits == Limits(most_share=1.0, least_clients=2)
    sums = small.strategy("fedavg", secure=SUMS, attempts=1)
    sums.start(grid, small.arrays(), 1, timeout=0.3)
    assert len(grid.kept) == small.CLIENTS


def test_central_noise_is_added_to_the_mean_of_clipped_updates():
    app, start = small.app("fedavg"), torch.cat([p.reshape(-1) for p in small.model().parameters()])
    steps = []
    for _ in range(2):
        _, _, chosen = private_run("fedavg", rounds=1, grid=Replies(app), privacy=CENTRAL)
        steps.append(small.theta(chosen) - start.detach())
    deviation = 2 * CENTRAL.clip * CENTRAL.noise / small.CLIENTS
    assert float((steps[0] - steps[1]).std()) == pytest.approx(2**0.5 * deviation, rel=0.15)


def test_central_rounds_are_clipped_and_claimed_sizes_do_not_count():
    fixed = Privacy(mode="central", clip=1e-3, noise=1e-6)
    start = torch.cat([p.detach().reshape(-1) for p in small.model().parameters()])

    def claim(reply: Any) -> Any:
        reply.content["metrics"]["num-examples"] = 10**9
        return reply

    steps = []
    for fault in (None, small.corrupting(1, claim)):
        grid = InProcessGrid(small.app("fedavg"), small.CLIENTS, fault=fault)
        _, _, chosen = private_run("fedavg", rounds=1, grid=grid, privacy=fixed)
        steps.append(small.theta(chosen) - start)
        assert chosen.certificate is None  # it would be about updates without noise
    assert 0 < float(steps[0].norm()) < 1.001e-3
    assert float((steps[0] - steps[1]).norm()) < 1e-5


def test_updates_are_clipped_before_they_leave():
    fixed = Privacy(mode="local", clip=1e-3, noise=1e-6)
    grid = Replies(small.app("fedavg", privacy=fixed))
    private_run("fedavg", rounds=1, grid=grid, privacy=fixed)
    rows = [open_array(content["update"]["row"]) for content in grid.kept]
    assert [float(np.linalg.norm(row)) for row in rows] == pytest.approx([1e-3] * 4, rel=1e-3)


def test_distributed_noise_adds_up_in_a_secure_sum():
    hidden = SecureAnswers(Limits(most_share=1.0, least_clients=small.CLIENTS))
    grid = Replies(small.app("fedavg", privacy=DISTRIBUTED, secure=hidden))
    options = {"privacy": DISTRIBUTED, "secure": SUMS, "min_clients": small.CLIENTS}
    result, _, _ = private_run("fedavg", grid=grid, **options)
    assert result.train_metrics_clientapp[2]["epsilon"] == epsilon(2)
    eager = small.app("fedavg", privacy=DISTRIBUTED, secure=SecureAnswers(Limits(1.0)))
    private_run("fedavg", grid=Replies(eager), **options)  # more noise than needed is welcome
    with pytest.raises(ClientError, match="privacy-noise"):
        private_run("fedavg", grid=grid, attempts=1, **{**options, "min_clients": 2})


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("craft", {"privacy": CENTRAL}, "one client can move the step of Craft"),
        ("fedavg", {"privacy": CENTRAL, "guard": "krum"}, "one client can move the step"),
        ("fedavg", {"privacy": CENTRAL, "secure": SUMS}, "clips every update"),
        ("fedavg", {"privacy": DISTRIBUTED}, "protects sums only"),
        ("qfedavg", {"privacy": LOCAL}, "also needs .*losses"),
    ],
)
def test_unsound_combinations_are_refused_when_the_strategy_is_made(name, options, reason):
    with pytest.raises(ConfigError, match=reason):
        small.strategy(name, **options)


def test_clients_refuse_what_would_not_protect_them():
    with pytest.raises(InputError, match="added by the server"):
        small.app(privacy=CENTRAL)
    with pytest.raises(InputError, match="secure sum only"):
        small.app(privacy=DISTRIBUTED)


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (small.strategy, {"secure": True}, r"Secure\(...\)"),
        (small.strategy, {"secure": {"sketch": 64}}, r"Secure\(...\)"),
        (small.strategy, {"privacy": {"mode": "local"}}, r"Privacy\(...\)"),
        (small.app, {"secure": Secure()}, r"SecureAnswers\(\),"),
        (small.app, {"privacy": {"mode": "local"}}, r"Privacy\(...\)"),
    ],
)
def test_options_of_another_kind_are_refused_by_name(make, options, expected):
    (name,) = options
    with pytest.raises(InputError, match=rf"^{name}: expected a .*{expected} or None, found"):
        make(**options)


def wrapped(*, fault: Any = None, **options: Any) -> torch.Tensor:
    """Run a round of fedavg inside a strategy of Flower that clips and adds next to no noise."""
    ours = small.strategy("fedavg", reply="model", **options)
    wrapper = DifferentialPrivacyServerSideFixedClipping(ours, 1e-6, 0.01, small.CLIENTS)
    grid = InProcessGrid(small.app("fedavg"), small.CLIENTS, fault=fault)
    return small.vector_of(wrapper.start(grid, small.arrays(), 1, timeout=0.3).arrays)


def test_inside_flowers_wrapper_all_clients_weigh_alike():
    """Its noise is for a mean; one client that claims many examples would move more."""

    def claim(reply: Any) -> Any:
        reply.content["metrics"]["num-examples"] = 10**9
        return reply

    plain = wrapped(weighted_by_key=None)
    bold = wrapped(weighted_by_key=None, fault=small.corrupting(1, claim))
    assert torch.allclose(plain, bold, atol=1e-6)
    with pytest.raises(InputError, match=r"found 'num-examples': .* weighted_by_key=None"):
        wrapped()


@pytest.mark.parametrize("options", [{"server": "adam"}, {"server_lr": 2.0}])
def test_inside_flowers_wrapper_the_step_is_the_mean(options):
    with pytest.raises(InputError, match=r'server: expected sgd .*server="sgd" and server_lr=1'):
        wrapped(weighted_by_key=None, **options)


def test_no_other_strategy_may_run_private_rounds(tmp_path: Path):
    ours = small.strategy("fedavg", privacy=LOCAL)
    wrapper = DifferentialPrivacyServerSideFixedClipping(ours, 1.0, 1.0, small.CLIENTS)
    with pytest.raises(InputError, match=r"privacy: only start\(\)"):
        wrapper.start(Replies(small.app("fedavg")), small.arrays(), 1)
