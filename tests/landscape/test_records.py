"""Records: written whole, read back equal, refused with the line's number."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from localsgd.errors import UserError
from localsgd.landscape import read_records, write_records


def test_round_trip_and_numbers_that_are_not_finite(tmp_path: Path) -> None:
    records = [{"kind": "a", "values": (1.5, float("inf")), "inner": {"x": float("nan")}}]
    path = write_records(tmp_path / "deep" / "r.jsonl", records)
    assert read_records(path) == [{"kind": "a", "values": [1.5, None], "inner": {"x": None}}]
    assert [p.name for p in path.parent.iterdir()] == ["r.jsonl"]


def test_a_record_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_records(tmp_path / "r.jsonl", [{"kind": "a"}])
    with pytest.raises(TypeError):
        write_records(path, [{"kind": "a", "bad": object()}])
    assert read_records(path) == [{"kind": "a"}]


@pytest.mark.parametrize(
    ("text", "match"), [('{"kind": "a"}\n{', "line 2 .* not JSON"), ("[1]", "line 1 .* no record")]
)
def test_files_that_are_no_records(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(UserError, match=match):
        read_records(tmp_path / "r")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_records(tmp_path / "none")


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f"r.jsonl.{os.getpid()}.part").symlink_to(tmp_path / "victim")
    write_records(tmp_path / "r.jsonl", [{"kind": "a"}])
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize(
    ("content", "match"),
    [(b"\xff\n", "r is no text: "), (b"[" * 200_000, "line 1 of .*r is not JSON: ")],
)
def test_bytes_that_are_no_records(tmp_path: Path, content: bytes, match: str) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(UserError, match=match):
        read_records(tmp_path / "r")


@pytest.mark.timeout(30)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "r")
    with pytest.raises(UserError, match="is a pipe or a device"):
        read_records(tmp_path / "r")
