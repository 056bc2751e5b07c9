from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from localsgd import tasks
from localsgd.errors import UserError
from localsgd.tasks import imagenet
from localsgd.tasks.crops import central, drawn, random_crops
from localsgd.tasks.image_folder import ImageFolderTask, torchvision_decode

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
    assert task.labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert task.test.paths[4] == image_folder / "val" / "n02" / "n02_0.JPEG"
    inputs, labels = task.test_batch(torch.tensor([4, 11]))
    assert labels.tolist() == [1, 2]
    assert torch.equal(inputs[0], normalised(central(pillow(task.test.paths[4]), 14)))


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


def test_without_torchvision_one_line_says_so(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(UserError, match=r"need torchvision, .*pip install 'localsgd\[imagenet\]'"):
        tasks.load("imagenet", image_folder)


def test_a_torchvision_for_another_torch_is_one_line(
    image_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "wrong" / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(package.parent)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"used \(operator nms does not exist\); install the ver"):
        tasks.load("imagenet", image_folder)


def test_torchvision_reads_what_pillow_reads(image_folder: Path) -> None:
    pytest.importorskip("torchvision")
    decode = torchvision_decode()
    path = image_folder / "train" / "n01" / "n01_0.JPEG"
    difference = decode(path).int() - pillow(path).int()
    assert difference.abs().max() <= 2
    image = pytest.importorskip("PIL.Image")
    grey, cmyk, png = (path.with_name(f"{name}.JPEG") for name in ("grey", "cmyk", "png"))
    image.new("L", (9, 7), 80).save(grey, "JPEG")
    image.new("CMYK", (9, 7), (0, 0, 0, 0)).save(cmyk, "JPEG")
    image.new("RGB", (9, 7), (255, 0, 0)).save(png, "PNG")
    assert [decode(p).shape for p in (grey, cmyk, png)] == [(3, 7, 9)] * 3
    assert decode(png)[:, 0, 0].tolist() == [255, 0, 0]
    path.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"n01_0.JPEG is no readable image"):
        decode(path)
    assert tasks.load("imagenet", image_folder).test_batch(torch.tensor([0]))[0].isfinite().all()
