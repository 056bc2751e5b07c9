"""What reducers with a memory share: who the members are, and whether the memory is theirs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce.compressor import NotFinite
from localsgd.wire.collective import Collective


def places_of(update: Tensor, collective: Collective) -> Tensor:
    """Which of the M members of its group each hosted one is: `[g, m]`, counted from 0.

    Each member is told by the others, in 8 bytes: member i sends the number j to member j.
    """
    numbers = torch.arange(collective.members, device=update.device)
    sent = numbers.expand(*update.shape[:2], -1).unsqueeze(-1).contiguous()  # [g, m, M, 1]
    return collective.exchange(sent).wait()[:, :, 0, 0].clone()


def refusal(tensor: str, culprits: Tensor, collective: Collective) -> NotFinite:
    """The error for an update with NaN or infinity. All processes must ask for it at once.

    Args:
        tensor: where it was found.
        culprits: bools `[g, m]`, the hosted members whose own update is not finite.
    """
    flags = culprits.to(torch.uint8).unsqueeze(-1)
    found = collective.gather(flags.contiguous()).wait()[..., 0].any(0).nonzero().flatten().tolist()
    who = f"member {', '.join(map(str, found))}" if found else "the mean"
    return NotFinite(
        f"the update of {who} of {collective.members} is not finite in {tensor}; "
        "go on from the last checkpoint with a lower learning rate or clipped gradients"
    )


def memory_at(error: Tensor, vectors: Tensor) -> Tensor:
    """The memory where the vectors are, as a file gives it on the CPU; refused where it is of other
    members or models.
    """
    if error.shape != vectors.shape:
        raise UserError(
            f"the memory of error feedback is {tuple(error.shape)}, but what is compressed is "
            f"{tuple(vectors.shape)}; go on with the model and workers that it was saved with"
        )
    return error.to(vectors)


def check_saved(state: dict[str, Any], feedback: bool, complete: bool) -> None:
    """Refuses what a run without this memory, or with one that is not wanted, has saved."""
    if state.get("feedback") is not feedback or (feedback and not complete):
        raise UserError(
            f"error feedback is {'on' if feedback else 'off'}, but what was saved is not of such a "
            "run; go on with the setting that it was saved with"
        )
