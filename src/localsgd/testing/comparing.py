"""What the checks share: comparisons, and updates of a made-up model.

Shapes: n scalars of a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from localsgd.reduce.extents import Extents
from localsgd.rows.layout import Layout

LAYOUT = Layout.of(
    [
        ("weight", torch.empty(5, 9)),
        ("bias", torch.empty(5)),
        ("empty", torch.empty(0)),
        ("scalar", torch.empty(())),
        ("kernel", torch.empty(4, 3, 3, 3).contiguous(memory_format=torch.channels_last)),
    ],
    multiple=64,
)
"""A row of tensors of unlike sizes, one of them empty, with padding between them."""
ROW = Extents.of(LAYOUT)


def masked(row: Extents) -> Tensor:
    """Which scalars `[n]` belong to a tensor."""
    mask = torch.zeros(row.length, dtype=torch.bool)
    for start, stop, _ in row.fragments:
        mask[start:stop] = True
    return mask


def drawn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, the same everywhere."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)


def updates(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows `[*shape, n]` of the layout, of tensors of unlike sizes, zero between them."""
    x = drawn(*shape, LAYOUT.length, seed=seed, dtype=dtype) * masked(ROW)
    for size, (start, stop, _) in zip((1.0, 0.01, 5.0, 0.2), ROW.fragments, strict=True):
        x[..., start:stop] *= size
    return x


def near(found: Tensor, expected: Tensor, what: str, rtol: float = 1e-12) -> None:
    """Asserts that both are equal to rounding."""
    torch.testing.assert_close(
        found, expected, rtol=rtol, atol=rtol, msg=lambda text: f"{what}: {text}"
    )


def same_bits(found: Tensor, expected: Tensor, what: str) -> None:
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} in place of {expected.dtype}"
    assert torch.equal(found, expected), what


def refused(
    kind: type[Exception] | tuple[type[Exception], ...], call: Callable[[], object], what: str
) -> None:
    """Asserts that `call` raises an error of this kind."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{what} is not refused")


def settings_of(part: object) -> str:
    """Its `repr` without addresses, by which ranks and saved states are compared."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(part))
