"""Copies of a model's parts, for saving them separately."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor


def compact(state: Any) -> Any:
    """A copy of `state` whose tensors take no more memory than they need.

    `LocalSGD` moves parameters into rows, and `torch.save` writes all memory that a tensor lies in:
    `torch.save(model.head.state_dict(), path)` would write the whole model.

    Examples:
        >>> row = torch.zeros(1000)
        >>> compact({"weight": row[:2]})["weight"].untyped_storage().nbytes()
        8

    Args:
        state: a tensor, or dictionaries, lists and tuples of tensors and other values. A tensor
            that occurs twice stays one tensor.
    """
    return _compact(state, {})


def _compact(state: Any, copies: dict[tuple, Tensor]) -> Any:
    if isinstance(state, Tensor):
        return _copied(state, copies)
    if isinstance(state, dict):
        new = copy.copy(state)  # With the versions that a module's state has as an attribute.
        for key, value in state.items():
            new[key] = _compact(value, copies)
        return new
    if type(state) in (list, tuple):
        return type(state)(_compact(value, copies) for value in state)
    return state


def _copied(tensor: Tensor, copies: dict[tuple, Tensor]) -> Tensor:
    try:
        whole = tensor.untyped_storage().nbytes() <= tensor.nbytes
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    except (NotImplementedError, RuntimeError):  # Sparse and the like have no such memory.
        return tensor
    if whole:
        return tensor
    if key not in copies:
        copies[key] = torch.clone(tensor.detach())
    return copies[key]
