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
import re
import warnings
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from localsgd.errors import UserError
from localsgd.saving import index

INCOMPLETE, BEFORE = "incomplete", "before"
"""What follows the name of a folder in those beside it, which are a save's own."""

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
    for place in (folder, _beside(folder, BEFORE)):
        if (place / index.NAME).is_file():
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
        metadata: Metadata = self._guarded(self._reader.read_metadata)
        self._kinds: dict[str, Any] = metadata.state_dict_metadata
        assert metadata.storage_meta is not None
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

        def load() -> dict[str, Tensor]:
            index.check_files(self.place, self._reader.read_metadata(), names)
            found = {name: given[name] if name in given else self._new(name) for name in names}
            with _quiet(alone=True):
                dcp.load(found, storage_reader=self._reader, no_dist=True)
            return found

        return self._guarded(load)

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
        super().__init__(_beside(folder, INCOMPLETE))
        self._folder = folder
        self._files = files

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if is_coordinator:  # before anybody makes anything
            check_free(self._folder, self._files)
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        Path(self.path).mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # On the coordinator alone, before anything is written: what a killed one has left goes.
        for left in _checked(Path(self.path), self._files):
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
        put(partial, self._folder, self._files)

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=self.save_id)  # without the path, which is nobody's business


def check_free(folder: Path, files: Collection[str]) -> None:
    """Raises a `UserError` if a save would destroy anything that `write` has not written.

    It replaces the folder and the two beside it.
    """
    if folder.suffix in (f".{INCOMPLETE}", f".{BEFORE}"):
        raise UserError(
            f"{folder} is the name of what a save of {folder.with_suffix('')} removes; give "
            "another folder"
        )
    for place in (folder, _beside(folder, INCOMPLETE), _beside(folder, BEFORE)):
        _checked(place, files)


def _checked(place: Path, files: Collection[str]) -> list[Path]:
    """The files in a folder, all of which `write` has written; none if there is no folder."""
    if place.is_symlink():
        raise UserError(
            f"{place} is a link, and would be replaced by a folder; remove it or give another "
            "folder to save in"
        )
    if not place.exists():
        return []
    if not place.is_dir():
        raise UserError(f"{place} is a file; give another folder")
    ours = {index.NAME, f"{index.NAME}.tmp", *files}
    with os.scandir(place) as entries:
        for entry in entries:
            named = entry.name in ours or re.fullmatch(r"__\d+_\d+\.distcp", entry.name)
            if not named or not entry.is_file(follow_symlinks=False):
                raise UserError(
                    f"{place} holds {entry.name}, which is not of a save and would be lost; give "
                    "a folder that nothing else uses"
                )
    return list(place.iterdir())


def put(partial: Path, folder: Path, files: Collection[str]) -> None:
    """Puts a complete folder in its place; a process that is killed leaves one whole in any case.

    What is there before is a save, or nothing.
    """
    before = _beside(folder, BEFORE)
    if (folder / index.NAME).is_file():
        _remove(before, files)
        os.replace(folder, before)
    os.replace(partial, folder)
    _to_disk(folder.parent)
    with suppress(OSError, UserError):
        _remove(before, files)


def _remove(place: Path, files: Collection[str]) -> None:
    """Removes a save, if there is one; whatever else has come there meanwhile stays."""
    for path in _checked(place, files):
        path.unlink()
    if place.exists():
        place.rmdir()


class Reader(FileSystemReader):
    """Reads without letting the files choose code: PyTorch's own would unpickle anything."""

    _read: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self._read is None:
            self._read = index.read(Path(self.path))
        return self._read


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
    if not folder.name:
        raise UserError(f"{folder} is no folder for a save, which needs room beside it; give one")
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
