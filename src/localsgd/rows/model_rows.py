"""The rows of a user's model: the parameters that are synchronised, and their memory.

A model in a user's own loop has one row for each dtype and device. Sharded parameters have one for
each set of axes that they are cut along, so that ranks which hold the same shards hold equal rows.
Parameters are moved into the rows once and stay there; if the user moves them out again, the next
sync raises an error. Shards that FSDP has moved to memory of its own are copied at each sync.

Shapes: n scalars of a row.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from localsgd.errors import UserError
from localsgd.rows.layout import Layout, adopt
from localsgd.rows.parts import is_plain
from localsgd.rows.shards import (
    Padded,
    cut_along,
    is_sharded,
    local,
    padded_shards,
    renew_references,
)

BATCH = 8
"""Parameters that are checked in one sync, which takes a few microseconds."""


class Batch(NamedTuple):
    """Some parameters, those of them that lie in the row, and where; the modules' dictionaries."""

    parameters: tuple[nn.Parameter, ...]
    placed: tuple[nn.Parameter, ...]
    sharded: bool
    addresses: list[int]
    homes: list[dict[str, nn.Parameter | None]]
    keys: list[str]


@dataclass(frozen=True)
class Row:
    """Parameters of one dtype on one device.

    Args:
        layout: the position of each parameter.
        values: `[n]`, the memory of all parameters.
        parameters: in the order of the layout's slots.
        homes: the modules' dictionaries that hold the parameters, and their names there.
        padded: the indices of shards that FSDP may move to memory of its own.
    """

    layout: Layout
    values: Tensor
    parameters: tuple[nn.Parameter, ...]
    homes: tuple[tuple[dict[str, nn.Parameter | None], str], ...]
    padded: tuple[int, ...] = ()

    @torch.no_grad()
    def fill(self) -> Tensor:
        """Copies what lies elsewhere into the row `[n]`, which is then what the model holds."""
        if elsewhere := self.elsewhere:
            torch._foreach_copy_(self._copies(elsewhere), self._originals(elsewhere))
        return self.values

    @torch.no_grad()
    def empty(self) -> None:
        """Copies the row to what lies elsewhere, so that the model holds it."""
        if elsewhere := self.elsewhere:
            torch._foreach_copy_(self._originals(elsewhere), self._copies(elsewhere))

    @property
    def elsewhere(self) -> list[int]:
        """The indices of shards that FSDP has moved."""
        return [index for index in self.padded if self._is_moved(index)]

    def _copies(self, indices: Sequence[int]) -> list[Tensor]:
        return [self.layout.slots[index].view(self.values) for index in indices]

    def _originals(self, indices: Sequence[int]) -> list[Tensor]:
        return [local(self.parameters[index]).detach() for index in indices]

    def check_in_place(self) -> None:
        """Raises if a parameter has left the row or the model.

        `model.to()`, `model.half()` and `p.data =` take it out of the row,
        `load_state_dict(assign=True)` out of the model.
        """
        for batch in self._batches:
            self._check(batch)

    def check_some_in_place(self) -> None:
        """Checks the next few parameters in turn.

        A model is usually moved as a whole; a single moved parameter is found some syncs later.
        """
        self._check(next(self._turns))

    @property
    def in_place(self) -> bool:
        """Whether all parameters are in the row and in the model."""
        return all(map(_in_place, self._batches))

    def _check(self, batch: Batch) -> None:
        if not _in_place(batch):
            self._refuse_moved()

    @cached_property
    def _turns(self) -> Iterator[Batch]:
        return itertools.cycle(self._batches)

    @cached_property
    def _batches(self) -> list[Batch]:
        base, size = self.values.data_ptr(), self.values.element_size()
        slots, apart = self.layout.slots, set(self.padded)
        sharded = any(map(is_sharded, self.parameters))
        batches = []
        for start in range(0, len(slots), BATCH):
            indices = range(start, min(start + BATCH, len(slots)))
            here = [index for index in indices if index not in apart]
            batches.append(
                Batch(
                    self.parameters[start : start + BATCH],
                    tuple(self.parameters[index] for index in here),
                    sharded,
                    [base + slots[i].offset * size if slots[i].length else 0 for i in here],
                    [home for home, _ in self.homes[start : start + BATCH]],
                    [key for _, key in self.homes[start : start + BATCH]],
                )
            )
        return batches

    def _is_moved(self, index: int) -> bool:
        memory, slot = local(self.parameters[index]), self.layout.slots[index]
        there = self.values.data_ptr() + slot.offset * self.values.element_size()
        return memory.numel() > 0 and memory.data_ptr() != there

    def _refuse_moved(self) -> None:
        placed = zip(self.layout.slots, self.parameters, self.homes, strict=True)
        for index, (slot, parameter, (home, key)) in enumerate(placed):
            moved = index not in self.padded and self._is_moved(index)
            if moved or parameter.dtype != self.values.dtype:
                raise UserError(
                    f"{slot.name} has been given other memory since LocalSGD took it in "
                    "(model.to(), .half() or p.data = ...), so that it can't be synchronised; "
                    "move or convert the model before LocalSGD is made, and copy_() into tensors "
                    "afterwards"
                )
            if key not in home:
                raise UserError(
                    f"the model has no {slot.name} of its own any more (a parametrization or "
                    "pruning has taken it since LocalSGD was made); do that before optimizer and "
                    "LocalSGD are made"
                )
            if home[key] is not parameter:
                raise UserError(
                    f"the model has another tensor for {slot.name} than when LocalSGD was made "
                    "(load_state_dict(assign=True), or an assignment), so that no optimizer steps "
                    "it; load without assign, or make optimizer and LocalSGD anew"
                )


def _in_place(batch: Batch) -> bool:
    # Called at every sync, so done by C functions; which parameter it is, is found out afterwards.
    memories = map(local, batch.placed) if batch.sharded else batch.placed
    addresses = list(map(Tensor.data_ptr, memories))
    found = map(dict.get, batch.homes, batch.keys)
    return addresses == batch.addresses and all(map(operator.is_, found, batch.parameters))


def rows_of(model: nn.Module, inner: Optimizer, multiple: int) -> tuple[Row, ...]:
    """Moves the trainable parameters that `inner` steps into rows.

    Args:
        model: its names give the order; tied weights count once, frozen ones not at all.
        inner: every trainable parameter of it must belong to `model`.
        multiple: the length of a row is a multiple of this.
    """
    named = list(_synchronised(model, inner))
    _check_apart(model, named)
    padded = padded_shards(model)
    rows = []
    for kind in dict.fromkeys(_kind(p) for _, p in named):
        chosen = [(name, p) for name, p in named if _kind(p) == kind]
        layout = Layout.of(((name, local(p.data)) for name, p in chosen), multiple=multiple)
        if layout.spare is None:  # It marks a worker that is left out of a mean.
            layout = replace(layout, length=layout.length + multiple)
        parameters = tuple(p for _, p in chosen)
        there = [
            (s.offset, padded.get(id(p))) for s, p in zip(layout.slots, parameters, strict=True)
        ]
        ends = [offset + shard.scalars for offset, shard in there if shard]
        memory = replace(layout, length=max(layout.length, *ends, 0)).rows(1, kind[1])[0]
        values = memory[: layout.length]
        adopt(layout, values, chosen)
        for offset, shard in there:
            if shard:
                shard.gather_from(memory[offset : offset + shard.scalars])
        rows.append(Row(layout, values, parameters, tuple(_home(model, n) for n, _ in chosen)))
    renew_references(model, (name for name, p in named if is_sharded(p)))
    return tuple(_with_padded(row, padded) for row in rows)


def _kind(parameter: nn.Parameter) -> tuple[torch.dtype, torch.device, tuple[int | str, ...]]:
    """What parameters of one row have in common."""
    return parameter.dtype, local(parameter).device, cut_along(parameter)


def _with_padded(row: Row, padded: Mapping[int, Padded]) -> Row:
    """The row with those parameters noted that FSDP has moved already, or may move."""
    parameters = enumerate(row.parameters)
    return replace(
        row, padded=tuple(i for i, p in parameters if id(p) in padded or row._is_moved(i))
    )


def _home(model: nn.Module, name: str) -> tuple[dict[str, nn.Parameter | None], str]:
    prefix, _, key = name.rpartition(".")
    return model.get_submodule(prefix)._parameters, key


def _synchronised(model: nn.Module, inner: Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    stepped = {id(p) for g in inner.param_groups for p in g["params"] if p.requires_grad}
    found = [(name, p) for name, p in model.named_parameters() if id(p) in stepped]
    foreign = len(stepped) - len(found)
    if foreign:
        raise UserError(
            f"{foreign} of the inner optimizer's {len(stepped)} trainable tensors are no "
            "parameters of the model; give a model that has them all, such as an nn.ModuleList of "
            "its parts"
        )
    if not found:
        raise UserError(
            "the inner optimizer has no trainable parameter; there is nothing to average"
        )
    for name, parameter in found:
        _check_kind(name, parameter)
        yield name, parameter


class _Memory(NamedTuple):
    """The bytes of a tensor from `start` up to `end`."""

    device: str
    start: int
    end: int
    name: str
    tensor: Tensor


def _check_apart(model: nn.Module, named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuses a parameter whose memory another tensor has too: a row would part the two."""
    moved = {id(parameter) for _, parameter in named}
    found = []
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        memory = local(tensor).detach()
        if is_plain(memory) and memory.numel() and _is_dense(memory):
            start = memory.data_ptr()
            place = str(memory.device), start, start + memory.nbytes
            found.append(_Memory(*place, name, tensor))
    found.sort(key=lambda one: one[:3])
    before = found[0] if found else None
    for one in found[1:]:
        assert before is not None
        within = one.device == before.device and one.start < before.end
        if within and moved & {id(one.tensor), id(before.tensor)}:
            raise UserError(
                f"{before.name} and {one.name} lie in the same memory, and LocalSGD gives "
                "parameters a place of their own; tie them by one nn.Parameter under both names, "
                "or give one of them a copy"
            )
        if not within or one.end > before.end:
            before = one


def _is_dense(memory: Tensor) -> bool:
    """Whether plain memory has no gaps, in which other tensors might lie."""
    axes = zip(memory.shape, memory.stride(), strict=True)
    return memory.numel() == 1 + sum((size - 1) * stride for size, stride in axes)


def _check_kind(name: str, parameter: nn.Parameter) -> None:
    if nn.parameter.is_lazy(parameter):
        raise UserError(f"{name} has no shape yet; run one batch through the model first")
    memory = local(parameter.data)
    if type(memory) is not Tensor:
        raise UserError(
            f"{name} is a {type(memory).__name__}, and such special tensors can't lie in a row; "
            "LocalSGD needs plain parameters, or DTensors of them"
        )
    if is_sharded(parameter) and any(placed.is_partial() for placed in parameter.placements):
        raise UserError(
            f"{name} is placed as {parameter.placements}: each rank has a part of a sum, and not "
            "of the tensor; give it the placement Shard or Replicate"
        )
    if memory.is_meta:
        raise UserError(f"{name} is on the meta device and has no values; initialise it first")
    if not parameter.is_floating_point():
        raise UserError(
            f"{name} is {parameter.dtype}; only floating parameters can be averaged (a complex one "
            "as a floating one with a last axis of 2)"
        )
    if parameter.element_size() < 2:
        raise UserError(
            f"{name} is {parameter.dtype}, which can't be summed; train it in bfloat16 or wider, "
            "and convert a copy"
        )
    if parameter.layout != torch.strided:
        raise UserError(
            f"{name} has the layout {parameter.layout}; only dense tensors can be averaged"
        )
