"""torchft's local SGD and DiLoCo: replicas that find one another at a lighthouse, a small server.

They are made for replicas that come and go. Before each sync all ask the lighthouse who takes
part, and after it each asks its own manager whether it counts. Here nobody comes or goes: one
replica a node, of one process, and the lighthouse in the process of rank 0. All servers are threads
of these processes, and end with them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from benchmarks.network.laboratory import Laboratory
from localsgd.integrations.joining import manager_at

LOCAL_STEPS = 16
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
"""DiLoCo's outer SGD, as Douillard et al. (2023) have it."""

LIMIT = timedelta(minutes=5)
BEAT = timedelta(seconds=1)
"""Between two signs of life to the lighthouse. They go on while others act, and are counted with
their bytes; torchft's default of 0.1 s would add ten times as many."""


class Replica:
    """An optimizer on whose step torchft's method hangs, and all that has to stay alive for it.

    Args:
        inner: the optimizer.
        manager: torchft's.
        kept: the method, servers.
        local_steps: H.
    """

    def __init__(
        self, inner: Optimizer, manager: Any, *kept: object, local_steps: int = LOCAL_STEPS
    ) -> None:
        self.manager = manager
        self._inner = inner
        self._kept = kept
        self._local_steps = local_steps
        self._steps = 0

    def zero_grad(self) -> None:
        self._inner.zero_grad()

    def step(self) -> None:
        """A local step; every H-th with a sync.

        Raises:
            RuntimeError: a sync failed. torchft drops it and goes on, so that nothing would
                be sent and nothing waited for.
        """
        self._inner.step()
        self._steps += 1
        due, held = self._steps // self._local_steps, self.manager.current_step()
        if held != due:
            raise RuntimeError(f"torchft: {held} of {due} syncs; {self.manager.errored()}")


def local_sgd(model: nn.Module, inner: Optimizer) -> tuple[nn.Module, Replica]:
    """`torchft.local_sgd.LocalSGD`: the mean of the models, tensor by tensor."""
    from torchft.local_sgd import LocalSGD

    manager, server = _joined(model)
    method = LocalSGD(manager, model, inner, sync_every=LOCAL_STEPS)
    method.__enter__()
    return model, Replica(inner, manager, method, server)


def diloco(model: nn.Module, inner: Optimizer) -> tuple[nn.Module, Replica]:
    """`torchft.local_sgd.DiLoCo` with the model as its one fragment."""
    from torchft.local_sgd import DiLoCo

    manager, server = _joined(model)
    outer = torch.optim.SGD(model.parameters(), **OUTER)
    method = DiLoCo(manager, [model], inner, outer, sync_every=LOCAL_STEPS)
    method.__enter__()
    return model, Replica(inner, manager, method, server)


def _joined(model: nn.Module) -> tuple[Any, Any]:
    """A manager, and the lighthouse that it knows."""
    lighthouse, found = _lighthouse()
    manager = manager_at(
        Laboratory.address(dist.get_rank()),
        f"replica-{dist.get_rank()}",
        found,
        LIMIT,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=dist.get_world_size(),
        quorum_timeout=LIMIT,
        quorum_retries=0,
        heartbeat_interval=BEAT,
    )
    return manager, lighthouse


def _lighthouse() -> tuple[Any, str]:
    """The server, in rank 0 only, and where it is, in all."""
    from torchft.coordination import LighthouseServer

    server, found = None, [""]
    if dist.get_rank() == 0:
        server = LighthouseServer(bind="0.0.0.0:0", min_replicas=dist.get_world_size())
        found = [f"http://{Laboratory.address(0)}:{urlsplit(server.address()).port}"]
    dist.broadcast_object_list(found)
    return server, found[0]
