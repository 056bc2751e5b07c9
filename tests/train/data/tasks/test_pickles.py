from __future__ import annotations

import copyreg
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from localsgd.errors import UserError
from localsgd.train.data.tasks import pickles
from localsgd.train.data.tasks.pickles import read_pickle

PIXELS = np.arange(12, dtype=np.uint8).reshape(3, 4)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_what_python_2_wrote_is_read(tmp_path: Path, pickle_of: Callable[[dict], bytes]) -> None:
    content = {"data": PIXELS, "labels": [3, 1, 2], "batch_label": b"batch 1 of 5"}
    found = read_pickle(write(tmp_path / "batch", pickle_of(content)))
    assert found.keys() == content.keys()
    np.testing.assert_array_equal(found["data"], PIXELS)
    assert found["data"].dtype == np.uint8
    assert found["labels"] == [3, 1, 2]
    assert found["batch_label"] == b"batch 1 of 5"


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_python_3_writes_is_read(tmp_path: Path, protocol: int, order: str) -> None:
    array = PIXELS if order == "C" else np.asfortranarray(PIXELS)
    content = pickle.dumps({"data": array, b"labels": [1], "more": [1.5, None, "x"]}, protocol)
    found = read_pickle(write(tmp_path / "batch", content))
    np.testing.assert_array_equal(found["data"], PIXELS)
    assert found["labels"] == [1]
    assert found["more"] == [1.5, None, "x"]


def test_both_names_of_numpys_module_are_known(tmp_path: Path) -> None:
    content = pickle.dumps({"data": PIXELS}, 3)
    for name in (b"numpy.core.multiarray", b"numpy._core.multiarray"):
        swapped = content.replace(b"numpy._core.multiarray", name)
        swapped = swapped.replace(b"numpy.core.multiarray", name)
        found = read_pickle(write(tmp_path / "batch", swapped))
        np.testing.assert_array_equal(found["data"], PIXELS)


class Runs:
    """Unpickles into a call of `function`."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def payloads(folder: str) -> dict[str, bytes]:
    """Pickles that make `folder` when they are unpickled the ordinary way."""
    quoted = folder.encode()
    code = f"__import__('os').mkdir({folder!r})"
    return {
        "os": pickle.dumps({"data": Runs(os.mkdir, folder)}, 4),
        "os, protocol 2": pickle.dumps({"data": Runs(os.mkdir, folder)}, 2),
        "shell": pickle.dumps([Runs(os.system, f"mkdir {folder}")], 4),
        "eval": pickle.dumps({"data": Runs(eval, code)}, 4),
        "exec": pickle.dumps({"data": Runs(exec, code)}, 4),
        "instance": b"(S'" + quoted + b"'\nios\nmkdir\n.",
        "object": b"(cos\nmkdir\nS'" + quoted + b"'\no.",
        "beside an array": pickle.dumps({"data": PIXELS, "labels": Runs(os.mkdir, folder)}, 4),
        "in a key": pickle.dumps({(Runs(os.mkdir, folder),): 1}, 4),
        "through numpy": pickle.dumps({"data": Runs(np.save, f"{folder}.npy", [1])}, 4),
    }


@pytest.mark.parametrize("name", payloads(""))
def test_nothing_that_a_pickle_names_is_run(tmp_path: Path, name: str) -> None:
    target = tmp_path / "harm"
    path = write(tmp_path / "data_batch_1", payloads(str(target))[name])
    with pytest.raises(UserError, match="which data has no need of") as error:
        read_pickle(path)
    assert str(path) in str(error.value)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("harm")] == []

    # The harm is real: the ordinary way does it.
    pickle.loads(path.read_bytes())
    assert any(p.name.startswith("harm") for p in tmp_path.iterdir())


def test_registered_extensions_are_refused(tmp_path: Path) -> None:
    copyreg.add_extension(os.mkdir.__module__, "mkdir", 200)
    try:
        path = write(tmp_path / "batch", pickle.dumps(Runs(os.mkdir, str(tmp_path / "x")), 2))
        assert b"mkdir" not in path.read_bytes()
        with pytest.raises(UserError, match="no need of"):
            read_pickle(path)
    finally:
        copyreg.remove_extension(os.mkdir.__module__, "mkdir", 200)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "name",
    [
        b"numpy\nload",
        b"numpy\nfromfile",
        b"numpy.core.multiarray\nscalar",
        b"numpy.core.multiarray\nfromfile",
        b"numpy.core.multiarray\n_reconstruct.__globals__",
        b"builtins\ngetattr",
        b"builtins\ndict",
        b"copyreg\n_reconstructor",
        b"_codecs\nencode",
        b"localsgd.train.data.tasks.pickles\nread_pickle",
    ],
)
def test_only_the_names_of_arrays_are_known(tmp_path: Path, name: bytes) -> None:
    with pytest.raises(UserError, match="no need of"):
        read_pickle(write(tmp_path / "batch", b"c" + name + b"\n."))


def test_a_pickle_cannot_change_the_reader(tmp_path: Path) -> None:
    # BUILD sets attributes of what lies on the stack: here of a function that was handed out.
    state = b"N}X\x08\x00\x00\x00__name__X\x04\x00\x00\x00evils\x86"
    stack = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n" + state + b"b."
    with pytest.raises(UserError, match="instead of a dictionary"):
        read_pickle(write(tmp_path / "batch", stack))
    good = write(tmp_path / "good", pickle.dumps({"data": PIXELS}, 3))
    np.testing.assert_array_equal(read_pickle(good)["data"], PIXELS)
    assert pickles._Array.__name__ == "_Array"


@pytest.mark.parametrize(
    "array",
    [
        np.array([print], dtype=object),
        np.zeros(3),
        np.zeros(3, np.int64),
        np.zeros(2, "S3"),
        np.zeros(2, [("a", np.uint8)]),
    ],
    ids=["objects", "floats", "integers", "text", "records"],
)
@pytest.mark.parametrize("protocol", [3, 5])
def test_other_arrays_are_refused(tmp_path: Path, array: np.ndarray, protocol: int) -> None:
    with pytest.raises(UserError, match="damaged or foreign"):
        read_pickle(write(tmp_path / "batch", pickle.dumps({"data": array}, protocol)))


def test_every_truncation_is_noticed(tmp_path: Path, pickle_of: Callable[[dict], bytes]) -> None:
    content = pickle_of({"data": PIXELS, "labels": [3, 1, 2]})
    for length in range(len(content)):
        with pytest.raises(UserError, match="batch is damaged or foreign"):
            read_pickle(write(tmp_path / "batch", content[:length]))


def test_damage_is_reported_or_plain_data(
    tmp_path: Path, pickle_of: Callable[[dict], bytes]
) -> None:
    content = pickle_of({"data": PIXELS, "labels": [3, 1, 2]})
    chance = np.random.RandomState(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        damaged[chance.randint(len(content))] = chance.randint(256)
        try:
            found = read_pickle(write(tmp_path / "batch", bytes(damaged)))
        except UserError:
            refused += 1
        else:
            assert isinstance(found, dict)
    assert refused > 100


def test_an_array_must_fill_its_shape(tmp_path: Path, pickle_of: Callable[[dict], bytes]) -> None:
    content = pickle_of({"data": PIXELS})
    wrong = content.replace(b"J\x04\x00\x00\x00\x86", b"J\x05\x00\x00\x00\x86")
    assert wrong != content
    with pytest.raises(UserError, match="do not fill its shape"):
        read_pickle(write(tmp_path / "batch", wrong))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent cannot be read"):
        read_pickle(tmp_path / "absent")
