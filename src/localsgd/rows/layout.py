"""The layout of a row: the position of each tensor of a model.

A row is a worker's model as one flat vector; the model's tensors are views of it, in their own
shape and memory format. Tensors start at multiples of 64 bytes, and the scalars between them stay
zero.

Shapes: n scalars of a row, padding included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.rows.shards import local

ALIGNMENT = 16
"""Scalars of a cache line of float32, so that views are as aligned as separate tensors."""


@dataclass(frozen=True)
class Slot:
    """One tensor's position: `row[offset : offset + prod(shape)]`, laid out by `stride`."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def length(self) -> int:
        return torch.Size(self.shape).numel()

    def view(self, row: Tensor) -> Tensor:
        return row[self.offset : self.offset + self.length].as_strided(self.shape, self.stride)

    def stacked(self, rows: Tensor) -> Tensor:
        """This tensor in all `rows [w, n]`, as a view `[w, *shape]`."""
        part = rows[:, self.offset : self.offset + self.length]
        return part.as_strided((len(rows), *self.shape), (rows.stride(0), *self.stride))


@dataclass(frozen=True)
class Layout:
    """The slots of a row.

    Args:
        slots: in the order of their offsets.
        length: n.
        dtype: of all tensors of the row.
    """

    slots: tuple[Slot, ...]
    length: int
    dtype: torch.dtype

    @staticmethod
    def of(tensors: Iterable[tuple[str, Tensor]], *, multiple: int = 1) -> Layout:
        """Lays out named tensors of one dtype in the given order.

        Args:
            tensors: names and tensors; every one dense (contiguous, channels_last or another
                permutation).
            multiple: the length of the row is rounded up to a multiple of this.
        """
        slots: list[Slot] = []
        offset = 0
        dtype = None
        for name, tensor in tensors:
            if dtype not in (None, tensor.dtype):
                raise AssertionError(f"{name} is {tensor.dtype} in a row of {dtype}")
            dtype = tensor.dtype
            slots.append(Slot(name, tuple(tensor.shape), _dense_stride(name, tensor), offset))
            offset += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
        length = -(-offset // multiple) * multiple
        return Layout(tuple(slots), length, dtype or torch.float32)

    def rows(self, count: int, device: torch.device | str) -> Tensor:
        """Zeros `[count, n]`."""
        return torch.zeros((count, self.length), dtype=self.dtype, device=device)

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """The tensors of `row [n]` by name."""
        return {slot.name: slot.view(row) for slot in self.slots}

    def stacked(self, rows: Tensor) -> dict[str, Tensor]:
        """The tensors of `rows [w, n]` by name, `[w, *shape]`."""
        return {slot.name: slot.stacked(rows) for slot in self.slots}

    def clear_padding(self, row: Tensor) -> None:
        """Sets the scalars of `row [n]` that belong to no tensor to 0."""
        row[self._padding.to(row.device)] = 0

    @cached_property
    def _padding(self) -> Tensor:
        """The indices of scalars that belong to no tensor."""
        padding = torch.ones(self.length, dtype=torch.bool)
        for slot in self.slots:
            padding[slot.offset : slot.offset + slot.length] = False
        return padding.nonzero().flatten()

    @property
    def spare(self) -> int | None:
        """A place that belongs to no tensor, if there is one."""
        return self.gaps[0] if self.gaps else None

    @cached_property
    def gaps(self) -> tuple[int, ...]:
        """The first place of each gap between tensors."""
        starts = [*(slot.offset for slot in self.slots), self.length]
        ends = [0, *(slot.offset + slot.length for slot in self.slots)]
        return tuple(end for end, start in zip(ends, starts, strict=True) if end < start)

    def fingerprint(self) -> bytes:
        """A hash of names, shapes, memory formats and dtype; equal if rows may be averaged."""
        return hashlib.sha256(repr((self.slots, self.length, self.dtype)).encode()).digest()


def adopt(layout: Layout, row: Tensor, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Moves `tensors` into `row`: same objects, same values, memory in the row from now on.

    Of a `DTensor` this is done with the shard; what else holds that memory must be told.
    """
    views = layout.views(row)
    with torch.no_grad():
        for name, tensor in tensors:
            memory = local(tensor)
            views[name].copy_(memory)
            memory.data = views[name]


def _dense_stride(name: str, tensor: Tensor) -> tuple[int, ...]:
    if tensor.layout != torch.strided:
        raise UserError(
            f"{name} has the layout {tensor.layout}; only dense tensors can be synchronised"
        )
    if tensor.numel() == 0:
        return tuple(tensor.stride())
    order = sorted(range(tensor.dim()), key=lambda axis: (tensor.stride(axis), -axis))
    expected = 1
    for axis in order:
        if tensor.shape[axis] > 1 and tensor.stride(axis) != expected:
            raise UserError(
                f"{name} of shape {tuple(tensor.shape)} and stride {tensor.stride()} has gaps or "
                "overlaps in memory; call .contiguous() on it before"
            )
        expected *= tensor.shape[axis]
    return tuple(tensor.stride())
