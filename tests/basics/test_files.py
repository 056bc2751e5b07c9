"""Files of a folder that someone else has made."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from localsgd.basics.files import as_saved, expanded, open_anew, open_to_add
from localsgd.basics.typed_json import read_json
from localsgd.errors import PeerLost, UserError


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def test_a_new_file_takes_the_place_of_a_link(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "made"
    path.symlink_to(victim)
    with open_anew(path) as file:
        file.write(b"new")
    assert victim.read_text() == "precious"
    assert path.read_text() == "new"
    assert not path.is_symlink()


def test_a_new_file_takes_the_place_of_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "made"
    os.mkfifo(path)
    with open_anew(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"


def test_what_is_added_to_is_never_cut(victim: Path) -> None:
    with open_to_add(victim) as file:
        file.write(b" thing")
    assert victim.read_text() == "precious thing"


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_added_through_a_link(tmp_path: Path, victim: Path, there: bool) -> None:
    path = tmp_path / "link"
    path.symlink_to(victim if there else tmp_path / "nothing")
    with pytest.raises(UserError, match="link is a link; remove it"):
        open_to_add(path)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a pipe or a device"):
        open_to_add(tmp_path / "pipe")


class _Kind(msgspec.Struct):
    number: int


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "it ends too early"),
        (b'{"number": "x"}', "number: give a whole number, not text"),
        (b"{}", "it has no number"),
        (b'{"number":' + b"[" * 200_000, "is damaged: "),
        (b'{"number": 1, "x": "\xff"}', "is no text: invalid start byte"),
        (b"", "it ends too early"),
    ],
)
def test_json_that_is_not_of_its_kind(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_json(path, _Kind, "remove it")
    said = str(refused.value)
    assert said.startswith(str(path))
    assert says in said
    assert len(said.splitlines()) == 1


def test_a_home_that_is_not_there() -> None:
    with pytest.raises(UserError, match="~no-such-user/x names a home that is not there"):
        expanded("~no-such-user/x")
    with pytest.raises(UserError, match=r"'a\\x00b' is no path, since it has a zero character"):
        expanded(Path("a\0b"))
    assert expanded("~") == Path.home()


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (PeerLost("rank 1 ended"), PeerLost, "rank 1 ended"),
        (UserError("as it was"), UserError, "as it was"),
        (MemoryError(), UserError, "does not fit into memory, or is damaged; free some"),
        (KeyError("a"), UserError, "is damaged, or of another version: KeyError: 'a'; do"),
    ],
)
def test_what_is_no_damage_is_not_told_as_such(
    raised: Exception, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=re.escape(says)) as found, as_saved(Path("state"), "do"):
        raise raised
    assert ("damaged, or of" in str(found.value)) == isinstance(raised, KeyError)
