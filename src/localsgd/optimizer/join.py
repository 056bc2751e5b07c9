"""`torch.distributed.algorithms.Join`, which is refused."""

from __future__ import annotations

from typing import Any, NoReturn

from localsgd.errors import UserError


def refuse_join(**_: Any) -> NoReturn:
    """What `Join` asks its members for, of `LocalSGD` and of a DDP model that it was given.

    Join lets all ranks exchange a number before every step, which is what local steps save, and a
    rank that has run out would have to follow the schedules of the others without training.
    """
    raise UserError(
        "torch.distributed.algorithms.Join can't be used with LocalSGD, as it communicates in "
        "every step, and syncs need all ranks; leave it out, let all ranks take the same number of "
        "steps, for example by DistributedSampler(drop_last=True), and call finish() on all"
    )
