"""The folder that several processes write: sharded tensors, replicas, other numbers of readers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from localsgd import UserError
from localsgd.saving.store import Saved, there, write
from localsgd.saving.tree import pack, unpack
from tests.distributed.harness import run

pytestmark = pytest.mark.timeout(120)

WHOLE = torch.arange(15.0).reshape(5, 3)  # uneven shards


def sharded(folder: str) -> None:
    """Two ranks that are one worker."""
    mesh = init_device_mesh("cpu", (2,))
    shards = distribute_tensor(WHOLE, mesh, [Shard(0)])
    tensors, text = pack({"w": shards, "b": torch.ones(2)}, "worker-00000")
    write(Path(folder), tensors, dist.group.WORLD, {})
    saved = Saved(Path(folder))
    into = {"worker-00000/w": torch.zeros_like(shards)}
    found = unpack(text, saved.read(list(tensors), into))
    assert isinstance(found["w"], DTensor)
    assert torch.equal(found["w"].to_local(), shards.to_local())
    assert torch.equal(found["b"], torch.ones(2))


def test_sharded_tensors_are_written_once_and_read_by_anybody(tmp_path: Path) -> None:
    run(2, sharded, str(tmp_path / "save"))
    found = Saved(tmp_path / "save").read(["worker-00000/w"])
    assert torch.equal(found["worker-00000/w"], WHOLE)


# What is beside the folder, and not a save's.

ONE = {"w": torch.ones(2)}


def save(folder: Path) -> None:
    write(folder, ONE, None, {"extra": lambda path: path.write_text("x") and None})


def listed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(folder: Path) -> str:
    """Why nothing is saved; everything stays as it was."""
    before = listed(folder.parent)
    with pytest.raises(UserError) as caught:
        save(folder)
    assert listed(folder.parent) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("beside", ["", ".incomplete", ".before"])
@pytest.mark.parametrize("name", ["thesis.txt", "mine.distcp", "__0_0.distcp/thesis.txt"])
def test_files_of_somebody_else_are_never_removed(tmp_path: Path, beside: str, name: str) -> None:
    save(tmp_path / "ck")
    theirs = tmp_path / f"ck{beside}" / name
    if beside == "":
        (tmp_path / "ck" / "__0_0.distcp").unlink()
    theirs.parent.mkdir(exist_ok=True, parents=True)
    theirs.write_text("mine")
    assert f"holds {Path(name).parts[0]}, which is not of a save" in refused(tmp_path / "ck")


@pytest.mark.parametrize("beside", ["incomplete", "before"])
def test_nothing_is_removed_through_a_link(tmp_path: Path, beside: str) -> None:
    save(tmp_path / "home")
    (tmp_path / f"ck.{beside}").symlink_to("home")
    assert f"ck.{beside} is a link" in refused(tmp_path / "ck")
    (tmp_path / f"ck.{beside}").unlink()
    (tmp_path / f"ck.{beside}").symlink_to("nowhere")
    assert f"ck.{beside} is a link" in refused(tmp_path / "ck")


def test_a_file_beside_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ck.before").write_text("mine")
    assert "ck.before is a file" in refused(tmp_path / "ck")
    assert "is the name of what a save of" in refused(tmp_path / "ck.before")
    with pytest.raises(UserError, match="needs room beside it"):
        save(Path("/"))


def test_what_a_killed_save_has_left_goes_by_itself(tmp_path: Path) -> None:
    for beside in ("incomplete", "before"):
        save(tmp_path / "old")
        (tmp_path / "old" / ".metadata.tmp").write_text("")
        (tmp_path / "old").rename(tmp_path / f"ck.{beside}")
        save(tmp_path / "ck")
        assert {path.split("/")[0] for path in listed(tmp_path)} == {"ck"}
        assert there(tmp_path / "ck") == tmp_path / "ck"


def test_what_comes_beside_it_meanwhile_stays(tmp_path: Path) -> None:
    def meanwhile(path: Path) -> None:
        path.write_text("x")
        (tmp_path / "ck.before").mkdir()
        (tmp_path / "ck.before" / "thesis.txt").write_text("mine")

    save(tmp_path / "ck")
    id = Saved(tmp_path / "ck").id
    with pytest.raises(UserError, match=r"holds thesis\.txt"):
        write(tmp_path / "ck", ONE, None, {"extra": meanwhile})
    assert (tmp_path / "ck.before" / "thesis.txt").read_text() == "mine"
    assert Saved(tmp_path / "ck").id == id
