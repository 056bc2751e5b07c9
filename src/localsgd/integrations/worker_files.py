"""One file of state for each worker, beside the checkpoint of a framework.

A framework saves one model and one optimizer. Between two syncs every worker has its own, and
goes on to the same bits only from its own.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint

from localsgd.basics.files import as_saved, check_regular, open_anew
from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.optimizer import LocalSGD

State = dict[str, Any]


def file_of(folder: str | Path, worker: int) -> Path:
    return Path(folder) / f"worker-{worker}.pt"


def write(
    folder: str | Path,
    model: nn.Module,
    optimizer: LocalSGD,
    *,
    scaler: Any = None,
) -> None:
    """Writes this worker's file, whole or not at all.

    Args:
        folder: for the files of all workers; made if it isn't there.
        model: as this worker trains it, not the average.
        optimizer: of the model.
        scaler: this worker's gradient scaler, or `None`.

    Raises:
        UserError: the state holds what could not be read again; what was there before is unharmed.
    """
    waiting = optimizer.accumulating
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if waiting and parameter.grad is not None
    }
    path = file_of(folder, _worker())
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "workers": _workers(),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": None if scaler is None else scaler.state_dict(),
        "gradients": gradients,
    }
    part = path.with_suffix(".part")
    with open_anew(part) as file:
        torch.save(_plain(state), file)
    if unknown := get_unsafe_globals_in_checkpoint(part):
        part.unlink()
        raise UserError(
            f"{path} was not saved: the state of the model, the optimizer or the scaler holds "
            f"{', '.join(unknown)}, which can't be read again without code in the file; keep "
            "numbers, text and tensors there"
        )
    os.replace(part, path)


def _plain(value: Any) -> Any:
    """The same with numbers of numpy as Python's: a scheduler may have set such a learning rate."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (dict, OrderedDict):
        found = type(value)((key, _plain(part)) for key, part in value.items())
        if metadata := getattr(value, "_metadata", None):
            found._metadata = metadata
        return found
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def read(folder: str | Path) -> State:
    """What `write` wrote of this worker: model, optimizer, scaler and gradients.

    Raises:
        UserError: on all ranks, if a worker's file is missing, or there were more workers; on this
            one, if its own file is damaged.
    """
    workers = _workers()
    missing = [worker for worker in range(workers) if not file_of(folder, worker).exists()]
    if missing:
        raise UserError(
            f"{folder} has no {file_of(folder, missing[0]).name}, so training can't continue from "
            "it: it was saved without LocalSGD, by fewer workers, without the optimizer, or was "
            "cut off; begin anew from its averaged model, or take another checkpoint"
        )
    path = file_of(folder, _worker())
    check_regular(path)
    with as_saved(path, "begin anew from the averaged model, or take another checkpoint"):
        state = torch.load(path, map_location="cpu", weights_only=True)
        kinds = {"workers": int, "model": dict, "optimizer": dict, "gradients": dict}
        for name, kind in kinds.items():
            if not isinstance(state[name], kind):
                raise TypeError(f"{name} is a {type(state[name]).__name__}")
    if state["workers"] != workers:
        raise UserError(
            f"{folder} was saved by {plural(state['workers'], 'worker')}, and there are {workers}; "
            "start as many, or begin anew from its averaged model"
        )
    return state


def put_gradients(model: nn.Module, state: State) -> None:
    """Gives the model the gradients that waited for further micro-batches."""
    for name, parameter in model.named_parameters():
        if name in state["gradients"]:
            parameter.grad = state["gradients"][name].to(parameter.device)


@contextmanager
def loading(optimizer: LocalSGD, state: State) -> Generator[None]:
    """A context in which the optimizer loads this worker's state, whichever it is given."""
    handle = optimizer.register_load_state_dict_pre_hook(lambda *_: dict(state))
    try:
        yield
    finally:
        handle.remove()


def _worker() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _workers() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
