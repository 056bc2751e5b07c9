from __future__ import annotations

import pytest
import torch
from torch import Tensor

from localsgd.train.data.tasks.augment import PADDING, crop_and_flip


def one_by_one(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """The obvious way, with the same draws: pad, cut out and mirror each image."""
    batch, channels, height, width = pixels.shape
    rows, columns = torch.randint(0, 2 * PADDING + 1, (2, batch), generator=generator).tolist()
    flips = torch.randint(0, 2, (batch,), generator=generator).tolist()
    result = []
    for image, row, column, flip in zip(pixels, rows, columns, flips, strict=True):
        large = torch.zeros(channels, height + 2 * PADDING, width + 2 * PADDING, dtype=torch.uint8)
        large[:, PADDING : PADDING + height, PADDING : PADDING + width] = image
        cut = large[:, row : row + height, column : column + width]
        result.append(cut.flip(2) if flip else cut)
    return torch.stack(result)


@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (64, 1, 28, 28), (5, 2, 6, 9), (1, 3, 32, 32)])
def test_is_the_crop_and_flip_of_each_image(shape: tuple[int, ...]) -> None:
    pixels = torch.randint(1, 256, shape, dtype=torch.uint8)
    got = crop_and_flip(pixels, torch.Generator().manual_seed(3))
    assert torch.equal(got, one_by_one(pixels, torch.Generator().manual_seed(3)))


def test_all_81_shifts_and_both_directions_are_equally_likely() -> None:
    # One bright pixel, off the middle, tells shift and direction of its image.
    count = 81 * 2 * 200
    pixels = torch.zeros(count, 1, 12, 12, dtype=torch.uint8)
    pixels[:, 0, 5, 4] = 255
    got = crop_and_flip(pixels, torch.Generator().manual_seed(0)).view(count, -1)
    assert (got.sum(1) == 255).all()
    places = torch.bincount(got.argmax(1), minlength=144).view(12, 12)
    # Rows 1 to 9; columns 0 to 8 as they are, and 11 - (0 to 8) mirrored.
    expected = torch.zeros(12, 12)
    expected[1:10, 0:9] += 200
    expected[1:10, 3:12] += 200
    assert (places == 0).equal(expected == 0)
    chi_square = ((places - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi_square < 160  # 107 degrees of freedom: mean 107, deviation 15


def test_what_was_given_is_left_alone() -> None:
    pixels = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    before = pixels.clone()
    crop_and_flip(pixels, torch.Generator().manual_seed(0))
    assert torch.equal(pixels, before)
