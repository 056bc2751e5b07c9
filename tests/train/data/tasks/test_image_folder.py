from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from localsgd.errors import UserError
from localsgd.train.data import tasks
from localsgd.train.data.tasks import imagenet
from localsgd.train.data.tasks.crops import central, drawn, random_crops
from localsgd.train.data.tasks.image_folder import ImageFolderTask, pillow_decode

CARD = replace(imagenet.CARD, input_shape=(3, 14, 14))


def pillow(path: Path) -> Tensor:
    with Image.open(path) as opened:
        return torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)


def task_of(folder: Path, **options: bool) -> ImageFolderTask:
    return imagenet.folder_task(folder, CARD, pillow, **options)


def normalised(view: Tensor) -> Tensor:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (imagenet.MEAN, imagenet.STD))
    return (view.float() - mean) / std


def test_classes_are_folders_by_name_and_images_files_by_name(image_folder: Path) -> None:
    (image_folder / "train" / "n02" / "notes.txt").write_text("no image")
    task = task_of(image_folder)
    assert (task.classes, task.train_size, task.test_size) == (3, 24, 12)
    assert task.labels.bincount().tolist() == [8, 8, 8]
    assert task.test.paths[4] == image_folder / "val" / "n02" / "n02_0.JPEG"
    inputs, labels = task.test_batch(torch.tensor([4, 11]))
    assert labels.tolist() == [1, 2]
    assert torch.equal(inputs[0], normalised(central(pillow(task.test.paths[4]), 14)))


def test_training_images_are_shuffled_once_and_for_all(image_folder: Path) -> None:
    """By name, the first 10,000 of ImageNet would be of 8 classes, and each batch of one."""
    task = task_of(image_folder)
    assert len({*task.train.paths}) == 24
    assert [f"n0{label + 1}" for label in task.labels.tolist()] == [
        path.parent.name for path in task.train.paths
    ]
    assert all(len({*part.tolist()}) > 1 for part in task.labels.split(8))
    assert task.train.paths == task_of(image_folder).train.paths
    assert task.test.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_training_images_are_cropped_by_the_generator_alone(image_folder: Path) -> None:
    task, indices = task_of(image_folder), torch.tensor([3, 20])
    inputs, _ = task.train_batch(indices, torch.Generator().manual_seed(5))
    crops = random_crops(2, torch.Generator().manual_seed(5))
    for row, (index, crop) in enumerate(zip(indices.tolist(), crops, strict=True)):
        view = drawn(pillow(task.train.paths[index]), crop, 14)
        assert torch.equal(inputs[row], normalised(view))
    plain, _ = task.train_batch(indices, None)
    assert torch.equal(plain[0], normalised(central(pillow(task.train.paths[3]), 14)))
    still = task_of(image_folder, augment=False)
    assert torch.equal(still.train_batch(indices, torch.Generator())[0], plain)


def test_a_subset_is_balanced(image_folder: Path) -> None:
    part = task_of(image_folder).subset(7)
    assert torch.bincount(part.labels).tolist() == [3, 2, 2]
    classes = [int(path.parent.name[1:]) - 1 for path in part.train.paths]
    assert classes == part.labels.tolist()
    assert part.test_size == 12


def test_the_mean_of_each_pixel(image_folder: Path) -> None:
    task = task_of(image_folder)
    views = torch.stack([central(pillow(path), 14) for path in task.train.paths]).double()
    found = imagenet.mean_image(task)
    torch.testing.assert_close(found, views.mean(0).float(), rtol=1e-5, atol=1e-4)
    centred = replace(task, mean=found)
    inputs = torch.cat([centred.train_batch(torch.arange(24), None)[0]]).double()
    assert inputs.mean(0).abs().max() < 1e-5
    few = replace(task, card=replace(task.card, train_size=24))
    assert few.input_shape == (3, 14, 14)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: (f / "val" / "n02").rename(f / "val" / "n09"), "other classes .* 'n02'"),
        (lambda f: (f / "val" / "n04").mkdir(), "val has other classes than train/.* 'n04'"),
        (lambda f: [p.unlink() for p in (f / "val" / "n01").iterdir()], "n01 holds no JPEGs"),
        (lambda f: (f / "val").rename(f / "test"), "val is missing; .* hold train/CLASS"),
        (lambda f: flatten(f / "val"), "holds no folders; sort its images"),
    ],
)
def test_a_wrong_layout_is_one_line(image_folder: Path, spoil, said: str) -> None:
    spoil(image_folder)
    with pytest.raises(UserError, match=said) as error:
        task_of(image_folder)
    assert "\n" not in str(error.value)


def flatten(folder: Path) -> None:
    for path in list(folder.rglob("*.JPEG")):
        path.rename(folder / path.name)
    for path in list(folder.iterdir()):
        if path.is_dir():
            path.rmdir()


def test_where_it_is_looked_for(image_folder: Path, tmp_path: Path) -> None:
    assert imagenet.find(image_folder.parent) == image_folder
    assert imagenet.find(image_folder) == image_folder
    assert imagenet.find(tmp_path) is None
    for name in ("imagenet", "imagenet-per-pixel"):
        with pytest.raises(UserError, match=r"is not downloaded .* put the folder imagenet with"):
            tasks.load(name, tmp_path)


def test_without_pillow_one_line_says_so(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"need Pillow, .*pip install 'localsgd\[cli\]'"):
        tasks.load("imagenet", image_folder)


def test_pixels_are_those_of_the_file(tmp_path: Path) -> None:
    pixels = np.arange(7 * 9 * 3, dtype=np.uint8).reshape(7, 9, 3)
    path = tmp_path / "lossless.JPEG"
    Image.fromarray(pixels).save(path, "PNG")
    found = pillow_decode()(path)
    assert found.is_contiguous()
    assert torch.equal(found, torch.from_numpy(pixels).permute(2, 0, 1))


@pytest.mark.parametrize(
    ("mode", "colour", "shown"),
    [("L", 80, (80, 80, 80)), ("CMYK", (0, 0, 0, 0), (255, 255, 255))],
)
def test_images_of_other_modes_are_read_as_colours(
    tmp_path: Path, mode: str, colour: int | tuple[int, ...], shown: tuple[int, int, int]
) -> None:
    path = tmp_path / "odd.JPEG"
    Image.new(mode, (9, 7), colour).save(path, "JPEG")
    found = pillow_decode()(path)
    assert found.shape == (3, 7, 9)
    assert tuple(found[:, 3, 4].tolist()) == shown


def test_a_damaged_image_is_one_line(image_folder: Path) -> None:
    path = image_folder / "val" / "n01" / "n01_0.JPEG"
    task = tasks.load("imagenet", image_folder)
    assert task.test_batch(torch.tensor([0]))[0].isfinite().all()
    for content in (b"no image", path.read_bytes()[:-40]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"n01_0.JPEG is no readable image \(") as error:
            task.test_batch(torch.tensor([0]))
        assert "\n" not in str(error.value)


LITTER = (".ipynb_checkpoints", "@eaDir", "#recycle", "__MACOSX", "lost+found", ".git")


def test_what_tools_leave_behind_is_passed_over(image_folder: Path) -> None:
    before = task_of(image_folder)
    for name in LITTER:
        (image_folder / "train" / name).mkdir()
        (image_folder / "train" / "n02" / name).mkdir()
    (image_folder / "train" / "n02" / "._n02_0.JPEG").write_bytes(b"\0\5\x16\7")
    (image_folder / "train" / "n02" / "folder.jpg").mkdir()
    os.mkfifo(image_folder / "train" / "n02" / "pipe.jpg")
    after = task_of(image_folder)
    assert (after.classes, after.train.paths) == (3, before.train.paths)


@pytest.mark.parametrize("name", ["n04", "n02/n02_9.JPEG"])
def test_a_link_to_itself_is_named(image_folder: Path, name: str) -> None:
    (image_folder / "train" / name).symlink_to(Path(name).name)
    with pytest.raises(UserError, match=rf"{name}: .*; remove it or put it right"):
        task_of(image_folder)
