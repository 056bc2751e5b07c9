from __future__ import annotations

import hashlib
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from localsgd.errors import UserError
from localsgd.train.data.tasks import download
from localsgd.train.data.tasks.download import Remote, downloaded

BODY = bytes(range(256)) * 12_000  # three chunks
ADVICE = "put it there by hand"


def remote(url: str, body: bytes = BODY) -> Remote:
    return Remote(url, hashlib.sha256(body).hexdigest(), len(body))


def take(source: Remote, folder: Path) -> None:
    with downloaded(source, folder, ADVICE) as path:
        os.replace(path, folder / path.name)


def refused(source: Remote, folder: Path) -> str:
    """The one line that a download is refused with; nothing is left behind."""
    with pytest.raises(UserError) as error:
        take(source, folder)
    assert not folder.exists() or list(folder.iterdir()) == []
    text = str(error.value)
    assert text.endswith(ADVICE)
    assert source.url in text
    assert "\n" not in text
    return text


def test_a_good_file_arrives_whole(web, answer, tmp_path: Path) -> None:
    web.answers["/a.bin"] = answer(BODY)
    folder = tmp_path / "new" / "folder"
    calls: list[Any] = []
    with downloaded(remote(f"{web.address}/a.bin"), folder, "", lambda *c: calls.append(c)) as path:
        assert path.read_bytes() == BODY
        # What isn't taken over yet lies in a hidden folder of its own.
        assert [p.name.startswith(".download-") for p in folder.iterdir()] == [True]
        os.replace(path, folder / "a.bin")
    assert [p.name for p in folder.iterdir()] == ["a.bin"]
    assert (folder / "a.bin").read_bytes() == BODY
    assert calls[-1] == ("a.bin", len(BODY), len(BODY))
    received = [done for _, done, _ in calls]
    assert len(received) == 3
    assert received == sorted(received)


def test_a_file_that_nobody_takes_is_gone(web, answer, tmp_path: Path) -> None:
    web.answers["/a.bin"] = answer(BODY)
    with downloaded(remote(f"{web.address}/a.bin"), tmp_path / "data", ADVICE):
        pass
    assert list((tmp_path / "data").iterdir()) == []


def test_a_wrong_checksum_is_refused(web, answer, tmp_path: Path) -> None:
    web.answers["/a.bin"] = answer(BODY[:-1] + b"x")
    text = refused(remote(f"{web.address}/a.bin"), tmp_path / "data")
    assert hashlib.sha256(BODY).hexdigest() in text
    assert hashlib.sha256(BODY[:-1] + b"x").hexdigest() in text


def test_a_truncated_file_is_refused(web, answer, tmp_path: Path) -> None:
    web.answers["/a.bin"] = answer(BODY[:2_000_000], announced=len(BODY))
    text = refused(remote(f"{web.address}/a.bin"), tmp_path / "data")
    assert "received 2,000,000" in text or "broke off" in text


def test_a_longer_file_is_refused(web, answer, tmp_path: Path) -> None:
    web.answers["/a.bin"] = answer(BODY + b"more")
    text = refused(remote(f"{web.address}/a.bin"), tmp_path / "data")
    assert f"expected {len(BODY):,} bytes" in text


def test_a_file_without_end_is_not_read_to_its_end(web, answer, tmp_path: Path) -> None:
    web.answers["/a.bin"] = answer(bytes(30_000_000))
    received = []
    with (
        pytest.raises(UserError, match="bytes and received"),
        downloaded(
            remote(f"{web.address}/a.bin"),
            tmp_path / "data",
            ADVICE,
            lambda _, done, __: received.append(done),
        ),
    ):
        pass
    assert received[-1] <= len(BODY) + download.CHUNK_BYTES


def test_a_missing_file_is_told(web, tmp_path: Path) -> None:
    assert "the server says 404" in refused(remote(f"{web.address}/b.bin"), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_an_unreachable_server_is_told_and_nothing_made(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = refused(remote(f"http://127.0.0.1:{port}/a.bin"), tmp_path / "data")
    assert "refused" in text
    assert not (tmp_path / "data").exists()


def test_a_silent_server_is_given_up(
    web, answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert download.TIMEOUT_SECONDS <= 10
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.2)
    web.answers["/a.bin"] = answer(BODY, silent=True)
    start = time.monotonic()
    assert "timed out" in refused(remote(f"{web.address}/a.bin"), tmp_path / "data")
    assert time.monotonic() - start < 5


def test_no_such_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    text = refused(remote("http://nowhere.invalid/a.bin"), tmp_path / "data")
    assert "Name or service not known" in text


def test_a_place_that_cannot_be_written_to_is_told(web, answer, tmp_path: Path) -> None:
    web.answers["/a.bin"] = answer(BODY)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="file cannot be written to"):
        take(remote(f"{web.address}/a.bin"), tmp_path / "file")


def test_an_interruption_leaves_nothing(web, answer, tmp_path: Path) -> None:
    web.answers["/a.bin"] = answer(BODY)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        downloaded(remote(f"{web.address}/a.bin"), tmp_path / "data", ADVICE, interrupt),
    ):
        pass
    assert list((tmp_path / "data").iterdir()) == []
