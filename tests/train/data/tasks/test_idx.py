from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from localsgd.errors import UserError
from localsgd.train.data.tasks.idx import read_idx

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
CONTENT = struct.pack(">HBBIII", 0, 8, 3, 2, 3, 4) + ARRAY.tobytes()


def test_plain_and_gzipped_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    (tmp_path / "a.gz").write_bytes(gzip.compress(CONTENT))
    np.testing.assert_array_equal(read_idx(tmp_path / "a", (2, 3, 4)), ARRAY)
    np.testing.assert_array_equal(read_idx(tmp_path / "a.gz", (2, 3, 4)), ARRAY)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (CONTENT[:-1], "found 23"),
        (CONTENT + b"x", "found more"),
        (b"", "begins with"),
        (struct.pack(">HBBIII", 0, 8, 3, 2, 4, 3) + ARRAY.tobytes(), "begins with 00000803"),
        (struct.pack(">HBBIII", 0, 9, 3, 2, 3, 4) + ARRAY.tobytes(), "begins with 00000903"),
        (b"<html>not found</html>", "begins with"),
    ],
)
@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_anything_else_is_damaged(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(UserError, match=said) as error:
        read_idx(path, (2, 3, 4))
    assert str(path) in str(error.value)
    assert "expected an idx file of 2 x 3 x 4 bytes" in str(error.value)


@pytest.mark.parametrize(
    "packed",
    [
        CONTENT,
        gzip.compress(CONTENT)[:-9],
        gzip.compress(CONTENT)[:-8] + bytes(8),
        gzip.compress(CONTENT)[:10] + b"\xff" * 20,
    ],
    ids=["not gzip", "truncated", "wrong checksum", "garbage"],
)
def test_damaged_gzip_names_the_file(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(packed)
    with pytest.raises(UserError, match=r"a\.gz cannot be read"):
        read_idx(path, (2, 3, 4))


def test_a_file_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(CONTENT + bytes(50_000_000)))
    with pytest.raises(UserError, match="found more"):
        read_idx(path, (2, 3, 4))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent cannot be read"):
        read_idx(tmp_path / "absent", (1,))
