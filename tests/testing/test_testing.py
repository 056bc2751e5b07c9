"""The checks find what they are for: each of these parts breaks one promise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from localsgd.reduce import (
    CompressedMean,
    Compressor,
    ExactMean,
    Extents,
    Int8,
    OrderedMean,
    TopK,
)
from localsgd.reduce.int8 import Int8Codec
from localsgd.schedule import Observing, Progress
from localsgd.testing import (
    check_collective,
    check_compressor,
    check_model,
    check_outer,
    check_reducer,
    check_schedule,
    check_task,
)
from localsgd.testing.schedule import FIELDS, _course
from localsgd.train.data.tasks.images import ImageTask
from localsgd.wire import Collective, InProcess, Pending
from tests.conformance.test_tasks import made_up


def fails(check: Callable[[], None], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check()


# Schedules


class Counting:
    """Remembers outside of the memory."""

    calls = 0

    def __call__(self, progress: Progress) -> int:
        self.calls += 1
        return self.calls


class Blind(Observing):
    """Looks at the loss and does not say so."""

    sees = ()

    def __call__(self, progress: Progress) -> int:
        return 1 if progress.loss is None or progress.loss > 1 else 4


class Hasty(Observing):
    """Takes a reported number to be there from the start."""

    sees = ("reported:norm",)

    def __call__(self, progress: Progress) -> int:
        return 1 if progress.reported["norm"] > 1 else 4


class Elsewhere(Observing):
    """Looks at another number than the one that it names."""

    sees = ("reported:norm",)

    def __call__(self, progress: Progress) -> int:
        return 4 if progress.reported.get("other", 0.0) > 1 else 2


@dataclass(frozen=True)
class Keeps:
    """Writes what JSON can't keep: keys that are numbers."""

    def __call__(self, progress: Progress) -> int:
        memory: dict[Any, Any] = progress.memory
        memory[0] = memory.get(0, 0) + 1
        return memory[0]


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (lambda progress: 0, "gives 0 .* below 1"),
        (lambda progress: 2.0, "gives 2.0 .* no int"),
        (lambda progress: 8 if progress.loss > 1 else 2, "None is not known yet"),
        (Counting(), "remembers outside"),
        (Blind(), "looks at loss, which does not follow"),
        (Elsewhere(), "doesn't name reported:other"),
        (Hasty(), "reported number that is not known is missing"),
        (Keeps(), "saved as JSON"),
    ],
)
def test_schedules(schedule: Any, reason: str) -> None:
    fails(lambda: check_schedule(schedule), reason)


def test_every_number_of_progress_is_tried() -> None:
    always = {"step", "epoch", "fraction", "memory", "reported"}
    numbers = {field.name for field in fields(Progress)} - always
    assert numbers == {name for names in FIELDS.values() for name in names}
    for name in numbers:
        usual, other = (list(_course(stay, set())) for stay in (set(), {name}))
        assert usual != other
        assert [replace(one, **{name: None}) for one in usual] == [
            replace(one, **{name: None}) for one in other
        ]


# Compressors


@dataclass(frozen=True)
class Broken(Compressor):
    """Int8 with methods of its codec replaced."""

    methods: dict[str, Any] = field(default_factory=dict)
    says_unbiased: bool = False

    @property
    def unbiased(self) -> bool:
        return self.says_unbiased

    def codec(self, fragments: Extents, dtype: torch.dtype) -> Int8Codec:
        codec = Int8(16).codec(fragments, dtype)
        codec.__class__ = type("BrokenCodec", (Int8Codec,), self.methods)
        return codec


def adds_one(self: Any, payload: Tensor, out: Tensor, factor: float = 1.0) -> None:
    Int8Codec.add(self, payload, out, factor)
    out += factor


def writes(self: Any, x: Tensor, payload: Tensor, draw: Any = None) -> None:
    Int8Codec.encode(self, x, payload, draw)
    x.zero_()


def keeps_twice(self: Any, x: Tensor, error: Tensor, payload: Tensor) -> None:
    self.encode(error.add_(x), payload)


@pytest.mark.parametrize(
    ("compressor", "reason"),
    [
        (Broken({"size": 200}), "a payload of|must match"),
        (Broken({"fault": lambda self, payload: None}), "does not find nan"),
        (Broken({"add": adds_one}), "stay zero|zeros|factor"),
        (Broken({"encode": writes}), "writes into the vector"),
        (Broken({"keep": keeps_twice}), r"keep\(\) keeps other bits"),
        (Broken({"read": lambda self, payloads, out: self.add(payloads[0], out.zero_())}), "read"),
        (Broken(says_unbiased=True), "says unbiased, but"),
    ],
)
def test_compressors(compressor: Compressor, reason: str) -> None:
    with pytest.raises((AssertionError, RuntimeError), match=reason):
        check_compressor(compressor)


# Reducers


class Halves(ExactMean):
    """Says linear, but gives half of a model."""

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return super().reduce(update.div_(2), weights, collective)


class Hosted(ExactMean):
    """Averages the members hosted here alone."""

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return super().reduce(update, weights, InProcess(update.shape[1]))


class Hides(ExactMean):
    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return super().reduce(update.nan_to_num_(), weights, collective)


class Says(OrderedMean):
    """Says that it only reads, but weighs in place."""

    only_reads = True

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return (
            super()
            .reduce(update.mul_(1.0), weights, collective)
            .then(lambda mean: collective.gather(update.mul_(2.0)).then(lambda _: mean / 2).wait())
        )


class Forgets(CompressedMean):
    """Saves nothing of its memory."""

    def bound(self, layout: Any) -> Forgets:
        return Forgets(self.compressor, layout=layout)

    def state(self) -> dict[str, Any]:
        return {"feedback": True, "syncs": 0}


class Deaf(ExactMean):
    """Takes no weights."""

    def reduce(self, update: Tensor, weights: Any, collective: Collective) -> Pending[Tensor]:
        return super().reduce(update, None if weights is None else weights * 2, collective)


class Tells:
    """No Reducer: it has no part()."""

    linear = only_reads = False


@pytest.mark.parametrize(
    ("reducer", "reason"),
    [
        (Halves(), "the mean of equal models is another"),
        (Hosted(), "members apart differ from 4 together"),
        (Hides(), "becomes a finite mean"),
        (Says(), "only_reads"),
        (Forgets(TopK(0.2)), "goes elsewhere"),
        (Deaf(), "weights of 1/M differ"),
        (Tells(), "lacks a part of Reducer"),
    ],
)
def test_reducers(reducer: Any, reason: str) -> None:
    fails(lambda: check_reducer(reducer), reason)


# Outer optimizers


class ByNorm(torch.optim.SGD):
    """Scales its steps by the norm of all groups together."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            parameter.grad /= parameter.grad.norm()
        super().step()


class Forgetful(torch.optim.SGD):
    """Keeps its memory outside of `state`."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen = getattr(self, "seen", 0) + 1
        for parameter in self.param_groups[0]["params"]:
            parameter.grad /= self.seen
        super().step()


@pytest.mark.parametrize(
    ("outer", "reason"),
    [
        (partial(ByNorm, lr=1.0), "with the groups beside it"),
        (partial(Forgetful, lr=1.0), "goes elsewhere"),
    ],
)
def test_outer_optimizers(outer: Any, reason: str) -> None:
    fails(lambda: check_outer(outer), reason)


# Collectives


class Wrong(InProcess):
    """A collective within this process, with a call replaced."""

    def __init__(self, members: int, **calls: Any) -> None:
        super().__init__(members)
        self.__dict__.update(calls)


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ({"sum": lambda x: Pending.done(x.sum(1))}, "not in place"),
        ({"gather": lambda x: Pending.done(x.flip(1))}, "not that of all members, in order"),
        ({"gather": lambda x: Pending.done(x.double())}, "gathered as"),
        ({"exchange": lambda x: Pending.done(x.clone())}, r"not received x\[i, j\]"),
        ({"exchange": lambda x: Pending.done(x.transpose(1, 2).zero_())}, "not received|writes"),
    ],
)
def test_collectives(calls: dict[str, Any], reason: str) -> None:
    fails(lambda: check_collective(Wrong(4, **calls), members=range(4)), reason)


# Tasks and models


def task_with(**methods: Any) -> Any:
    made: Any = made_up()
    kind = type("BrokenTask", (ImageTask,), methods)
    return kind(**{name: getattr(made, name) for name in ("card", "train", "test", "mean", "std")})


@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        (
            {"test_batch": lambda self, indices: (torch.zeros(len(indices), 3), indices % 4)},
            "test inputs of 5 samples are",
        ),
        ({"subset": lambda self, train, seed=0: self}, "a subset|subset"),
        (
            {"loss": lambda self, output, target: nn.functional.cross_entropy(
                output, target, reduction="sum"
            )},
            "parts of the test set do not add up",
        ),
    ],
)  # fmt: skip
def test_tasks(methods: dict[str, Any], reason: str) -> None:
    fails(lambda: check_task(task_with(**methods)), reason)


def small(task: Any, middle: nn.Module | None = None) -> nn.Module:
    inputs = torch.Size(task.input_shape).numel()
    hidden = nn.Sequential() if middle is None else middle
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), hidden, nn.Linear(8, task.classes))


class Unused(nn.Module):
    """Has a tensor that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return x


def same_weights(task: Any) -> nn.Module:
    model = small(task)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    return model


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (same_weights, "all seeds give the same weights"),
        (lambda task: small(task, Unused()), "2.weight gets no finite gradient"),
        (
            lambda task: small(task, nn.BatchNorm1d(8, track_running_stats=False)),
            "Expected more than 1|samples beside it",
        ),
    ],
)
def test_models(build: Any, reason: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=reason):
        check_model(build, made_up())


def test_a_small_model_and_its_task_conform() -> None:
    check_model(small, made_up())
    check_task(made_up(), small(made_up()))


PROGRAM = """
import sys
for name in ("msgspec", "tyro", "rich", "matplotlib", "safetensors", "sklearn", "PIL", "pytest"):
    sys.modules[name] = None
import localsgd, localsgd.testing
localsgd.testing.check_schedule(localsgd.every(2))
"""


def test_it_needs_torch_and_numpy_alone() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=100)
