from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from localsgd.errors import UserError
from localsgd.train.data.tasks import fashion_mnist
from localsgd.train.data.tasks.download import Remote
from localsgd.train.data.tasks.entry import Source

NAMES = [r.file.removesuffix(".gz") for r in fashion_mnist.REMOTES]


@pytest.fixture(autouse=True)
def no_debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "no-debian")


def contents(train: int = 20, test: int = 10) -> dict[str, bytes]:
    """The four files by name, with random pixels and every label in turn."""
    chance = np.random.RandomState(0)
    files = {}
    for part, size in (("train", train), ("t10k", test)):
        pixels = chance.randint(0, 256, (size, 28, 28)).astype(np.uint8)
        labels = (np.arange(size) % 10).astype(np.uint8)
        header = struct.pack(">HBBIII", 0, 8, 3, size, 28, 28)
        files[f"{part}-images-idx3-ubyte"] = header + pixels.tobytes()
        files[f"{part}-labels-idx1-ubyte"] = struct.pack(">HBBI", 0, 8, 1, size) + labels.tobytes()
    return files


def write(folder: Path, files: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_plain_and_gzipped_files_give_the_same_images(tmp_path: Path, packed: bool) -> None:
    files = contents()
    train, test = fashion_mnist.read(write(tmp_path / "f", files, packed), 20, 10)
    assert train.pixels.shape == (20, 1, 28, 28)
    assert test.pixels.shape == (10, 1, 28, 28)
    assert train.pixels.numpy().tobytes() == files["train-images-idx3-ubyte"][16:]
    assert test.pixels.numpy().tobytes() == files["t10k-images-idx3-ubyte"][16:]
    assert train.labels.tolist() == list(range(10)) * 2
    assert train.labels.dtype == torch.int64


def test_the_folder_is_found_in_each_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = dict.fromkeys(NAMES, b"")
    debian = write(tmp_path / "debian", files, packed=True)
    assert fashion_mnist.find(None) is None
    monkeypatch.setattr(fashion_mnist, "DEBIAN", debian)
    assert fashion_mnist.find(None) == debian
    monkeypatch.setenv("LOCALSGD_DATA", str(tmp_path / "named"))
    for nearer in (
        Path.home() / ".cache" / "localsgd" / "fashion-mnist",
        tmp_path / "named" / "FashionMNIST" / "raw",
        tmp_path / "named" / "fashion-mnist",
    ):
        write(nearer, files)
        assert fashion_mnist.find(None) == nearer
    given = write(tmp_path / "given", files)
    assert fashion_mnist.find(given) == given
    (given / NAMES[2]).unlink()
    assert fashion_mnist.find(given) == nearer


def test_labels_out_of_range_name_the_file(tmp_path: Path) -> None:
    files = contents()
    files["t10k-labels-idx1-ubyte"] = files["t10k-labels-idx1-ubyte"][:-1] + b"\x0a"
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte is damaged: .* 0 to 9, found 10"):
        fashion_mnist.read(write(tmp_path, files), 20, 10)


def test_the_real_counts_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path, contents())
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte .*expected .* 60000 x 28 x 28"):
        fashion_mnist.load(Source(tmp_path))


def test_mnist_is_told_apart(tmp_path: Path) -> None:
    files = contents()
    labels = np.repeat(np.arange(10), fashion_mnist.MNIST_COUNTS).astype(np.uint8)
    size = len(labels)
    assert size == 60_000
    files["train-labels-idx1-ubyte"] = struct.pack(">HBBI", 0, 8, 1, size) + labels.tobytes()
    header = struct.pack(">HBBIII", 0, 8, 3, size, 28, 28)
    files["train-images-idx3-ubyte"] = header + bytes(size * 784)
    with pytest.raises(UserError, match="MNIST's digits"):
        fashion_mnist.read(write(tmp_path, files), size, 10)


def remotes(web, answer, files: dict[str, bytes]) -> tuple[Remote, ...]:
    """The files on the server, gzipped, with their checksums."""
    made = []
    for name, content in files.items():
        body = gzip.compress(content)
        web.answers[f"/{name}.gz"] = answer(body)
        checksum = hashlib.sha256(body).hexdigest()
        made.append(Remote(f"{web.address}/{name}.gz", checksum, len(body)))
    return tuple(made)


def test_only_what_is_missing_is_downloaded(web, answer, tmp_path: Path) -> None:
    files = contents()
    source = remotes(web, answer, files)
    write(tmp_path / "fashion-mnist", {NAMES[0]: files[NAMES[0]]})
    folder = fashion_mnist.fetch(source, tmp_path)
    assert folder == tmp_path / "fashion-mnist" == fashion_mnist.find(tmp_path)
    assert sorted(web.asked) == sorted(f"/{name}.gz" for name in NAMES[1:])
    train, _ = fashion_mnist.read(folder, 20, 10)
    assert train.labels.tolist() == list(range(10)) * 2


def test_what_came_before_a_bad_file_is_whole(web, answer, tmp_path: Path) -> None:
    source = remotes(web, answer, contents())
    second = source[1].file
    web.answers[f"/{second}"] = answer(b"x" * source[1].bytes)
    with pytest.raises(UserError, match="expected sha256"):
        fashion_mnist.fetch(source, tmp_path)
    assert [p.name for p in (tmp_path / "fashion-mnist").iterdir()] == [source[0].file]
    assert fashion_mnist.find(tmp_path) is None


def test_without_a_network_the_message_says_what_to_put_where(tmp_path: Path) -> None:
    nowhere = tuple(Remote(f"http://127.0.0.1:9/{n}.gz", "", 0) for n in NAMES)
    with pytest.raises(UserError) as error:
        fashion_mnist.fetch(nowhere, tmp_path / "data")
    text = str(error.value)
    assert all(f"{name}.gz" in text for name in NAMES)
    assert f"into {tmp_path / 'data'}" in text
    assert "--data-dir" in text
    assert not (tmp_path / "data").exists()
