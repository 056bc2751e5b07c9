"""A folder that several processes write together, whole or not at all.

It is a checkpoint of `torch.distributed.checkpoint`, and files beside it. Everything is written in
`FOLDER.incomplete`. When all processes are done, the coordinator renames: FOLDER to FOLDER.before,
FOLDER.incomplete to FOLDER; then FOLDER.before goes. So at any moment there is the new one whole,
or the one before, which is found as FOLDER or as FOLDER.before.

PyTorch takes equal keys for replicas and writes each from one process only. Whoever writes tensors
that differ between workers must name them by worker.
"""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from localsgd.errors import UserError

Files = Mapping[str, Callable[[Path], None]]
"""By name in the folder, what writes a file there."""


def write(
    folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None, files: Files
) -> None:
    """Writes a folder. All processes of the group must call it.

    Args:
        folder: seen by all processes; what is there is replaced.
        tensors: of this process, by name; those with equal names are replicas.
        group: a gloo group that nothing else uses meanwhile; `None` for one process.
        files: written by the first process, beside the tensors.

    Raises:
        UserError: it can't be written, on all processes.
    """
    writer = Writer(folder, files)
    try:
        with _quiet(alone=group is None):
            dcp.save(
                dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None
            )
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise UserError(
            f"{folder} was not saved, as rank {rank} failed: {_in_one_line(cause)}; what was saved "
            "there before is unharmed"
        ) from error


def there(folder: Path) -> Path | None:
    """Where what was saved last as `folder` is, whole; `None` if there is nothing."""
    for place in (folder, _beside(folder, "before")):
        if (place / ".metadata").is_file():
            return place
    return None


class Saved:
    """A folder that was written, to be read by one process alone.

    Args:
        folder: as it was given to `write`.

    Attributes:
        id: differs between any two that were written.
        names: of its tensors.

    Raises:
        UserError: there is none, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        place = there(folder)
        if place is None:
            raise UserError(f"nothing was saved in {folder}; give the folder of localsgd.save()")
        self.place = place
        self._reader = Reader(place)
        metadata = self._guarded(self._reader.read_metadata)
        self._kinds: dict[str, Any] = metadata.state_dict_metadata
        self.id = str(metadata.storage_meta.save_id)
        self.names: Collection[str] = self._kinds.keys()

    def read(
        self, names: Collection[str], into: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Tensors by name, on the CPU.

        Args:
            into: by name, tensors to read into; a sharded one takes its own part. All others are
                new.
        """
        given = into or {}
        missing = [name for name in names if name not in self._kinds]
        if missing:
            raise UserError(f"{self.place} lacks {missing[0]!r}; it is damaged or another's")
        found = {name: given[name] if name in given else self._new(name) for name in names}

        def load() -> None:
            with _quiet(alone=True):
                dcp.load(found, storage_reader=self._reader, no_dist=True)

        self._guarded(load)
        return found

    def shape(self, name: str) -> torch.Size:
        return self._kinds[name].size

    def dtype(self, name: str) -> torch.dtype:
        return self._kinds[name].properties.dtype

    def _new(self, name: str) -> Tensor:
        return torch.empty(self.shape(name), dtype=self.dtype(name))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except UserError:
            raise
        except (Exception, CheckpointException) as error:  # whatever the damage leads to
            cause: BaseException = error
            if isinstance(error, CheckpointException):
                [(cause, _)] = error.failures.values()
            raise UserError(
                f"{self.place} is damaged: {_in_one_line(cause)}; go on from an earlier save"
            ) from error


class Writer(FileSystemWriter):
    """Writes beside `folder`, and puts everything in its place at the end."""

    def __init__(self, folder: Path, files: Files) -> None:
        super().__init__(_beside(folder, "incomplete"))
        self._folder = folder
        self._files = files

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        Path(self.path).mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # On the coordinator alone, before anything is written: what a killed one has left goes.
        check_free(self._folder, self._files)
        for left in Path(self.path).iterdir():
            left.unlink()
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        partial = Path(self.path)
        for result in (one for of_process in results for one in of_process):
            if not (partial / result.storage_data.relative_path).exists():
                raise UserError(
                    f"the first process does not see in {partial} what another has written there; "
                    "give a folder on a file system that all share"
                )
        for name, write_file in self._files.items():
            write_file(partial / name)
            _to_disk(partial / name)
        super().finish(metadata, results)
        check_free(self._folder, self._files)
        put(partial, self._folder)

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=self.save_id)  # without the path, which is nobody's business


def check_free(folder: Path, files: Collection[str]) -> None:
    """Raises a `UserError` if there is anything in the folder that `write` has not written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give another folder")
    ours = {".metadata", *files}
    found = folder.iterdir() if folder.exists() else ()
    other = [path.name for path in found if path.name not in ours and path.suffix != ".distcp"]
    if other:
        raise UserError(
            f"{folder} holds {other[0]}, which is not of a save and would be lost; give a folder "
            "that nothing else uses"
        )


def put(partial: Path, folder: Path) -> None:
    """Puts a complete folder in its place; a process that is killed leaves one whole in any case.

    What is there before is a save, or nothing.
    """
    before = _beside(folder, "before")
    if (folder / ".metadata").is_file():
        shutil.rmtree(before, ignore_errors=True)
        os.replace(folder, before)
    os.replace(partial, folder)
    _to_disk(folder.parent)
    shutil.rmtree(before, ignore_errors=True)


class Reader(FileSystemReader):
    """Reads without letting the files choose code: PyTorch's own would unpickle anything."""

    _read: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._read is not None:
            return self._read
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = _Harmless(file).load()
        if not isinstance(metadata, Metadata) or metadata.storage_meta is None:
            raise pickle.UnpicklingError(".metadata is not what localsgd.save writes")
        metadata.storage_meta.load_id = self.load_id
        self._read = metadata
        return metadata


_DESCRIPTIONS = (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
    _StorageInfo,
)


class _Harmless(pickle.Unpickler):
    """Makes the few classes that describe a checkpoint, and dtypes, and nothing else."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._known: dict[tuple[str, str], Any] = {
            (kind.__module__, kind.__qualname__): kind for kind in _DESCRIPTIONS
        }
        self._known["torch.serialization", "_get_layout"] = torch.serialization._get_layout
        self._known["torch", "Size"] = torch.Size
        encoding = dcp.metadata._MEM_FORMAT_ENCODING
        self._known[encoding.__module__, encoding.__qualname__] = encoding

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._known:
            return self._known[module, name]
        if module == "torch" and isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        raise pickle.UnpicklingError(f".metadata asks for {module}.{name}, which is not allowed")


@contextmanager
def _quiet(alone: bool) -> Generator[None]:
    """A context without warnings of PyTorch that mean nothing here.

    Args:
        alone: whether there is meant to be one process.
    """
    with warnings.catch_warnings():
        # PyTorch 2.9 asks tensors for their typed storage when it writes them.
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        if alone:
            warnings.filterwarnings("ignore", message="torch.distributed is")
        yield


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f"{folder.name}.{what}")


def _to_disk(path: Path) -> None:
    """Returns once a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"[:400]
