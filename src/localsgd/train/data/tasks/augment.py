"""Random crops and flips for a whole batch at once.

B: images of a batch · C, H, W: channels, height, width
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4


def crop_and_flip(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to 4 pixels into a black border, and mirror about every second one.

    The scheme of He et al. (2016, section 4.2) for CIFAR: a random H x W crop of the image padded
    with 4 pixels on each side, and a horizontal flip with probability 1/2. The border is black
    (pixel 0, before normalisation), as in torchvision.

    Args:
        pixels: [B, C, H, W] uint8.
        generator: where the draws come from: for all images first the row, then the column of the
            crop's corner (0 to 8 each), then the flip.
    """
    batch, channels, height, width = pixels.shape
    device = pixels.device
    corner = _draw(2 * PADDING + 1, (2, batch), generator).to(device)
    flip = _draw(2, (batch,), generator).to(device, torch.bool)

    # Where each pixel of the crop lies in the padded image, the same for all channels. This one
    # gather takes half the time of crops by index and a flip after them.
    rows = corner[0].unsqueeze(1) + torch.arange(height, device=device)  # [B, H]
    across = torch.arange(width, device=device)
    across = torch.where(flip.unsqueeze(1), width - 1 - across, across)
    columns = corner[1].unsqueeze(1) + across  # [B, W]
    at = rows.unsqueeze(2) * (width + 2 * PADDING) + columns.unsqueeze(1)  # [B, H, W]

    padded = F.pad(pixels, (PADDING,) * 4).flatten(2)
    at = at.view(batch, 1, height * width).expand(-1, channels, -1)
    return padded.gather(2, at).view_as(pixels)


def _draw(bound: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Integers from 0 to `bound` - 1, drawn where the generator lives."""
    return torch.randint(0, bound, shape, generator=generator, device=generator.device)
