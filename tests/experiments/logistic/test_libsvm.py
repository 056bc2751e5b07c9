"""LIBSVM's text format, and what is refused."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest

from experiments.logistic import find, read
from localsgd.errors import UserError

TEXT = "+1 1:0.5 3:-2\n-1\n\n# all of this is a remark\n-1 2:1e-3 # and this\n+1 3:4\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("pack", [bytes, bz2.compress, gzip.compress])
def test_reads_plain_and_packed(file: Path, pack) -> None:
    file.write_bytes(pack(TEXT.encode()))
    examples = read(file)
    expected = [[0.5, 0, -2], [0, 0, 0], [0, 1e-3, 0], [0, 0, 4]]
    assert examples.rows.toarray().tolist() == expected
    assert examples.positive.tolist() == [True, False, False, True]
    assert examples.labels == (-1.0, 1.0)


def test_the_larger_label_is_the_positive_one(file: Path) -> None:
    file.write_text("2 1:1\n1 1:2\n")
    examples = read(file)
    assert examples.labels == (1.0, 2.0)
    assert examples.positive.tolist() == [True, False]


def test_width_can_be_given(file: Path) -> None:
    file.write_text(TEXT)
    assert read(file, features=7).rows.shape[1] == 7


def test_empty_rows_alone_are_examples(file: Path) -> None:
    file.write_text("1\n-1\n")
    assert read(file).rows.shape == (2, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("+1 1:1\n-1 3;5\n", r'data:2: expected a pair "index:value" such as 3:0.5, got \'3;5\''),
        ("+1 1:1\n-1 x:5\n", r"data:2: expected a pair .* got 'x:5'"),
        ("+1 1:1\n-1 -1:5\n", r"data:2: expected a pair .* got '-1:5'"),
        ("+1 1:one\n-1\n", r"data:1: expected a pair .* got '1:one'"),
        ("+1 1:nan\n-1\n", r"data:1: expected a pair .* got '1:nan'"),
        ("+1 qid:3 1:1\n-1\n", r"data:1: expected a pair .* got 'qid:3'"),
        ("+1\n1:1 2:3\n", r"data:2: expected a label such as \+1 first, got '1:1'"),
        ("+1 1:1_000\n-1\n", r"data:1: expected a pair .* got '1:1_000'"),
        ("+1 1:inf\n-1\n", r"data:1: expected a pair .* got '1:inf'"),
        ("+1 1_0:1\n-1\n", r"data:1: expected a pair .* got '1_0:1'"),
        ("+1 ٣:1\n-1\n", r"data is no text|expected a pair"),
        (f"+1 {10**20}:1\n-1\n", r"data:1: expected a pair .* got '1000"),
        (f"+1 {2**31}:1\n-1\n", r"data:1: expected a pair .* got '2147483648:1'"),
        (f"+1 {'9' * 5000}:1\n-1\n", r"data:1: expected a pair .* got '9999"),
        ("1_0 1:1\n-1\n", r"data:1: expected a label"),
        ("+1 0:1\n-1\n", r"data:1: index 0; expected indices from 1, add 1"),
        ("+1\n\n-1 3:1 2:1\n", r"data:3: index 2 after 3; expected ascending indices"),
        ("+1 3:1 3:1\n-1\n", r"data:1: index 3 after 3; expected ascending indices"),
        ("", r"data has no example"),
        ("# nothing\n\n", r"data has no example"),
        ("+1 1:1\n+1 2:1\n", r"data has 1 label\(s\) \(1\); expected two classes"),
        ("0\n1\n2\n", r"data has 3 label\(s\) \(0, 1, 2\); expected two classes"),
    ],
)
def test_refuses_with_file_and_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read(file)


def test_refuses_more_features_than_there_are(file: Path) -> None:
    file.write_text(TEXT)
    with pytest.raises(UserError, match="data:1: index 3; expected at most 2 features"):
        read(file, features=2)


@pytest.mark.parametrize(
    "content",
    [
        bz2.compress(TEXT.encode() * 99)[:-9],
        gzip.compress(TEXT.encode())[:-9],
        gzip.compress(TEXT.encode())[:12] + b"broken" * 9,
        b"BZh9 is no archive",
        b"\xff\xfe\x00",
    ],
)
def test_refuses_damaged_files(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(UserError, match="expected LIBSVM text, plain, bz2 or gz"):
        read(file)


def test_looks_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "libsvm"
    folder.mkdir()
    (folder / "small.gz").write_bytes(gzip.compress(TEXT.encode()))
    monkeypatch.setenv("LOCALSGD_DATA", str(tmp_path))
    assert find("small") == folder / "small.gz"
    assert np.array_equal(read(find("small")).rows.indices, [0, 2, 1, 2])
    with pytest.raises(UserError, match=r"no data set 'other': put libsvm/other\.bz2 into"):
        find("other")
