"""Processes that are started again when they die; they are plain Python, and quick to start."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from localsgd.train.launch.launch import Children
from localsgd.train.launch.tending import OPEN, OVER, Tended, joined_key, made_key

PROGRAM = """
import os, pathlib, signal, sys, time
folder, name, starts = pathlib.Path(sys.argv[1]), os.environ["NAME"], int(os.environ["STARTS"])

def put(key):
    path = folder / key
    path.parent.mkdir(exist_ok=True)
    path.touch()

def wait(key):
    end = time.monotonic() + 60
    while not (folder / key).exists():
        assert time.monotonic() < end
        time.sleep(0.01)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def wait_for_end(key):
    # Until the process whose id stands there has been seen to end.
    wait(key)
    try:
        while True:
            os.kill(int((folder / key).read_text()), 0)
            time.sleep(0.01)
    except ProcessLookupError:
        pass

def put_pid(key):
    part = folder / f"{key}.part"
    part.write_text(str(os.getpid()))
    part.replace(folder / key)

def join():
    put(f"made/{name}")
    if not starts:
        wait("open")
    put(f"joined/{name}")

"""


class Gate:
    """Files in place of a store's keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set(self, key: str, value: str) -> None:
        assert not (self.folder / key).exists()
        (self.folder / key).touch()

    def check(self, keys: list[str]) -> bool:
        return all((self.folder / key).exists() for key in keys)

    def delete_key(self, key: str) -> None:
        (self.folder / key).unlink(missing_ok=True)


def tended(folder: Path, program: str, restarts: int = 2) -> tuple[int, dict[str, int]]:
    """The status, and how often each of a, b and c was started."""
    starts: dict[str, int] = {}

    def environment(name: str, again: bool) -> dict[str, str]:
        assert again == (name in starts)
        count = starts[name] = starts.get(name, 0) + 1
        return {**os.environ, "NAME": name, "STARTS": str(count - 1)}

    command = [sys.executable, "-c", PROGRAM + program, str(folder)]
    gate: Any = Gate(folder)
    status = Tended(command, ["a", "b", "c"], environment, gate, restarts).run()
    return status, starts


def lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What was said, without times and process ids."""
    said = capfd.readouterr().err.splitlines()
    assert all(re.match(r"localsgd: \d\d:\d\d:\d\d ", line) for line in said), said
    cut = [re.sub(r" \(pid \d+\)|localsgd: \S+ ", "", line) for line in said]
    return [re.sub(r"after \d+ s", "after S s", line) for line in cut]


def test_all_begin_together_and_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = """
if name == "c":
    time.sleep(0.3)
    assert not (folder / "open").exists()
join()
assert all((folder / "made" / other).exists() for other in "abc")
"""
    assert tended(tmp_path, program) == (0, {"a": 1, "b": 1, "c": 1})
    assert lines(capfd) == []
    assert (tmp_path / OVER).exists()  # so that nobody who comes later trains alone


def test_one_that_dies_is_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Killed once and failed once, while the others train; then it comes back, and all end."""
    program = """
join()
if name == "b" and starts == 0:
    die()
if name == "b" and starts == 1:
    sys.exit(7)
if name == "b":
    put("back")
wait("back")
"""
    assert tended(tmp_path, program) == (0, {"a": 1, "b": 3, "c": 1})
    assert lines(capfd) == [
        "b was killed by SIGKILL after S s, and is started again (1 of 2)",
        "b failed with exit status 7 after S s, and is started again (2 of 2)",
        "all have ended; started again: b 2 times",
    ]


def test_nobody_is_started_again_for_ever(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = """
join()
if name == "b":
    if starts == 1:
        put_pid("last")
    die()
wait_for_end("last")
"""
    assert tended(tmp_path, program, restarts=1) == (3, {"a": 1, "b": 2, "c": 1})
    assert lines(capfd) == [
        "b was killed by SIGKILL after S s, and is started again (1 of 1)",
        "b was killed by SIGKILL after S s, and is not started again (--restarts 1)",
        "all have ended; started again: b 1 time",
    ]


def test_a_mistake_at_the_start_ends_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = """
if name == "c":
    sys.exit(5)
join()
time.sleep(60)
"""
    start = time.monotonic()
    assert tended(tmp_path, program) == (5, {"a": 1, "b": 1, "c": 1})
    assert time.monotonic() - start < 30
    assert lines(capfd) == [
        "c failed with exit status 5 after S s, before it had joined the others, and is not "
        "started again"
    ]


def test_one_that_is_back_too_late_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would wait for others that don't come."""
    program = """
if name == "b" and starts:
    put("back")
    time.sleep(60)
join()
if name == "b":
    die()
wait("back")
"""
    start = time.monotonic()
    assert tended(tmp_path, program) == (0, {"a": 1, "b": 2, "c": 1})
    assert time.monotonic() - start < 30
    assert lines(capfd)[1] == "b is ended: it had not joined when others were done"


def test_one_that_is_killed_when_others_are_done_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = """
join()
if name == "a":
    put_pid("done")
    sys.exit()
if name == "b":
    wait_for_end("done")
    die()
"""
    assert tended(tmp_path, program) == (3, {"a": 1, "b": 1, "c": 1})
    assert lines(capfd) == [
        "b was killed by SIGKILL after S s, when others had ended already, and is not started again"
    ]


@pytest.mark.parametrize("stubborn", [False, True])
def test_ctrl_c_ends_all(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stubborn: bool,
) -> None:
    """Also those that don't listen, as in a call into a library."""
    monkeypatch.setattr(sys.modules[Children.__module__], "_GRACE_SECONDS", 0.5)
    program = f"""
signal.signal(signal.SIGINT, signal.SIG_IGN if {stubborn} else signal.SIG_DFL)
join()
put(f"pids/{{os.getpid()}}")
if name == "a":
    while len(list((folder / "pids").iterdir())) < 3:
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGINT)
time.sleep(60)
"""
    start = time.monotonic()
    assert tended(tmp_path, program) == (130, {"a": 1, "b": 1, "c": 1})
    assert time.monotonic() - start < 30
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert lines(capfd) == []


def test_keys_are_those_of_the_names() -> None:
    assert (OPEN, made_key("a"), joined_key("a")) == ("open", "made/a", "joined/a")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
