"""Several LocalSGD on one model, and one on a part of it."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from localsgd import LocalSGD, UserError
from localsgd.optimizer.unfinished import _open, _warn
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def local_sgd(model: nn.Module, part: nn.Module) -> LocalSGD:
    return LocalSGD(torch.optim.SGD(part.parameters(), lr=0.1), model, local_steps=4)


def equal(model: nn.Module) -> bool:
    mine = nn.utils.parameters_to_vector(model.parameters()).detach()
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, mine)
    return all(torch.equal(mine, other) for other in all_of_them)


def two() -> list[str]:
    """Two on one model, each with a part: what is said, and what is refused."""
    model = net()
    first, second = local_sgd(model, model[0]), local_sgd(model, model[2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss_of(model, dist.get_rank(), 0).backward()
        first.step()
        second.step()
        with first.averaged_model(), second.averaged_model():
            assert equal(model)
        with second.averaged_model(), first.averaged_model():
            assert equal(model)
        assert not caught
        with first.averaged_model():
            assert equal(model[0])
            assert not equal(model[2])
            for call in (second.step, second.finish):
                with pytest.raises(UserError, match="of another LocalSGD on the same model"):
                    call()
        with first.averaged_model():
            pass
        first.finish()
        second.finish()
        assert equal(model)
    return [str(w.message) for w in caught]


def test_two_on_one_model_show_their_average_together() -> None:
    first, second = run(2, two)
    assert len(first) == 1
    assert "averaged_model() of one of 2 LocalSGD on this model" in first[0]
    assert second == []


def one_after_the_other() -> list[str]:
    """A later LocalSGD of the same parameters takes the place of the first."""
    model = net()
    first = local_sgd(model, model)
    second = local_sgd(model, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with second.averaged_model():
            pass
    return [str(w.message) for w in caught] if first else []


def test_one_that_has_been_replaced_is_no_neighbour() -> None:
    assert run(2, one_after_the_other) == [[], []]


def partly(frozen: bool) -> list[str]:
    model = net()
    if frozen:
        model[2].requires_grad_(False)
    optimizer = local_sgd(model, model[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2):
            loss_of(model, dist.get_rank(), step).backward()
            optimizer.step()
    return [str(w.message) for w in caught]


def test_a_part_that_nobody_averages_is_named_once() -> None:
    (text,), others = run(2, partly, False)
    assert text.startswith("2 parameters of the model have gradients and are in no LocalSGD")
    assert "2.weight" in text
    assert others == []
    assert run(2, partly, True) == [[], []]


def at_the_end() -> list[list[str]]:
    """What the end of the program would say: after steps, after an average, after finish()."""
    model, found = net(), list[list[str]]()
    _open.clear()  # Of other tests in this process.

    def look() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _warn()
        found.append([str(w.message) for w in caught])

    optimizer = local_sgd(model, model)
    look()
    for step in range(6):
        loss_of(model, dist.get_rank(), step).backward()
        optimizer.step()
    look()
    with optimizer.averaged_model():
        pass
    look()
    loss_of(model, dist.get_rank(), 6).backward()
    optimizer.step()
    look()
    optimizer.finish()
    look()
    return found


def ended_by(error: bool, dropped: bool) -> list[str]:
    """What the end of the program would say where a call has failed, or a model was given up."""
    _open.clear()

    def trained() -> LocalSGD:
        model = net()
        optimizer = local_sgd(model, model)
        loss_of(model, dist.get_rank(), 0).backward()
        optimizer.step()
        return optimizer

    optimizer = trained()
    if error:
        optimizer.model[0].weight.data = optimizer.model[0].weight.data.clone()
        with pytest.raises(UserError, match="other memory"):
            optimizer.finish()
    if dropped:
        del optimizer
        trained().finish()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _warn()
    return [str(w.message) for w in caught]


def test_a_run_that_has_failed_or_was_given_up_is_not_unfinished() -> None:
    assert run(2, ended_by, True, False) == [[], []]
    assert run(2, ended_by, False, True) == [[], []]
    first, second = run(2, ended_by, False, False)
    assert "the program ends 1 step after the last sync" in first[0]
    assert second == []


def on_its_way() -> list[str]:
    """At the end of a process of multiprocessing the error is not yet printed."""
    _open.clear()
    model = net()
    optimizer = local_sgd(model, model)
    loss_of(model, dist.get_rank(), 0).backward()
    optimizer.step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            try:
                raise ValueError("mine")
            finally:
                _warn()
        except ValueError:
            pass
    return [str(w.message) for w in caught]


def test_an_error_on_its_way_is_enough() -> None:
    assert run(2, on_its_way) == [[], []]


def test_a_program_that_ends_without_finish_is_told() -> None:
    first, second = run(2, at_the_end)
    assert [len(texts) for texts in first] == [0, 1, 0, 1, 0]
    assert first[1][0].startswith("the program ends 2 steps after the last sync")
    assert "finish() was not called" in first[1][0]
    assert second == [[]] * 5
