from __future__ import annotations

import os
import select
import time

import pytest

from localsgd.train.launch import end_with, ending, print_exit_message


@pytest.mark.timeout(60)
def test_a_child_ends_soon_after_its_parent() -> None:
    """The child holds one end of a pipe, which is closed when it has gone."""
    here, there = os.pipe()
    parent = os.fork()
    if parent == 0:
        own = os.getpid()
        if os.fork() == 0:
            end_with(own)
            os.write(there, b"!")
            time.sleep(50)
            os._exit(0)
        os.read(here, 1)  # the child watches
        os._exit(0)
    os.close(there)
    os.waitpid(parent, 0)
    assert select.select([here], [], [], 20)[0]
    assert os.read(here, 1) == b""
    os.close(here)


def test_a_text_of_another_process_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ending, "_said", False)
    monkeypatch.delenv(ending.ERROR_FILE, raising=False)
    print_exit_message("rank 1\x1b[2J (pid 7\non\u2028h) is lost\x07")
    print_exit_message("and dropped")
    assert capsys.readouterr().err == "rank 1?[2J (pid 7 on h) is lost?\n"


@pytest.mark.parametrize("launcher", ["1", "abc", "9" * 5000])
def test_a_launcher_that_is_not_the_parent_is_not_believed(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[int] = []
    monkeypatch.setattr(ending, "end_with", watched.append)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv(ending.LAUNCHER, launcher)
    ending.end_with_parent()
    assert watched == []
    monkeypatch.setenv(ending.LAUNCHER, str(os.getppid()))
    ending.end_with_parent()
    assert watched == [os.getppid()]


def test_a_name_that_no_file_can_have_keeps_no_message_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ending, "_said", False)
    monkeypatch.setenv(ending.ERROR_FILE, ".")
    print_exit_message("why")
    assert capsys.readouterr().err == "why\n"
