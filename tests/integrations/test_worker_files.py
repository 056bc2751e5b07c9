from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from localsgd import LocalSGD
from localsgd.errors import UserError
from localsgd.integrations import worker_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What one worker has saved."""
    model = torch.nn.Linear(3, 2)
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=2)
    worker_files.write(tmp_path, model, optimizer)
    return tmp_path


def test_a_worker_reads_what_it_wrote(folder: Path) -> None:
    state = worker_files.read(folder)
    assert state["workers"] == 1
    assert state["gradients"] == {}
    assert state["model"]["weight"].shape == (2, 3)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def a_list(path: Path) -> None:
    torch.save([1], path)


def unpickling(path: Path) -> None:
    torch.save({"workers": Path("/")}, path)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def without(name: str) -> Callable[[Path], None]:
    return lambda path: changed(path, **{name: None})


def changed(path: Path, **values: Any) -> None:
    torch.save({**torch.load(path, weights_only=True), **values}, path)


@pytest.mark.parametrize(
    "damage",
    [cut, emptied, a_list, unpickling, pipe, *map(without, ("workers", "model", "optimizer"))],
)
@pytest.mark.timeout(30)
def test_a_damaged_file_is_named_in_one_line(folder: Path, damage: Callable[[Path], None]) -> None:
    path = worker_files.file_of(folder, 0)
    damage(path)
    with pytest.raises(UserError, match=r"worker-0\.pt is ") as refused:
        worker_files.read(folder)
    assert len(str(refused.value).splitlines()) == 1
    assert "trust" not in str(refused.value)


def test_a_save_of_more_workers_is_refused(folder: Path) -> None:
    changed(worker_files.file_of(folder, 0), workers=2)
    with pytest.raises(UserError, match="saved by 2 workers, and there are 1"):
        worker_files.read(folder)


def test_nothing_is_written_through_a_link(folder: Path) -> None:
    (folder / "victim").write_text("precious")
    path = worker_files.file_of(folder, 0)
    path.with_suffix(".part").symlink_to(folder / "victim")
    model = torch.nn.Linear(3, 2)
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=2)
    worker_files.write(folder, model, optimizer)
    assert (folder / "victim").read_text() == "precious"
    assert worker_files.read(folder)["model"]["weight"].equal(model.weight)


def written_with(folder: Path, **settings: Any) -> None:
    """Saves a worker whose optimizer's group has more settings."""
    model = torch.nn.Linear(3, 2)
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=2)
    optimizer.param_groups[0].update(settings)
    worker_files.write(folder, model, optimizer)


def test_a_rate_of_numpy_is_read_again(folder: Path) -> None:
    written_with(folder, lr=np.cos(0.01))
    (group,) = worker_files.read(folder)["optimizer"]["param_groups"]
    assert type(group["lr"]) is float
    assert group["lr"] == np.cos(0.01)


def test_what_could_not_be_read_again_is_not_saved(folder: Path) -> None:
    before = worker_files.file_of(folder, 0).read_bytes()
    with pytest.raises(UserError, match=r"worker-0.pt was not saved: .* pathlib"):
        written_with(folder, place=Path("/"))
    assert [path.name for path in folder.iterdir()] == ["worker-0.pt"]
    assert worker_files.file_of(folder, 0).read_bytes() == before


def test_tensors_are_read_onto_the_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a GPU that this machine may not have, or that another worker has here."""
    places = []
    whole = torch.load
    monkeypatch.setattr(
        torch, "load", lambda *a, **k: places.append(k.get("map_location")) or whole(*a, **k)
    )
    worker_files.read(folder)
    assert places == ["cpu"]
