"""Parts from outside that fail: one line names the part, the place in its code, and the reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from localsgd.errors import UserError, short
from localsgd.reduce import Compressor
from localsgd.train import Entry, Observer, Run, TensorTask, add, task_of, use
from localsgd.train.config.blame import PartFailed
from localsgd.train.config.parts import OUTSIDE


class Net(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1))  # the shape


class EachRow(Net):
    def forward(self, x: Tensor) -> Tensor:  # each row
        return self.last(x.flatten(1, -2))


class Pair(Net):
    def forward(self, x: Tensor) -> Any:  # the pair
        return self.last(x.flatten(1)), x


def one_row(task: Any) -> nn.Module:  # one row
    return nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 32)), nn.Linear(32, 10))


def raising(task: Any) -> nn.Module:
    raise KeyError("no such layer")  # the layer


def with_width(task: Any, width: int) -> nn.Module:
    return Net(width)


def broken(progress: Any) -> int:
    raise RuntimeError("it broke\nsecond line")  # the schedule


def rubbish(progress: Any) -> Any:
    return "many"


@dataclass(frozen=True)
class Failing(Compressor):
    how: str = "encode"

    def codec(self, fragments: Any, dtype: Any) -> Any:
        return None if self.how == "none" else Codec(4 * fragments.length)


class Codec:
    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, x: Tensor, payload: Tensor, draw: Any = None) -> None:
        payload[:] = torch.zeros(7, dtype=torch.uint8)  # the length


class NoLoss(TensorTask):
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        raise ValueError("no loss")  # the loss


class NoBatch(TensorTask):
    def train_batch(self, indices: Any, generator: Any) -> Any:
        return [][1]  # the batch


def made(kind: type[TensorTask]) -> TensorTask:
    images, labels = torch.randn(100, 8, 8), torch.arange(100) % 10
    task = task_of("t", (images, labels), (images, labels), model="mlp-4")
    return kind(**{field.name: getattr(task, field.name) for field in fields(task)})


def not_loading(source: Any) -> Any:
    raise OSError("the disk is gone")  # the disk


PARTS: dict[str, dict[str, Any]] = {
    "models": {
        "wrong-shape": lambda task: Net(7),
        "sequential": lambda task: nn.Sequential(nn.Linear(7, 3)),
        "wrong-size": lambda task: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
        **{"each-row": lambda task: EachRow(8), "pair": lambda task: Pair(64)},
        **{
            "one-row": one_row,
            "raising": raising,
            "with-width": with_width,
            "number": lambda task: 3,
        },
    },
    "schedules": {"broken": broken, "rubbish": rubbish},
    "compressors": {"failing": Failing},
    "tasks": {
        "no-loss": Entry(made(TensorTask).card, lambda folder: None, lambda source: made(NoLoss)),
        "usual": Entry(made(TensorTask).card, lambda folder: None, lambda s: made(TensorTask)),
        "no-batch": Entry(made(TensorTask).card, lambda folder: None, lambda s: made(NoBatch)),
        "no-load": Entry(made(TensorTask).card, lambda folder: None, not_loading),
    },
}


@pytest.fixture(autouse=True)
def named() -> Iterator[None]:
    for kind, parts in PARTS.items():
        for name, part in parts.items():
            add(kind, name, part)
    yield
    for others in OUTSIDE.values():
        others._added.clear()


def line_of(comment: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    [number] = [n for n, line in enumerate(lines, 1) if line.endswith(f"  # {comment}")]
    return f"test_blame.py:{number}: "


@pytest.mark.parametrize(
    ("settings", "starts", "place", "reason"),
    [
        ({"model": "wrong-shape"}, "the model wrong-shape of", "the shape", "RuntimeError: mat1"),
        ({"model": "sequential"}, "the model sequential of", "", "RuntimeError: mat1 and mat2"),
        ({"model": "wrong-size"}, "the model wrong-size of", "", "IndexError: Target"),
        ({"model": "raising"}, "the model raising of", "the layer", "KeyError: 'no such layer'"),
        ({"method": "broken"}, "the method broken of", "the schedule", "RuntimeError: it broke ("),
        ({"compression": "failing"}, "the reducer failing of", "the length", "RuntimeError: The"),
        (
            {"compression": "failing", "options": ["failing.how=none"]},
            *("the reducer failing of", "", "AttributeError: 'NoneType'"),
        ),
        ({"task": "no-loss"}, "the task no-loss of", "the loss", "ValueError: no loss"),
        ({"task": "no-batch"}, "the task no-batch of", "the batch", "IndexError: list index"),
        ({"task": "no-load"}, "the task no-load of", "the disk", "OSError: the disk is gone"),
    ],
)
def test_the_part_the_place_and_the_reason(
    settings: dict[str, Any], starts: str, place: str, reason: str
) -> None:
    with pytest.raises(PartFailed) as caught:
        Run(**settings, workers=2, epochs=1).train(progress=False)
    said = str(caught.value)
    assert said.startswith(f"{starts} this program")
    assert "\n" not in said
    assert reason in said
    cause = caught.value.__cause__
    assert type(cause).__name__ in said
    if place:
        assert line_of(place) in said
        code = inspect.getinnerframes(cause.__traceback__)[-1].code_context  # type: ignore[union-attr, arg-type]
        assert place in (code or [""])[0] or not place.startswith("the l")


@pytest.mark.parametrize(
    ("model", "task", "comment", "said"),
    [
        ("each-row", "digits", "each row", "[16, 8, 10] for target [16]: "),
        ("each-row", "usual", "each row", "[16, 8, 10] for target [16]: "),
        ("one-row", "usual", "one row", "[32, 10] for target [16]: ValueError: Expected input"),
        ("pair", "usual", "the pair", "a value of type tuple for target [16]: AttributeError"),
    ],
)
def test_an_output_that_the_loss_can_not_read_is_the_models(
    model: str, task: str, comment: str, said: str
) -> None:
    with pytest.raises(PartFailed) as caught:
        Run(model=model, task=task, workers=2, epochs=1, batch=16).train(progress=False)
    assert str(caught.value).startswith(f"the model {model} of this program, with the task {task}")
    assert f"{line_of(comment)}output {said}" in str(caught.value)


def test_a_loss_that_fails_in_its_own_code_is_the_tasks() -> None:
    with pytest.raises(PartFailed) as caught:
        Run(model="one-row", task="no-loss", workers=2, epochs=1, batch=16).train(progress=False)
    said = str(caught.value)
    assert said.startswith("the task no-loss of this program")
    assert "with the model one-row of this program" in said
    assert f"{line_of('one row').removesuffix(': ')})" in said
    assert f"{line_of('the loss')}output [32, 10] for target [16]: ValueError: no loss" in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "with-width"}, "without width; give width a usual value, such as `width: int"),
        ({"method": "rubbish"}, "H = 'many' of the schedule rubbish is no number of steps"),
        ({"model": "number"}, "the model number is made as a value of type int"),
    ],
)
def test_a_value_of_no_use_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Run(**settings, workers=2, epochs=1).train(progress=False)


def test_objects_are_named_too() -> None:
    run = Run(model=Net(7), workers=2, epochs=1)
    with pytest.raises(PartFailed, match="the model Net, an object in Python, failed at"):
        run.train(progress=False)
    with pytest.raises(
        PartFailed, match="the task t, an object in Python, with the model mlp-4, f"
    ):
        Run(task=made(NoLoss), workers=2, epochs=1).train(progress=False)


def test_what_is_no_parts_fault_is_left_alone() -> None:
    """An observer of one's own, beside a model of one's own."""

    class Bad(Observer):
        def stepped(self, assembly: Any) -> None:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        Run(model=lambda: Net(64), workers=2, epochs=1).train(observers=[Bad()], progress=False)


def test_values_in_messages_are_short() -> None:
    """A task's repr has all of its data."""
    task = made(TensorTask)
    with pytest.raises(UserError) as caught:
        add("tasks", "whole", task)
    assert "is a value of type TensorTask; give a localsgd.train.data.tasks.Entry" in str(
        caught.value
    )
    wrong: list[tuple[Callable[..., Any], str]] = [
        (lambda: short([1] * 1000), "a value of type list"),
        (lambda: short(3), "3"),
        (lambda: short("a" * 1000), repr("a" * 80 + "...")),
        (lambda: short("a\nb"), repr("a\nb")),
        (lambda: short(torch.zeros(3, 30)), "a value of type Tensor"),
    ]
    for make, expected in wrong:
        assert make() == expected


def test_a_module_that_fails_is_named_with_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_on_import.py").write_text("import json\nx = 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"division by zero\) at .*raises_on_import.py:2; mend it"):
        use("raises_on_import")
    with pytest.raises(UserError, match="names a file; write the module: my_parts"):
        use("my_parts.py")
