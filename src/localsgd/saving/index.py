"""The index of a checkpoint of `torch.distributed.checkpoint`: which tensors there are, and where.

PyTorch pickles it, and a pickle is a program: unpickling calls what it names, and may set
attributes of it. So here each name stands for an inert class, made for one file alone, that only
remembers what it was given. The index is made from that afterwards, all kinds checked.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from localsgd.basics.files import size_of_own

NAME = ".metadata"

_KINDS = (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
    _StorageInfo,
    torch.Size,
    dcp.metadata._MEM_FORMAT_ENCODING,
    torch.serialization._get_layout,
)
"""What the pickle names, beside dtypes."""


def read(folder: Path) -> Metadata:
    """The index of a folder, without what is not needed to read tensors.

    Raises:
        UserError: it is a link.
        Exception: nearly any, as damaged bytes make the unpickler raise nearly anything.
    """
    size_of_own(folder / NAME)
    with (folder / NAME).open("rb") as file:
        state = _state_of(_Inert(file).load(), Metadata)
    kinds = _is(state["state_dict_metadata"], dict)
    places = _is(state["storage_data"], dict)
    meta = _state_of(state["storage_meta"], StorageMeta)
    return Metadata(
        {_is(name, str): _tensor(kind) for name, kind in kinds.items()},
        storage_data={_key(key): _place(place) for key, place in places.items()},
        storage_meta=StorageMeta(save_id=_is(meta["save_id"], str)),
    )


def check_files(folder: Path, index: Metadata, names: Collection[str]) -> None:
    """Refuses tensors that lie elsewhere, and such as are larger than the files that hold them.

    Raises:
        UserError: a file is a link, a pipe or the like.
        OSError, EOFError, LookupError, ValueError: the folder is damaged.
    """
    needed: Counter[str] = Counter()
    ends: dict[str, int] = {}
    for name in names:
        kind = index.state_dict_metadata[name]
        assert isinstance(kind, TensorStorageMetadata)
        for chunk in kind.chunks:
            place = index.storage_data[MetadataIndex(name, chunk.offsets)]
            if prod(chunk.sizes) * kind.properties.dtype.itemsize > place.length:
                raise ValueError(f"{name} has more bytes than are saved of it")
            needed[place.relative_path] += place.length
            end = place.offset + place.length
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), end)
    for file, end in ends.items():
        if max(end, needed[file]) > size_of_own(folder / file):
            raise EOFError(f"{file} ends too early")


class _Said:
    """What the pickle said of an object: its arguments, and its state."""

    kind: Any = None
    state: Any = None

    def __new__(cls, *arguments: Any) -> _Said:
        self = super().__new__(cls)
        self.arguments = arguments
        return self

    arguments: tuple[Any, ...]

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Inert(pickle.Unpickler):
    """Makes records of the few classes that describe a checkpoint, and dtypes, and nothing else."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._known = {
            (kind.__module__, kind.__qualname__): type(kind.__name__, (_Said,), {"kind": kind})
            for kind in _KINDS
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._known:
            return self._known[module, name]
        if module == "torch" and isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind  # It can't be called, and nothing about it can be changed.
        raise pickle.UnpicklingError(f"{NAME} asks for {module}.{name}, which is not allowed")


def _is(value: Any, kind: type) -> Any:
    """`value`, which must be of this very type."""
    if type(value) is not kind:
        raise ValueError(f"{NAME} has {type(value).__name__} in place of {kind.__name__}")
    return value


def _said(value: Any, kind: Any) -> _Said:
    if not isinstance(value, _Said) or value.kind is not kind:
        raise ValueError(f"{NAME} has {type(value).__name__} in place of {kind.__name__}")
    return value


def _state_of(value: Any, kind: Any) -> dict[str, Any]:
    return _is(_said(value, kind).state, dict)


def _count(value: Any) -> int:
    if _is(value, int) < 0:
        raise ValueError(f"{NAME} has the negative number {value}")
    return value


def _size(value: Any) -> torch.Size:
    [sizes] = _said(value, torch.Size).arguments
    return torch.Size(map(_count, _is(sizes, tuple)))


def _tensor(value: Any) -> TensorStorageMetadata:
    state = _state_of(value, TensorStorageMetadata)
    dtype, *_ = _is(_said(state["properties"], TensorProperties).state, tuple)
    properties = TensorProperties(dtype=_is(dtype, torch.dtype))
    size = _size(state["size"])
    chunks = [_chunk(chunk, size) for chunk in _is(state["chunks"], list)]
    if sum(prod(chunk.sizes) for chunk in chunks) != prod(size):
        raise ValueError(f"{NAME} has a tensor whose parts don't make up the whole")
    return TensorStorageMetadata(properties, size, chunks)


def _chunk(value: Any, whole: torch.Size) -> ChunkStorageMetadata:
    state = _state_of(value, ChunkStorageMetadata)
    chunk = ChunkStorageMetadata(_size(state["offsets"]), _size(state["sizes"]))
    ends = zip(chunk.offsets, chunk.sizes, whole, strict=True)
    if any(offset + size > end for offset, size, end in ends) and prod(chunk.sizes):
        raise ValueError(f"{NAME} has a part beyond the end of its tensor")
    return chunk


def _key(value: Any) -> MetadataIndex:
    state = _state_of(value, MetadataIndex)
    return MetadataIndex(_is(state["fqn"], str), _size(state["offset"]))


def _place(value: Any) -> _StorageInfo:
    state = _state_of(value, _StorageInfo)
    file = _is(state["relative_path"], str)
    if Path(file).name != file or not file.endswith(".distcp"):
        raise ValueError(f"{NAME} names the file {file!r}, which is none of a save")
    if state.get("transform_descriptors"):
        raise ValueError(f"{NAME} asks for transforms, which no save has")
    return _StorageInfo(file, _count(state["offset"]), _count(state["length"]))
