from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from localsgd.errors import UserError
from localsgd.train.data.tasks import cifar
from localsgd.train.data.tasks.augment import crop_and_flip
from localsgd.train.data.tasks.cifar import Layout
from localsgd.train.data.tasks.download import Remote
from localsgd.train.data.tasks.entry import Source
from localsgd.train.data.tasks.images import ImageTask


def load(layout: Layout, source: Source) -> ImageTask:
    """CIFAR-10 with the files and counts of `layout`, mean 0.5 and deviation 0.25."""
    card = replace(cifar.CIFAR10_ENTRY.card, train_size=40, test_size=10)
    task = cifar.entry(card, layout, mean=(0.5,) * 3, std=(0.25,) * 3).load(source)
    assert isinstance(task, ImageTask)
    return task


def test_the_real_layouts_have_50000_and_10000_images() -> None:
    assert cifar.CIFAR10.train == {f"data_batch_{i}": 10_000 for i in (1, 2, 3, 4, 5)}
    assert cifar.CIFAR10.test == {"test_batch": 10_000}
    assert cifar.CIFAR100.train == {"train": 50_000}
    assert cifar.CIFAR100.test == {"test": 10_000}
    assert cifar.CIFAR100.label_key == "fine_labels"
    for entry in (cifar.CIFAR10_ENTRY, cifar.CIFAR100_ENTRY):
        assert (entry.card.train_size, entry.card.test_size) == (50_000, 10_000)


def test_files_are_joined_in_order_and_bytes_are_channels_rows_columns(
    cifar_folder: Path, small_cifar: Layout
) -> None:
    train, test = cifar.read(cifar_folder, small_cifar)
    assert train.pixels.shape == (40, 3, 32, 32)
    assert test.pixels.shape == (10, 3, 32, 32)
    assert train.pixels.dtype == torch.uint8
    assert train.labels.tolist() == [i % 10 for i in range(20)] * 2
    raw = pickle.loads((cifar_folder / "data_batch_2").read_bytes(), encoding="bytes")[b"data"]
    for image, channel, row, column in [(0, 0, 0, 0), (7, 2, 31, 5), (19, 1, 8, 30)]:
        value = raw[image, 1024 * channel + 32 * row + column]
        assert train.pixels[20 + image, channel, row, column] == value


def test_the_task_normalises_by_the_given_numbers_and_augments(
    cifar_folder: Path, small_cifar: Layout
) -> None:
    task = load(small_cifar, Source(cifar_folder.parent))
    indices = torch.arange(40)
    plain, _ = task.train_batch(indices, None)
    expected = (task.train.pixels.double() / 255 - 0.5) / 0.25
    np.testing.assert_allclose(plain.numpy(), expected.numpy(), atol=1e-6)

    augmented, _ = task.train_batch(indices, torch.Generator().manual_seed(0))
    pixels = crop_and_flip(task.train.pixels, torch.Generator().manual_seed(0))
    expected = (pixels.double() / 255 - 0.5) / 0.25
    np.testing.assert_allclose(augmented.numpy(), expected.numpy(), atol=1e-6)
    assert not torch.equal(augmented, plain)


def test_augmentation_can_be_turned_off(cifar_folder: Path, small_cifar: Layout) -> None:
    task = load(small_cifar, Source(cifar_folder.parent, augment=False))
    indices = torch.arange(40)
    with_chance, _ = task.train_batch(indices, torch.Generator().manual_seed(0))
    assert torch.equal(with_chance, task.train_batch(indices, None)[0])


def test_the_folder_is_found_in_each_place(
    cifar_folder: Path, small_cifar: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cifar.find(small_cifar, None) is None
    assert cifar.find(small_cifar, tmp_path) is None
    assert cifar.find(small_cifar, cifar_folder.parent) == cifar_folder
    assert cifar.find(small_cifar, cifar_folder) == cifar_folder
    monkeypatch.setenv("LOCALSGD_DATA", str(cifar_folder.parent))
    assert cifar.find(small_cifar, None) == cifar_folder
    assert cifar.find(small_cifar, tmp_path) == cifar_folder
    monkeypatch.delenv("LOCALSGD_DATA")
    home = Path.home() / ".cache" / "localsgd" / small_cifar.folder
    home.mkdir(parents=True)
    assert cifar.find(small_cifar, None) == home


def spoil(path: Path, pickle_of: Callable[[dict], bytes], **changes: object) -> None:
    content = {"labels": [i % 10 for i in range(20)], "data": np.zeros((20, 3072), np.uint8)}
    path.write_bytes(pickle_of({k: v for k, v in {**content, **changes}.items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": np.zeros((19, 3072), np.uint8)}, r"expected data of \(20, 3072\) bytes"),
        ({"data": np.zeros((20, 784), np.uint8)}, r"found \(20, 784\)"),
        ({"data": None}, "found none"),
        ({"labels": [0] * 19}, "expected 20 labels, found 19"),
        ({"labels": None}, "expected 20 labels, found none"),
        ({"labels": [0] * 19 + [10]}, "expected labels from 0 to 9"),
        ({"labels": [0] * 19 + [-1]}, "expected labels from 0 to 9"),
        ({"labels": b"01234567890123456789"}, "expected 20 labels, found none"),
    ],
)
def test_wrong_counts_shapes_and_ranges_name_the_file(
    cifar_folder: Path,
    small_cifar: Layout,
    pickle_of: Callable[[dict], bytes],
    changes: dict,
    said: str,
) -> None:
    spoil(cifar_folder / "data_batch_2", pickle_of, **changes)
    with pytest.raises(UserError, match=said) as error:
        cifar.read(cifar_folder, small_cifar)
    assert str(cifar_folder / "data_batch_2") in str(error.value)


def test_labels_that_are_no_integers_are_damage(cifar_folder: Path, small_cifar: Layout) -> None:
    content = {"data": np.zeros((20, 3072), np.uint8), "labels": [True] * 20}
    (cifar_folder / "data_batch_1").write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match="expected labels from 0 to 9"):
        cifar.read(cifar_folder, small_cifar)


def test_the_real_layout_refuses_small_files(cifar_folder: Path) -> None:
    with pytest.raises(UserError, match=r"data_batch_1 is damaged: expected data of \(10000, 3072"):
        cifar.read(cifar_folder, cifar.CIFAR10)


def test_a_missing_file_is_named(cifar_folder: Path, small_cifar: Layout) -> None:
    (cifar_folder / "test_batch").unlink()
    with pytest.raises(UserError, match=r"test_batch is missing; .* should hold data_batch_1, "):
        cifar.read(cifar_folder, small_cifar)


def test_a_truncated_file_is_named(cifar_folder: Path, small_cifar: Layout) -> None:
    path = cifar_folder / "data_batch_2"
    path.write_bytes(path.read_bytes()[:30_000])
    with pytest.raises(UserError, match="data_batch_2 is damaged or foreign"):
        cifar.read(cifar_folder, small_cifar)


def archived(folder: Path, small: Layout, url: str) -> tuple[bytes, Layout]:
    """`folder` as the public archive, with things that nobody should unpack, and its layout."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, arcname=small.folder)
        for name in ("../escaped", f"{small.folder}/../../escaped", f"{small.folder}/readme.html"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    body = buffer.getvalue()
    checksum = hashlib.sha256(body).hexdigest()
    return body, replace(small, archive=Remote(url, checksum, len(body)))


def test_missing_data_is_downloaded_and_unpacked(
    web, answer, cifar_folder: Path, small_cifar: Layout, tmp_path: Path
) -> None:
    body, layout = archived(cifar_folder, small_cifar, f"{web.address}/cifar.tar.gz")
    web.answers["/cifar.tar.gz"] = answer(body)
    place = tmp_path / "elsewhere"
    calls: list[Any] = []
    task = load(layout, Source(place, progress=lambda *c: calls.append(c)))
    assert calls[-1] == ("cifar.tar.gz", len(body), len(body))
    assert [p.name for p in place.iterdir()] == [layout.folder]
    files = sorted(p.name for p in (place / layout.folder).iterdir())
    assert files == ["data_batch_1", "data_batch_2", "test_batch"]
    assert not list(tmp_path.rglob("escaped"))

    given, _ = cifar.read(cifar_folder, small_cifar)
    assert torch.equal(task.train.pixels, given.pixels)
    load(layout, Source(place))
    assert web.asked == ["/cifar.tar.gz"]


def test_a_download_goes_home_where_no_place_is_named(
    web, answer, cifar_folder: Path, small_cifar: Layout
) -> None:
    body, layout = archived(cifar_folder, small_cifar, f"{web.address}/cifar.tar.gz")
    web.answers["/cifar.tar.gz"] = answer(body)
    assert cifar.fetch(layout, None) == Path.home() / ".cache" / "localsgd" / layout.folder


def test_a_process_that_was_as_fast_is_no_trouble(
    web,
    answer,
    cifar_folder: Path,
    small_cifar: Layout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body, layout = archived(cifar_folder, small_cifar, f"{web.address}/cifar.tar.gz")
    web.answers["/cifar.tar.gz"] = answer(body)
    rename = os.rename

    def second(source: Path, target: Path) -> None:
        rename(cifar_folder, target)  # the other process, a moment earlier
        rename(source, target)

    monkeypatch.setattr(os, "rename", second)
    place = tmp_path / "elsewhere"
    folder = cifar.fetch(layout, place)
    assert [p.name for p in place.iterdir()] == [layout.folder]
    cifar.read(folder, layout)


def test_a_wrong_archive_leaves_nothing(
    web, answer, cifar_folder: Path, small_cifar: Layout, tmp_path: Path
) -> None:
    body, layout = archived(cifar_folder, small_cifar, f"{web.address}/cifar.tar.gz")
    web.answers["/cifar.tar.gz"] = answer(body[:-1] + b"x")
    with pytest.raises(UserError, match="expected sha256"):
        load(layout, Source(tmp_path / "elsewhere"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_a_network_the_message_says_what_to_put_where(
    small_cifar: Layout, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        load(small_cifar, Source(tmp_path / "elsewhere"))
    text = str(error.value)
    assert f"put the folder {small_cifar.folder}" in text
    assert str(tmp_path / "elsewhere") in text
    assert small_cifar.archive.url in text
    assert "--data-dir" in text
    assert "LOCALSGD_DATA" in text
    assert "\n" not in text
    assert not (tmp_path / "elsewhere").exists()
