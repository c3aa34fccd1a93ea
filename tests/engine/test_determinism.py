"""The same bits, wherever and in whichever order clients train."""

from __future__ import annotations

import pytest
import torch

from fedcraft.engine import run
from fedcraft.methods import method

_NAMES = ("craft", "ditto+craft", "fedfv", "afl", "fedmdfg", "scaffold", "feddyn", "apfl")
_METHODS = {name: method(name) for name in _NAMES}
_METHODS["fedrep"] = method("fedrep", local={"head_epochs": 2})


@pytest.mark.parametrize("name", _METHODS)
def test_one_two_and_three_processes_give_the_bits_of_none(
    name, federation, model, settings, same_bits
):
    alone = run(_METHODS[name], federation, model, settings(rounds=3))

    for workers in (1, 2, 3):
        together = settings(rounds=3, executor="processes", workers=workers)
        same_bits(run(_METHODS[name], federation, model, together), alone)


def test_workers_from_a_clean_server_give_the_bits_of_forked_ones(
    federation, model, settings, same_bits
):
    forked = settings(rounds=3, executor="processes", workers=2, start_method="fork")
    served = settings(rounds=3, executor="processes", workers=2, start_method="forkserver")

    same_bits(
        run(method("craft"), federation, model, forked),
        run(method("craft"), federation, model, served),
    )


def test_the_seed_changes_the_run(federation, model, settings):
    first = run(method("craft"), federation, model, settings(rounds=2, seed=1))
    second = run(method("craft"), federation, model, settings(rounds=2, seed=2))

    assert not torch.equal(first.vector, second.vector)
    assert first.metrics[0]["clients"] != second.metrics[0]["clients"]


def test_a_run_leaves_torch_and_the_callers_model_as_they_were(federation, model, settings):
    before = [parameter.clone() for parameter in model.parameters()]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()

    run(method("craft"), federation, model, settings(rounds=1))

    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_evaluation_does_not_depend_on_the_batch_it_is_done_in(federation, model, settings):
    small, large = (
        run(method("fedavg"), federation, model, settings(rounds=1, evaluate_batch=size))
        for size in (16, 4096)
    )

    assert small.evaluation == pytest.approx(large.evaluation, rel=1e-6)
