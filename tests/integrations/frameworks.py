"""Runs the examples in processes of the harness: as started by torchrun, counted, cut off."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import localsgd
from tests.distributed.crossing import Crossing

SECONDS = 300.0
"""A call's limit: importing the frameworks alone takes a minute on a crowded machine."""

EXAMPLES = Path(__file__).parents[2] / "examples"


class Killed(BaseException):
    """Ends a program where it stands."""


def example(name: str) -> ModuleType:
    """A fresh copy of the program."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def launched() -> Iterator[None]:
    """As torchrun starts a program: variables of the environment, and no state of a framework."""
    rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "test",
        "ACCELERATE_USE_CPU": "true",
    }
    with mock.patch.dict(os.environ, variables), warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            yield
        finally:
            if "accelerate" in sys.modules:
                from accelerate.state import AcceleratorState, GradientState, PartialState

                AcceleratorState._reset_state()
                GradientState._reset_state()
                PartialState._shared_state.clear()


@contextmanager
def killed_at(call: int) -> Iterator[None]:
    """Ends the program at the n-th batch of training."""
    calls = 0
    whole = torch.nn.functional.cross_entropy

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += torch.is_grad_enabled()  # Evaluation has batches, too.
        if calls == call:
            raise Killed
        return whole(*args, **kwargs)

    with mock.patch("torch.nn.functional.cross_entropy", counted):
        yield


class BySteps(Crossing):
    """Collects what crosses, step by step.

    Attributes:
        steps: for each step the names of what started between the end of the step before and its
            own end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[str]] = []

    def __enter__(self) -> Any:
        whole = localsgd.LocalSGD.step

        def counted(optimizer: localsgd.LocalSGD, closure: Any = None) -> Any:
            result = whole(optimizer, closure)
            self.steps.append(list(self.names))
            self.names.clear()
            return result

        self._patch = mock.patch.object(localsgd.LocalSGD, "step", counted)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patch.stop()


def run_example(name: str, arguments: dict[str, Any], kill: int | None = None) -> list[list[str]]:
    """Runs a program of examples/ and says what crossed in each step.

    Args:
        kill: the micro-batch, counted from 1, in which all processes are cut off.
    """
    with launched(), BySteps() as steps:
        if kill is None:
            example(name).main(**arguments)
        else:
            with killed_at(kill), suppress(Killed):
                example(name).main(**arguments)
    return steps.steps
