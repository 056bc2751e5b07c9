"""Checks at the start that all processes train the same model with the same settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from localsgd.averaging.grid import Grid
from localsgd.averaging.placement import Placement
from localsgd.errors import UserError
from localsgd.optimizer.consistency import broadcast, check_equal, check_settings, described
from localsgd.rows.model_rows import Row
from localsgd.rows.parts import digest_of_tensors, is_plain
from localsgd.rows.shards import described_placement, is_sharded, local
from localsgd.wire import ProcessGroup
from localsgd.wire.presence import named

Start: TypeAlias = Literal["check", "broadcast"]


def check_group(workers: int, made: bool) -> None:
    """Refuses to train alone in a program of several ranks, which would never average.

    Args:
        workers: K, as `LocalSGD` knows it.
        made: whether `LocalSGD` was made already, so that what it knows can't change.
    """
    if workers > 1:
        return
    if dist.is_initialized():
        if made and dist.get_world_size() > 1:
            raise UserError(
                "init_process_group() was called after LocalSGD was made, which knows of no other "
                "rank and would never average; call it before LocalSGD(...)"
            )
    elif (size := os.environ.get("WORLD_SIZE", "1")) not in ("", "1"):
        raise UserError(
            f"WORLD_SIZE={size} says that there are other ranks, but torch.distributed is not "
            "initialised, so nothing would ever be averaged; call "
            "torch.distributed.init_process_group() before LocalSGD(...), or unset WORLD_SIZE"
        )


def check_configuration(
    settings: Mapping[str, str], inner: Optimizer, rows: Sequence[Row], grid: Grid
) -> None:
    """Compares the settings of all processes, before process groups are made from them.

    Stages of a worker may have other tensors and groups of the inner optimizer.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    everyone = dist.group.WORLD
    assert everyone is not None
    world = ProcessGroup(everyone)
    device = rows[0].values.device
    same, everybody = "start all ranks with the same", [range(dist.get_world_size())]
    check_settings("", settings, world, device, same, everybody)
    what = "the inner optimizer or its settings"
    check_settings(what, settings_by_name(inner), world, device, same, grid.ranks)
    check_settings(
        "names, shapes, memory formats or dtypes of parameters",
        _described_layouts(rows),
        world,
        device,
        "build the same model, and freeze the same parts of it, on all ranks",
        grid.ranks,
    )


def _described_layouts(rows: Sequence[Row]) -> dict[str, str]:
    tensors = {
        slot.name: f"{slot.shape} of {row.layout.dtype}, strides {slot.stride}"
        for row in rows
        for slot in row.layout.slots
    }
    return {**tensors, "their order or placement": layouts_of(rows)}


def layouts_of(rows: Sequence[Row]) -> str:
    """A text that is equal if rows may be averaged."""
    placed = (described_placement(p) for row in rows for p in row.parameters)
    return ",".join([*(row.layout.fingerprint().hex() for row in rows), *filter(None, placed)])


def check_or_share_start(
    start: Start, model: nn.Module, rows: Sequence[Row], placement: Placement
) -> None:
    """Compares the starting values, or distributes those of rank 0."""
    if start not in ("check", "broadcast"):
        raise UserError(f'start={start!r} is unknown; there are "check" and "broadcast"')
    world = placement.world
    if not isinstance(world, ProcessGroup):
        return
    everyone, peers = placement.everyone, placement.grid.ranks
    frozen = [(name, local(p)) for name, p in model.named_parameters() if not p.requires_grad]
    buffers = [(name, local(buffer)) for name, buffer in model.named_buffers()]
    if start == "broadcast":
        tensors = [row.fill() for row in rows] + [t for _, t in (*frozen, *buffers)]
        broadcast(filter(is_plain, tensors), world)
        weights = digest_of_tensors((str(i), row.values) for i, row in enumerate(rows))
        for row in rows:
            row.empty()
        odd = [(name, t) for name, t in (*frozen, *buffers) if not is_plain(t)]
        found = check_equal(
            {
                "starting weights": weights,
                "buffers or frozen parameters that are no plain tensors": digest_of_tensors(odd),
            },
            everyone,
            rows[0].values.device,
            'start="broadcast" can\'t send them (sparse, quantised, nested or meta): make them '
            "equal before, or dense",
            peers,
        )
        _check_inside_workers(found, rows, placement)
        return
    digests = {
        "starting weights": digest_of_tensors((str(i), row.fill()) for i, row in enumerate(rows)),
        "frozen parameters": digest_of_tensors(frozen),
        "starting buffers": digest_of_tensors(buffers),
    }
    found = check_equal(
        digests,
        everyone,
        rows[0].values.device,
        "seed or load the model alike on all ranks before LocalSGD is made, wrap it in "
        'DistributedDataParallel first, or pass start="broadcast" for those of rank 0',
        peers,
    )
    _check_inside_workers(found, rows, placement)


def _check_inside_workers(
    found: Sequence[bytes], rows: Sequence[Row], placement: Placement
) -> None:
    """Refuses workers of several ranks that each hold the whole model.

    Args:
        found: a digest of each rank's weights.
    """
    sharded = any(is_sharded(p) for row in rows for p in row.parameters)
    if len(placement.grid.ranks) > 1 and not sharded and len(set(found)) == 1:
        raise UserError(
            f"the ranks of a worker, such as {named(placement.grid.workers[0])}, hold the same "
            "whole model, and would train it apart; shard it inside workers (fully_shard with "
            'mesh=mesh["shard"], parallelize_module), or leave out topology, so that each rank is '
            "a worker"
        )


def digest_of_state(inner: Optimizer) -> bytes:
    """A digest of the state that the optimizer has for its parameters, in their order."""
    named: list[tuple[str, Tensor]] = []
    parameters = (p for group in inner.param_groups for p in group["params"])
    for index, parameter in enumerate(parameters):
        named += _flattened(str(index), inner.state.get(parameter, {}))
    return digest_of_tensors(named)


def _flattened(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a nest of values, by name; what is none stands in a name of its own."""
    if isinstance(value, Tensor):
        yield name, local(value)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flattened(f"{name}/{key}", part)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _flattened(f"{name}/{index}", part)
    else:
        yield f"{name}={described(value)}", torch.empty(0)


def settings_of_optimizer(inner: Optimizer, without: Sequence[str] = ()) -> str:
    """Its kind and the settings of its groups, `without` some, as text."""
    return f"{type(inner).__qualname__} {described(_groups(inner, without))}"


def settings_by_name(inner: Optimizer) -> dict[str, str]:
    """Its kind and the settings of its groups, such as `lr`, or `lr of group 2`."""
    found = {"kind": type(inner).__qualname__}
    for index, group in enumerate(groups := _groups(inner)):
        for name, value in group.items():
            found[named_in_group(name, index, len(groups))] = described(value)
    return found


def named_in_group(name: str, index: int, groups: int) -> str:
    """The name of a setting of one of the optimizer's groups."""
    return name if groups == 1 else f"{name} of group {index + 1}"


def _groups(inner: Optimizer, without: Sequence[str] = ()) -> list[dict[str, object]]:
    left_out = ("params", "param_names", *without)
    return [
        {name: _by_value(value) for name, value in group.items() if name not in left_out}
        for group in inner.param_groups
    ]


def _by_value(setting: object) -> object:
    """The setting with tensors as lists, as their repr rounds and names the rank's device."""
    if isinstance(setting, Tensor):
        return str(setting.dtype), setting.tolist()
    if isinstance(setting, Mapping):
        return {name: _by_value(value) for name, value in setting.items()}
    if isinstance(setting, list | tuple):
        return type(setting).__name__, [_by_value(value) for value in setting]
    return setting
