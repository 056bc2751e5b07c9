"""Random crops and flips for a whole batch at once.

B: images of a batch · C, H, W: channels, height, width
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4


def crop_and_flip(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Shift by up to 4 pixels each way into a black border, and mirror every second image.

    The scheme of He et al. (2016, section 4.2) for CIFAR: a random H x W crop of the image padded
    with 4 zeros on each side, and a horizontal flip with probability 1/2. The border is black
    (pixel 0, before normalisation), as in torchvision.

    Args:
        pixels: [B, C, H, W] uint8.
        generator: where the draws come from: for all images first the row and column of the crop's
            corner (0 to 8 each), then the flip.
    """
    batch, _, height, width = pixels.shape
    corner = torch.randint(
        0, 2 * PADDING + 1, (2, batch), generator=generator, device=generator.device
    )
    flip = torch.randint(0, 2, (batch,), generator=generator, device=generator.device)
    row, column = corner.to(pixels.device)
    flip = flip.to(pixels.device, torch.bool).view(batch, 1, 1, 1)

    padded = F.pad(pixels, (PADDING,) * 4)
    # Every possible crop as a view [B, C, 9, 9, H, W]; the index copies one for each image.
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    chosen = crops[torch.arange(batch, device=pixels.device), :, row, column]
    return torch.where(flip, chosen.flip(3), chosen)
