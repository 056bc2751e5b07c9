"""torchft's LocalSGD and DiLoCo over a process group that is there, without its lighthouse.

Their own code syncs. What they ask of a manager beside the mean (a quorum, a vote) costs nothing
here, though in torchft it takes messages of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.timing import Action

THERE = importlib.util.find_spec("torchft") is not None


class Mean:
    """A sum under way, which becomes a mean in the wait, as torchft's manager has it."""

    def __init__(self, tensor: Tensor, group: dist.ProcessGroup) -> None:
        self._tensor = tensor
        self._members = group.size()
        self._work = dist.all_reduce(tensor, group=group, async_op=True)

    def wait(self) -> None:
        assert self._work is not None
        self._work.wait()
        self._tensor.div_(self._members)


class Manager:
    """What torchft's methods ask of its manager."""

    _use_async_quorum = False

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> Mean:
        assert not should_quantize
        return Mean(tensor, self._group)

    def should_commit(self) -> bool:
        return True

    def current_step(self) -> int:
        return 0

    def start_quorum(self) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def disallow_state_dict_read(self) -> None: ...

    def register_state_dict_fn(self, key: str, load: Any, save: Any) -> None: ...


def syncs(make_model: Callable[[], nn.Module], group: dist.ProcessGroup) -> dict[str, Action]:
    """A sync of each, after a step without gradients; none where torchft is not installed."""
    if not THERE:
        return {}
    from torchft.local_sgd import DiLoCo, LocalSGD

    manager: Any = Manager(group)
    model, other = make_model(), make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    LocalSGD(manager, model, inner, sync_every=1).__enter__()
    outer = torch.optim.SGD(other.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    of_diloco = torch.optim.SGD(other.parameters(), lr=0.1)
    DiLoCo(manager, [other], of_diloco, outer, sync_every=1).__enter__()
    return {"torchft's LocalSGD": inner.step, "torchft's DiLoCo": of_diloco.step}
