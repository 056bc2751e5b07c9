"""Messages of other processes are read as what they have to be, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from localsgd.basics import messages
from localsgd.basics.messages import one_line, read_message, read_messages
from localsgd.errors import UserError


class Kind(StrEnum):
    ONE = "one"


class Pair(NamedTuple):
    kind: Kind
    ranks: Sequence[int] = ()


@dataclass(frozen=True)
class Named:
    name: str
    memory: float
    pair: Pair | None


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("sent", "kind", "value"),
    [
        ('"a"', str, "a"),
        (b"true", bool, True),
        ("-3", int, -3),
        ("2.5", float, 2.5),
        ("2", float, 2),
        ("Infinity", float, float("inf")),  # a norm may be that
        ("null", int | None, None),
        ("[1, null]", list[float | None], [1, None]),
        ('[1, ["a"]]', tuple[int, list[str]], (1, ["a"])),
        ('{"a": "b"}  ', dict[str, str], {"a": "b"}),
        ('["one", [2]]', Pair, Pair(Kind.ONE, [2])),
        ("null", Pair | None, None),
        (
            '{"memory": 0.5, "name": "n", "pair": ["one", []]}',
            Named,
            Named("n", 0.5, Pair(Kind.ONE, [])),
        ),
    ],
)
def test_a_message_is_read_as_its_kind(sent: str, kind: Any, value: Any) -> None:
    found = read_message(sent, kind, "rank 1")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ("", str),
        ("x", str),
        (b"\xff", str),
        ("5", str),
        ("1", bool),
        ("true", int),
        ("1.0", int),
        (str(1 << 63), int),
        ("1" * 5000, int),
        ("1" + "0" * 400, float),
        ("null", int),
        ("{}", list[int]),
        ("[1, 2]", tuple[int]),
        ("[1]", tuple[int, int]),
        ('{"a": 1}', dict[str, str]),
        ('["two", []]', Pair),
        ('[["one"], []]', Pair),
        ('["one"]', Pair),
        ("{}", Named),
        ("[]", Named),
        ('{"x": 1}', Named),
        ('{"name": "n", "memory": "a", "pair": null}', Named),
        ('{"name": "n", "memory": 1, "pair": null, "more": 1}', Named),
        (DEEP, list[str]),
        ("[" * 500 + "]" * 500, list[str]),
        ('["' + "\\n\\u001b" * 50 + '"]', list[int]),
    ],
)
def test_what_is_of_another_kind_is_refused(sent: str, kind: Any) -> None:
    with pytest.raises(
        UserError, match=r"^rank 1 has sent what this version .* same version$"
    ) as e:
        read_message(sent, kind, "rank 1")
    assert str(e.value).isprintable()
    assert len(str(e.value)) < 400


def test_a_message_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST", 10)
    assert read_message(json.dumps("8" * 8), str, "rank 1") == "8" * 8
    with pytest.raises(UserError, match="more than 10 bytes"):
        read_message(json.dumps("9" * 9), str, "rank 1")


def test_messages_of_all_ranks_name_the_one_that_is_none() -> None:
    assert read_messages(["1", b"2"], int) == [1, 2]
    with pytest.raises(UserError, match=r"^rank 1 has sent"):
        read_messages(["1", "[]", "x"], int)


def test_a_text_is_one_line_of_what_can_be_seen() -> None:
    assert one_line("rank 1 (pid 7 on h) is gone") == "rank 1 (pid 7 on h) is gone"
    assert one_line("a\nb\r\nc\x1b[2Jd\u2028e") == "a b c?[2Jd e"
    assert one_line(b"\xffa\n") == "?a"
