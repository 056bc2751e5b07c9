"""Common parts of reducers: weights, indices of members, and checks of a loaded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce.compressor import NotFinite, scale_dtype
from localsgd.wire.collective import Collective, Pending


def reduced_wide(
    reduced: Callable[[Tensor, Collective], Pending[Tensor]],
    update: Tensor,
    weights: Tensor | None,
    collective: Collective,
) -> Pending[Tensor]:
    """What `reduced` makes of weighted updates in the dtype of their scales, in their own dtype."""
    wide = update.to(scale_dtype(update.dtype))
    if weights is not None:
        wide.mul_((weights * collective.members).unsqueeze(-1))
    return reduced(wide, collective).then(lambda mean: mean.to(update.dtype))


def places_of(update: Tensor, collective: Collective) -> Tensor:
    """The index of each hosted member among the M members of its group: `[g, m]`, from 0.

    It takes 8 bytes for each pair: member i sends the number j to member j.
    """
    numbers = torch.arange(collective.members, device=update.device)
    sent = numbers.expand(*update.shape[:2], -1).unsqueeze(-1).contiguous()  # [g, m, M, 1]
    return collective.exchange(sent).wait()[:, :, 0, 0].clone()


def refusal(tensor: str, culprits: Tensor) -> NotFinite:
    """The error for an update with NaN or infinity.

    It must be made of what all processes have received. To ask them here would be a collective in a
    wait, and one process may wait alone, to save its state.

    Args:
        tensor: the name of the tensor with the value.
        culprits: flags `[g, M]` of the members whose own update is not finite.
    """
    found = culprits.any(0).nonzero().flatten().tolist()
    who = f"member {', '.join(map(str, found))}" if found else "the mean"
    return NotFinite(
        f"the update of {who} of {culprits.shape[1]} is not finite in {tensor}; "
        "continue from the last checkpoint with a lower learning rate or clipped gradients"
    )


def memory_at(error: Tensor, vectors: Tensor) -> Tensor:
    """The memory on the device of the vectors; raises if it is of other members or models."""
    if error.shape != vectors.shape:
        raise UserError(
            f"the memory of error feedback has the shape {tuple(error.shape)}, but updates have "
            f"{tuple(vectors.shape)}; continue with the model and workers that it was saved with"
        )
    return error.to(vectors)


def check_saved(state: dict[str, Any], feedback: bool, complete: bool) -> None:
    """Raises if the state was saved with another setting of error feedback."""
    if state.get("feedback") is not feedback or (feedback and not complete):
        raise UserError(
            f"error feedback is {'on' if feedback else 'off'}, but the state is of a run with "
            "another setting; continue with the setting that it was saved with"
        )
