from __future__ import annotations

import math

import pytest
import torch

from localsgd.train.data.tasks.crops import Crop, box, central, drawn, random_crops, resized


def crop_of(
    *shapes: tuple[float, float], place: tuple[float, float] = (0, 0), flip: bool = False
) -> Crop:
    """Candidates as (share of the area, width over height)."""
    logs = [(share, math.log(ratio)) for share, ratio in shapes]
    return Crop(torch.tensor(logs).double(), torch.tensor(place).double(), flip)


@pytest.mark.parametrize(
    ("rows", "columns", "crop", "expected"),
    [
        (40, 40, crop_of((0.25, 1.0)), (0, 0, 20, 20)),
        (40, 40, crop_of((0.25, 1.0), place=(0.999, 0.5)), (20, 10, 20, 20)),
        (30, 40, crop_of((0.25, 4 / 3)), (0, 0, 15, 20)),
        (40, 40, crop_of((1.0, 4 / 3), (0.25, 1.0)), (0, 0, 20, 20)),  # the first does not fit
        (10, 100, crop_of((1.0, 1.0)), (0, 43, 10, 13)),  # none does: the middle, of 4/3
        (100, 10, crop_of((1.0, 1.0)), (43, 0, 13, 10)),
        (1, 1, crop_of((0.08, 1.0)), (0, 0, 1, 1)),
    ],
)
def test_boxes_by_hand(
    rows: int, columns: int, crop: Crop, expected: tuple[int, int, int, int]
) -> None:
    assert box(rows, columns, crop) == expected


def test_boxes_lie_inside_and_reach_every_side() -> None:
    crops = random_crops(400, torch.Generator().manual_seed(0))
    sides = set()
    for crop in crops:
        assert ((crop.shapes[:, 0] >= 0.08) & (crop.shapes[:, 0] <= 1)).all()
        top, left, height, width = box(60, 80, crop)
        assert 0 <= top <= 60 - height
        assert 0 <= left <= 80 - width
        assert 0.7 < width / height < 1.4
        sides |= {top == 0, top + height == 60, left + width == 80}
    assert sides == {True, False}
    assert 150 < sum(crop.flip for crop in crops) < 250


def test_how_much_is_drawn_depends_on_the_count_alone() -> None:
    one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    random_crops(4, one)
    torch.rand(4 * 23, generator=other, dtype=torch.float64)
    assert torch.equal(one.get_state(), other.get_state())


def test_a_view_is_cut_resized_and_mirrored() -> None:
    image = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
    crop = crop_of((0.25, 1.0), place=(0.5, 0.9))
    corner = image[:, 2:6, 4:8]
    assert torch.equal(drawn(image, crop, 4), corner)
    assert torch.equal(drawn(image, crop._replace(flip=True), 4), corner.flip(-1))
    assert torch.equal(drawn(image, crop, 2), resized(corner, 2, 2))
    assert drawn(image, crop, 7).shape == (3, 7, 7)


def test_shrinking_takes_the_mean_of_what_becomes_one_pixel() -> None:
    stripes = torch.tensor([200, *[0] * 7], dtype=torch.uint8).repeat(3, 32, 4)
    small = resized(stripes, 4, 4)
    assert small.dtype == torch.uint8
    assert ((small > 15) & (small < 40)).all()  # 25; without that, what lies next to the centre: 0


@pytest.mark.parametrize(("rows", "columns"), [(256, 256), (300, 500), (500, 300), (100, 60)])
def test_the_middle(rows: int, columns: int) -> None:
    image = torch.zeros(3, rows, columns, dtype=torch.uint8)
    image[:, rows // 2 - 2 : rows // 2 + 2, columns // 2 - 2 : columns // 2 + 2] = 255
    view = central(image, 224).double()
    assert view.shape == (3, 224, 224)
    weights = view[0] / view[0].sum()
    at = torch.arange(224.0).double()
    assert (weights.sum(1) @ at).item() == pytest.approx(111.5, abs=0.6)
    assert (weights.sum(0) @ at).item() == pytest.approx(111.5, abs=0.6)


def test_the_middle_of_256_pixels_is_cut_as_it_is() -> None:
    image = torch.randint(0, 256, (3, 256, 300), dtype=torch.uint8)
    assert torch.equal(central(image, 224), image[:, 16:240, 38:262])
