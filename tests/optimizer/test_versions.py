"""What a rank of another version sends in place of a message is refused, and the rank named.

All ranks that read it get one error, in whichever call it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from localsgd.averaging.grid import Grid
from localsgd.errors import UserError
from localsgd.optimizer.consistency import check_settings
from localsgd.optimizer.membership import Membership, Standing
from localsgd.optimizer.same_settings import SameSettings
from localsgd.optimizer.save_load import _agreed
from localsgd.optimizer.sharded import met
from localsgd.optimizer.together import Together
from localsgd.wire.engine import Broken
from localsgd.wire.presence import Event, Presence, Seen, Waiting
from tests.optimizer.test_managed import Alone, One, standing

DEEP = "[" * 100_000
ODD = ("", "x", "\xff", "5", "{}", "[]", '{"x": 1}', DEEP)
"""No message of any kind."""
TOLD = r"^rank 1 has sent what this version .*; start all ranks with the same version$"
CALL = Event("step()", 3, by_hand=True)


def presence_of(sent: str | None = None, meeting: int = 1) -> Presence:
    """Of rank 0 of two, where rank 1 has already come to a meeting, and has `sent` something."""
    store = dist.HashStore()
    if sent is not None:
        within = dist.PrefixStore("localsgd", store)
        within.set(f"meeting/{meeting}/1", sent)
        within.add(f"meeting/{meeting}/arrived", 1)
    return Presence(store, 0, 2, timedelta(seconds=20))


def test_a_message_of_this_version_is_read() -> None:
    detail = json.dumps(["a", "b"])
    presence = presence_of(json.dumps([CALL, detail]))
    assert presence.meet(CALL, "mine") == ["mine", detail]


@pytest.mark.parametrize("sent", [*ODD, '[["a", "b", true], ""]', '[["a", 1, true], 5]', "[1, 2]"])
def test_in_a_meeting(sent: str) -> None:
    with pytest.raises(UserError, match=TOLD):
        presence_of(sent).meet(CALL)


@pytest.mark.parametrize("sent", [*ODD, '[["a", 1, true], true, ["x"], 0, false]', "[[]]"])
def test_in_a_report(sent: str) -> None:
    """Ranks that look at others end all; one whose collective has failed says why."""
    presence = presence_of()
    presence._own.set("1", sent)
    with pytest.raises(UserError, match=TOLD) as refused:
        presence._look_around(Waiting(CALL))
    assert presence._own.get("parted").decode() == str(refused.value)
    assert presence.who_is_lost(late=False) == str(refused.value)


def test_a_report_of_this_version_is_read() -> None:
    presence = presence_of()
    seen = Seen(Event("the sync", 4), True, [0, 1], 2)
    presence._own.set("1", json.dumps(seen))
    assert presence._read(()) == {1: seen}


def test_texts_of_others_are_one_line() -> None:
    presence = presence_of()
    presence._own.set("parted", "rank 1\n\x1b[2J is gone")
    with pytest.raises(UserError, match=r"^rank 1 \?\[2J is gone$"):
        presence._look_around(Waiting(CALL))


@pytest.mark.parametrize("sent", [*(text for text in ODD if text != "[]"), '["a"]', "[true]"])
def test_in_the_first_meeting(sent: str) -> None:
    presence = presence_of(json.dumps([Event("LocalSGD()", 0, by_hand=True), sent]))
    presence.open = presence.meet  # type: ignore[method-assign]  # without a process group
    with pytest.raises(UserError, match=TOLD):
        met(presence, [0, 1])


@pytest.mark.parametrize("sent", [*ODD, '["a"]', '["a", 5]', '["a", "b", "c"]'])
def test_in_a_call_of_all(sent: str) -> None:
    model = nn.Linear(1, 1)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    presence = presence_of(json.dumps([CALL, sent]))
    together = Together(presence, [], Grid.of_single_ranks(2), sgd)
    with pytest.raises(UserError, match=TOLD):
        together.meet("step()", 3, ["a", "b"])


def left(text: str) -> Callable[[SameSettings], None]:
    def look(settings: SameSettings) -> None:
        settings._presence.leave(settings._name, text)
        settings._presence._own.set(f"{settings._name}/1", text)
        settings._look(3)

    return look


@pytest.mark.parametrize("sent", [*ODD, "[0, 1]", '[0, "a", []]', '[0, 1, ["a"]]', "[0, 1, 5]"])
def test_in_learning_rates(sent: str) -> None:
    settings = SameSettings(torch.optim.SGD([torch.zeros(1)], 0.1), presence_of())
    with pytest.raises(UserError, match=TOLD):
        left(sent)(settings)
    left("[0, 4, [0.5, null, Infinity]]")(settings)
    assert settings._ahead == (4, [0.5, None, float("inf")])


@pytest.mark.parametrize("sent", [*ODD[:4], "[]", '{"lr": 1}', DEEP])
def test_in_settings(sent: str) -> None:
    settings = SameSettings(torch.optim.SGD([torch.zeros(1)], 0.1), presence_of())
    settings.compare([settings.mine(), settings.mine()], 3)
    with pytest.raises(UserError, match=TOLD):
        settings.compare([settings.mine(), sent], 3)


class Gathers:
    """A collective in which rank 1 gives texts in place of its own digest, length and settings."""

    def __init__(self, *texts: bytes) -> None:
        self._texts = [b"", *texts]

    def gather(self, sent: Tensor) -> Any:
        other = self._texts.pop(0).ljust(sent.shape[-1])[: sent.shape[-1]]
        both = torch.stack([sent[0, 0], torch.tensor(list(other), dtype=torch.uint8)])
        return SimpleNamespace(wait=lambda: both[None])


@pytest.mark.parametrize(
    "texts", [(b"abc",), (b"9" * 20,), (b"20", b"x"), (b"20", b"[" * 20), (b"20", b'{"lr": 1}')]
)
def test_where_settings_are_compared(texts: tuple[bytes, ...]) -> None:
    with pytest.raises(UserError, match=TOLD):
        check_settings("", {"lr": "0.1"}, Gathers(*texts), torch.device("cpu"), "", [(0, 1)])


def test_settings_that_differ_are_named_as_before() -> None:
    with pytest.raises(UserError, match=r"^rank 1 and rank 0 differ in lr: rank 0 has 0.1, rank 1"):
        check_settings(
            "", {"lr": "0.1"}, Gathers(b"20", b'{"lr": "2"}'), torch.device("cpu"), "", [(0, 1)]
        )


@pytest.mark.parametrize("sent", [*ODD, '["", ""]', '["", "", [1]]', '["", 5, []]'])
def test_in_a_save(sent: str) -> None:
    lead = SimpleNamespace(meet=lambda call, detail: [detail, sent], workers=2)
    with pytest.raises(UserError, match=TOLD):
        _agreed(lead, "save", dict)  # type: ignore[arg-type]


class Odd(One):
    size = 2

    def __init__(self, sent: bytes) -> None:
        self._sent = sent

    def gather(self, x: Tensor) -> Tensor:
        sent = torch.tensor(list(self._sent.ljust(len(x))), dtype=torch.uint8)
        return torch.stack([x, sent[: len(x)]])


FIELDS = asdict(standing("x"))


@pytest.mark.parametrize(
    "sent",
    [
        *(text.encode("latin-1") for text in ODD),
        json.dumps({**FIELDS, "syncs": "a"}).encode(),
        json.dumps({**FIELDS, "syncs": True}).encode(),
        json.dumps({**FIELDS, "memory": 10**400}).encode(),
        json.dumps({**FIELDS, "more": 1}).encode(),
        json.dumps({k: v for k, v in FIELDS.items() if k != "given"}).encode(),
    ],
)
def test_in_a_sync_of_workers_that_come_and_go(sent: bytes) -> None:
    """Who has trained tries again with the others; who is new can't join them."""
    engine = Alone()
    engine.meet = lambda: Odd(sent)  # type: ignore[method-assign]
    membership = Membership(engine, "a")
    with pytest.raises(UserError, match=TOLD):
        membership.meet(True, 0.0)
    membership.trained = True
    with pytest.raises(Broken, match=TOLD):
        membership.meet(True, 0.0)


def test_a_standing_is_what_was_packed() -> None:
    for one in (standing("x"), standing("y", memory=float("inf"), leaves=True)):
        assert Standing.of(one.packed(), 1) == one
