"""What is asked for, checked before any process talks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import localsgd
from localsgd import UserError
from localsgd.averaging.outer import OUTERS
from localsgd.optimizer.settings import Settings, settings_of
from localsgd.reduce import (
    BFloat16,
    CompressedMean,
    ExactMean,
    Int8,
    MajorityVote,
    PowerSgd,
    Sign,
    TopK,
)
from localsgd.reduce.named import REDUCERS
from localsgd.rows.layout import Layout
from localsgd.train.config.parts import compression_names, outer_names
from localsgd.wire import InProcess

momentum = localsgd.outer.block_momentum(0.5)


def settings(processes: int = 4, **keywords: Any) -> Settings:
    given: dict[str, Any] = {
        "local_steps": 1,
        "topology": None,
        "average": "auto",
        "reducer": None,
        "outer": None,
    }
    return settings_of(processes, **{**given, **keywords})


def test_the_plain_case() -> None:
    found = settings(local_steps=4)
    assert found.topology == localsgd.Topology((4,))
    assert found.schedules == (localsgd.every(4),)
    assert found.reducers == (ExactMean(),)
    assert found.outers == (None,)
    assert found.exact == 1


def test_levels_run_from_the_innermost_outwards() -> None:
    found = settings(local_steps=[2, localsgd.warmup(8, 4)], topology="2x2")
    assert found.schedules == (localsgd.every(2), localsgd.warmup(8, 4))


def test_one_value_is_the_outermost_level_s() -> None:
    found = settings(local_steps=[2, 8], topology="2x2", reducer="ordered", outer="diloco")
    assert found.reducers == (ExactMean(), localsgd.OrderedMean())
    assert [one is None for one in found.outers] == [True, False]
    flat = settings(local_steps=2, reducer=CompressedMean(Sign()), outer=None)
    assert repr(flat.reducers) == repr((CompressedMean(Sign()),))


def test_a_list_may_mix_names_and_objects() -> None:
    found = settings(
        local_steps=[2, 8], topology="2x2", reducer=["ordered", ExactMean()], outer=[momentum, None]
    )
    assert found.reducers == (localsgd.OrderedMean(), ExactMean())
    assert found.outers == (momentum, None)


@pytest.mark.parametrize(
    ("name", "reducer"),
    [
        ("none", ExactMean()),
        ("exact", ExactMean()),
        ("ordered", localsgd.OrderedMean()),
        ("sign", CompressedMean(Sign(), feedback=False)),
        ("ef-sign", CompressedMean(Sign())),
        ("int8", CompressedMean(Int8())),
        ("top-k", CompressedMean(TopK())),
        ("bfloat16", CompressedMean(BFloat16())),
        ("majority", MajorityVote()),
        ("power-sgd", PowerSgd()),
    ],
)
def test_a_name_is_described_as_the_object(name: str, reducer: Any) -> None:
    found = [settings(reducer=one).described()["reducer"] for one in (name, reducer, [reducer])]
    assert found[0] == found[1] == found[2]
    assert name in REDUCERS


@pytest.mark.parametrize(
    ("name", "outer"),
    [
        ("average", None),
        ("sgd", localsgd.outer.sgd()),
        ("sgd", partial(torch.optim.SGD, lr=1.0, momentum=0.0, nesterov=False)),
        ("block-momentum", localsgd.outer.block_momentum(0.3)),
        ("slowmo", localsgd.outer.slowmo()),
        ("bmuf", localsgd.outer.bmuf(4)),
        ("diloco", localsgd.outer.diloco()),
    ],
)
def test_an_outer_name_is_described_as_the_object(name: str, outer: Any) -> None:
    found = [settings(outer=one).described()["outer"] for one in (name, outer)]
    assert found[0] == found[1]
    assert name in OUTERS


def test_the_command_line_has_the_same_names() -> None:
    assert {*compression_names()} | {"exact", "ordered"} == set(REDUCERS)
    assert set(outer_names()) == set(OUTERS)


class Lossy(ExactMean):
    linear = False


@pytest.mark.parametrize(
    ("keywords", "exact"),
    [
        ({"average": "models"}, 0),
        ({"average": "gradients"}, 1),
        ({"outer": [momentum]}, 0),
        ({"reducer": [Lossy()]}, 0),
        ({"reducer": [localsgd.OrderedMean()]}, 1),
        ({"local_steps": [1, 4], "topology": "2x2", "outer": [None, momentum]}, 1),
        ({"local_steps": [1, 4], "topology": "2x2", "reducer": [Lossy(), None]}, 0),
        (
            {
                "local_steps": [1, 4],
                "topology": "2x2",
                "outer": [None, momentum],
                "average": "gradients",
            },
            1,
        ),
        ({"local_steps": 4, "outer": [momentum]}, 0),
    ],
)
def test_levels_that_may_average_gradients(keywords: dict[str, Any], exact: int) -> None:
    assert settings(**keywords).exact == exact


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"local_steps": 0}, "local_steps = 0 is no number of steps"),
        ({"local_steps": "4,8"}, "local_steps='4,8' is text; give a number"),
        ({"local_steps": 1.5}, "local_steps = 1.5 is no number of steps"),
        ({"topology": 1.5}, "is not understood"),
        ({"delay": 4}, "delay=4 is no localsgd.Delay"),
        ({"inner_state": {"exp_avg": "average"}}, "is no text; write KEY=RULE"),
        (
            {"reducer": "ef_sign"},
            "unknown reducer 'ef_sign'; nearest: ef-sign. There are none, ",
        ),
        ({"outer": "dilco"}, "unknown outer optimizer 'dilco'; nearest: diloco. There are average"),
        ({"reducer": Sign()}, "is no reducer; give a name such as .* CompressedMean"),
        ({"outer": torch.optim.SGD}, "is no outer optimizer; .* functools.partial"),
        ({"outer": partial(int)}, "is no outer optimizer; .* functools.partial"),
        ({"outer": [["diloco"]]}, "is no outer optimizer"),
        ({"reducer": [Sign()]}, "is no reducer; .* compressor in CompressedMean"),
        ({"reducer": [CompressedMean]}, "is no reducer"),
        ({"outer": [torch.optim.SGD]}, "is no outer optimizer"),
        ({"topology": "2x2"}, "local_steps has one number or schedule for the 2 levels"),
        ({"local_steps": [1, 2]}, "local_steps has 2 schedules for the 1 level of"),
        (
            {"topology": "2x2", "local_steps": [4, localsgd.cyclic(4, 8, 4)]},
            r"local_steps has cyclic\(...\) at an outer level",
        ),
        ({"topology": 8}, "topology 8 has 8 workers for 4 processes"),
        ({"topology": "4by2"}, "is not understood"),
        ({"average": "weights"}, "average='weights' is unknown"),
        ({"outer": []}, "outer has 0 entries for the 1 level of"),
        ({"outer": [momentum], "average": "gradients"}, "needs the exact mean and plain"),
        ({"local_steps": 4, "average": "gradients"}, "needs H = 1 at the start"),
        ({"reducer": [Lossy()], "average": "gradients"}, r"level 1 \(counted from the inner"),
    ],
)
def test_bad_input_is_refused_in_one_line(keywords: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        settings(**keywords)
    assert "\n" not in str(caught.value)


LAYOUT = Layout.of([("w", torch.empty(8, 8))])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CompressedMean(Sign()), CompressedMean(Sign("row"))),
        (CompressedMean(TopK(0.1)), CompressedMean(TopK(0.2))),
        (CompressedMean(Int8(seed=1)), CompressedMean(Int8())),
        (CompressedMean(Sign()), CompressedMean(Sign(), feedback=False)),
        (CompressedMean(Sign()), CompressedMean(Sign(), way="gather")),
        (MajorityVote(), MajorityVote(Sign("row"))),
        (PowerSgd(rank=1), PowerSgd(rank=2)),
        (PowerSgd(), PowerSgd(feedback=False)),
        (PowerSgd(), PowerSgd(seed=1)),
        (PowerSgd(), PowerSgd(mean=localsgd.OrderedMean())),
        (None, localsgd.OrderedMean()),
    ],
)
def test_reducers_are_described_with_their_settings(one: Any, other: Any) -> None:
    found = [settings(reducer=[reducer]).described()["reducer"] for reducer in (one, other)]
    assert found[0] != found[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda layout: CompressedMean(Sign(), layout=layout),
        lambda layout: MajorityVote(layout=layout),
        lambda layout: PowerSgd(layout),
    ],
)
def test_reducers_are_described_without_layout_and_memory(make: Any) -> None:
    used = make(LAYOUT)
    used.reduce(torch.ones(1, 2, LAYOUT.length), None, InProcess(2)).wait()
    found = [settings(reducer=[reducer]).described()["reducer"] for reducer in (make(None), used)]
    assert found[0] == found[1]


def test_descriptions_have_no_addresses() -> None:
    class Schedule:
        def __call__(self, progress: localsgd.Progress) -> int:
            return 1

    outer = localsgd.outer.Outer(partial(torch.optim.SGD, lr=1.0))
    one, other = (settings(local_steps=Schedule(), outer=[outer]).described() for _ in range(2))
    assert one == other
    assert "SGD" in one["outer"]


def made(**keywords: Any) -> localsgd.LocalSGD:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = localsgd.LocalSGD(inner, model, local_steps=2, **keywords)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
    return optimizer


def test_a_state_saved_by_names_is_one_of_the_objects() -> None:
    state = made(reducer="ef-sign", outer="diloco").state_dict()
    objects = made(reducer=CompressedMean(Sign()), outer=localsgd.outer.diloco())
    objects.load_state_dict(state)
    as_partial = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
    made(reducer=["ef-sign"], outer=[as_partial]).load_state_dict(state)
    with pytest.raises(UserError, match=r"saved with reducer .*CompressedMean.*feedback=True"):
        made(reducer="sign", outer="diloco").load_state_dict(state)
    with pytest.raises(UserError, match=r"saved with outer .*SGD"):
        made(reducer="ef-sign", outer="sgd").load_state_dict(state)
