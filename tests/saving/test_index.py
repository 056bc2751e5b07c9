"""The index of a checkpoint: what damaged and forged ones ask for is refused."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from localsgd import UserError
from localsgd.saving.store import Saved, write

WEIGHTS = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(7), "e": torch.ones(0, 2)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "save", WEIGHTS, None, {})
    return tmp_path / "save"


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        Saved(folder).read(list(WEIGHTS))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(folder: Path, change: Callable[[Any], Any]) -> None:
    path = folder / ".metadata"
    index = pickle.loads(path.read_bytes())
    change(index)
    path.write_bytes(pickle.dumps(index))


def of_w(name: str, value: Any) -> Callable[[Any], None]:
    def change(index: Any) -> None:
        setattr(index.state_dict_metadata["w"], name, value)

    return change


def all_places(**values: Any) -> Callable[[Any], None]:
    return lambda index: [vars(place).update(values) for place in index.storage_data.values()]


def test_what_was_written_is_read(folder: Path) -> None:
    found = Saved(folder).read(list(WEIGHTS))
    assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)
    assert found["n"].dtype == torch.int64


POISON = (
    b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n"
    b"N}X\x08\x00\x00\x00__init__ctorch.serialization\n_get_layout\ns\x86b."
)
"""Sets an attribute of a class, by the state that it gives to it."""


def test_nothing_of_this_process_is_changed(folder: Path) -> None:
    before = Metadata.__init__
    (folder / ".metadata").write_bytes(POISON)
    try:
        refused(folder)
        assert Metadata.__init__ is before
    finally:
        Metadata.__init__ = before  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "no tensors": lambda index: setattr(index, "state_dict_metadata", None),
    "no places": lambda index: setattr(index, "storage_data", 5),
    "no save": lambda index: setattr(index, "storage_meta", 5),
    "no id": lambda index: setattr(index.storage_meta, "save_id", [1]),
    "a number as a tensor": lambda index: index.state_dict_metadata.update(w=5),
    "a number as a name": lambda index: index.state_dict_metadata.update({1: None}),
    "huge": of_w("size", torch.Size([10**15])),
    "text as a size": of_w("size", "x"),
    "properties": of_w("properties", None),
    "no parts": of_w("chunks", []),
    "parts": of_w("chunks", 7),
    "outside": all_places(relative_path="../private/__0_0.distcp"),
    "another file": all_places(relative_path="model.safetensors"),
    "absolute": all_places(relative_path="/dev/zero"),
    "above": all_places(relative_path=".."),
    "a number as a file": all_places(relative_path=5),
    "missing": all_places(relative_path="__9_9.distcp"),
    "a zero byte": all_places(relative_path="\0.distcp"),
    "long": all_places(length=10**15),
    "short": all_places(length=1),
    "negative": all_places(offset=-1),
    "transforms": all_places(transform_descriptors=["zstd"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_kinds_are_refused(folder: Path, name: str) -> None:
    (folder.parent / "private").mkdir()
    os.link(folder / "__0_0.distcp", folder.parent / "private" / "__0_0.distcp")
    changed(folder, CHANGES[name])
    assert refused(folder).startswith(f"{folder} is damaged: ")


def test_a_tensor_is_no_larger_than_its_file(folder: Path) -> None:
    """All parts fit together, but for the file."""

    def change(index: Any) -> None:
        kind = index.state_dict_metadata["w"]
        kind.size = kind.chunks[0].sizes = torch.Size([10**6, 10**9])

    changed(folder, change)
    assert "ValueError: w has more bytes than are saved of it" in refused(folder)
    changed(folder, all_places(length=10**16))
    assert "EOFError: __0_0.distcp ends too early" in refused(folder)


@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata"])
@pytest.mark.timeout(20)
def test_links_and_pipes_are_refused(folder: Path, file: str) -> None:
    path, other = folder / file, folder.parent / "private"
    os.replace(path, other)
    path.symlink_to(other)
    assert f"{path} is no regular file" in refused(folder)
    path.unlink()
    os.mkfifo(path)
    assert refused(folder)
