"""The averaged model as one safetensors file, which needs neither this library nor pickle."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from localsgd.basics.files import check_regular
from localsgd.errors import UserError
from localsgd.rows.shards import whole

NAME = "model.safetensors"


def check_safetensors() -> None:
    """Refuses where the package that reads and writes the file is missing."""
    if importlib.util.find_spec("safetensors") is None:
        raise UserError(
            f"{NAME} needs the package safetensors, which is not installed; "
            "pip install 'localsgd[save]'"
        )


def copied(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a state dict on the CPU, each with memory of its own; other entries left out.

    Tied weights become two tensors, as readers expect under both names. Sharded ones are gathered:
    all ranks that hold them must call this.
    """
    return {
        name: torch.empty(value.shape, dtype=value.dtype).copy_(whole(value.detach()))
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(dict(tensors), path, metadata={"format": "pt"})


def read(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    check_regular(path)
    try:
        return load_file(path)
    except Exception as error:  # whatever the damage leads to
        raise UserError(f"{path} can't be read: {error}; go on from an earlier save") from None
