"""The checks find what they are for: each of these parts breaks one promise."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from localsgd.schedule import Observing, Progress
from localsgd.testing import (
    check_collective,
    check_model,
    check_outer,
    check_schedule,
    check_task,
)
from localsgd.testing.schedule import FIELDS, _course
from localsgd.train.data.tasks.images import ImageTask
from localsgd.wire import InProcess, Pending
from tests.conformance.test_tasks import made_up
from tests.testing.failing import fails

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


class Copies(Observing):
    """Prints and copies the progress, and looks at the step alone."""

    sees = ()

    def __call__(self, progress: Progress) -> int:
        text = f"{progress}"
        return 4 if replace(progress, step=3).step == len(text[:3]) else 2


def test_one_that_copies_or_prints_is_fine() -> None:
    check_schedule(Copies())


class Beside(Observing):
    """Looks at the waiting late, beside the loss, which it names."""

    sees = ("loss",)

    def __call__(self, progress: Progress) -> int:
        loss = progress.loss
        late = progress.step > 5000 and progress.waited_seconds > 1
        return 8 if late or loss is None else 4


class Late(Observing):
    """Looks at the loss after a while, and does not say so."""

    sees = ()

    def __call__(self, progress: Progress) -> int:
        return 4 if progress.step < 100 or progress.loss is None or progress.loss > 1 else 16


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
        (lambda progress: 0, "gives 0 .* no whole number from 1 up"),
        (lambda progress: 2.5, "gives 2.5 .* no whole number"),
        (lambda progress: True, "gives True .* no whole number"),
        (Late(), "looks at loss, which does not follow"),
        (Beside(), "looks at waited_seconds, which does not follow"),
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
        (partial(torch.optim.SGD, lr=0.7, maximize=True), "away from the members"),
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
        (
            {
                "exchange": lambda x: Pending.done(
                    x.float()
                    .transpose(1, 2)
                    .to(torch.float32 if x.dtype == torch.int64 else x.dtype)
                )
            },
            "torch.int64 is exchanged as torch.float32",
        ),
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
    check_model(same_weights, made_up())
    model = small(made_up()).train()
    check_task(made_up(), model)
    assert model.training
    assert {one.dtype for one in model.parameters()} == {torch.float32}


PROGRAM = """
import sys
for name in ("msgspec", "tyro", "rich", "matplotlib", "safetensors", "sklearn", "PIL", "pytest"):
    sys.modules[name] = None
import localsgd, localsgd.testing
localsgd.testing.check_schedule(localsgd.every(2))
"""


def test_it_needs_torch_and_numpy_alone() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=100)
