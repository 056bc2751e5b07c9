"""Reads from a save what one worker needs, sharded as it is now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from localsgd.optimizer.local_sgd import LocalSGD
from localsgd.rows.shards import is_sharded
from localsgd.saving.tree import as_text, unpack

if TYPE_CHECKING:
    from localsgd.saving.store import Saved


def name_of(worker: int, position: int = 0, positions: int = 1) -> str:
    """Begins the names of what a worker, or one rank of it, has saved."""
    return f"worker-{worker:05d}" + (f"@{position}" if positions > 1 else "")


class Source:
    """Reads what a worker has saved.

    Args:
        files: that were written.
        positions: ranks that each worker had then.
        module, optimizers: that will load it, sharded as they are now.
    """

    def __init__(
        self, files: Saved, positions: int, module: nn.Module, optimizers: Sequence[LocalSGD]
    ) -> None:
        self.files = files
        self.positions = positions
        self._position = min(optimizers[0].agreement.position, positions - 1)
        self._state = {n: t for n, t in module.state_dict().items() if is_sharded(t)}
        self._named = dict(module.named_parameters())
        self._parameters = [
            [p for group in optimizer.param_groups for p in group["params"]]
            for optimizer in optimizers
        ]

    def has(self, worker: int, part: str) -> bool:
        """Whether the rank of a worker at this rank's position has saved this part."""
        own = name_of(worker, self._position, self.positions)
        return f"{own}/{part}.json" in self.files.names

    def read(self, worker: int, parts: Collection[str]) -> dict[str, Any]:
        """Parts by name. Of sharded tensors each rank reads its shard."""
        own = name_of(worker, self._position, self.positions)
        texts = {part: f"{own}/{part}.json" for part in parts}
        starts = tuple(f"{name}/{part}/" for part in parts for name in {own, name_of(worker)})
        names = [*texts.values(), *(n for n in self.files.names if n.startswith(starts))]
        tensors = self.files.read(names, self._sharded(names))
        return {part: unpack(as_text(tensors[name]), tensors) for part, name in texts.items()}

    def _sharded(self, names: Collection[str]) -> dict[str, Tensor]:
        """Tensors to read into, for those that are sharded now."""
        found = {}
        for name in names:
            _, part, *path = name.split("/")
            if part == "model" and path[0] == "state":
                like = self._state.get("/".join(path[1:]))
            elif part == "gradients":
                like = self._named.get("/".join(path))
            elif part == "optimizers" and len(path) == 4 and path[1] == "state":
                like = self._parameters[int(path[0])][int(path[2])]
            else:
                continue
            if like is not None and is_sharded(like) and self.files.shape(name) == like.shape:
                found[name] = torch.zeros_like(like, dtype=self.files.dtype(name))
        return found
