"""The folder that several processes write: sharded tensors, replicas, other numbers of readers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from localsgd.saving.store import Saved, write
from localsgd.saving.tree import pack, unpack
from tests.distributed.harness import run

pytestmark = pytest.mark.timeout(120)

WHOLE = torch.arange(15.0).reshape(5, 3)  # uneven shards


def sharded(folder: str) -> None:
    """Two ranks that are one worker."""
    mesh = init_device_mesh("cpu", (2,))
    shards = distribute_tensor(WHOLE, mesh, [Shard(0)])
    tensors, text = pack({"w": shards, "b": torch.ones(2)}, "worker-00000")
    write(Path(folder), tensors, dist.group.WORLD, {})
    saved = Saved(Path(folder))
    into = {"worker-00000/w": torch.zeros_like(shards)}
    found = unpack(text, saved.read(list(tensors), into))
    assert isinstance(found["w"], DTensor)
    assert torch.equal(found["w"].to_local(), shards.to_local())
    assert torch.equal(found["b"], torch.ones(2))


def test_sharded_tensors_are_written_once_and_read_by_anybody(tmp_path: Path) -> None:
    run(2, sharded, str(tmp_path / "save"))
    found = Saved(tmp_path / "save").read(["worker-00000/w"])
    assert torch.equal(found["worker-00000/w"], WHOLE)
