"""Small made-up data in the public layouts, and a web server on this machine to fetch it from."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from localsgd.train.data.tasks.cifar import Layout
from localsgd.train.data.tasks.download import Remote


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data in the home folder or the environment, and no proxy."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("LOCALSGD_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")


def _text(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def _array(array: np.ndarray) -> bytes:
    """A [rows, columns] uint8 array in the opcodes that NumPy 1 under Python 2 left."""
    rows, columns = array.shape
    return b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\n",
            b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R",
            b"(K\x01J" + struct.pack("<i", rows) + b"J" + struct.pack("<i", columns) + b"\x86",
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R",
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89" + _text(array.tobytes()) + b"tb",
        ]
    )


def python2_pickle(content: dict[str, np.ndarray | list[int] | bytes]) -> bytes:
    """`content` as Python 2's cPickle wrote it with protocol 2, byte strings for keys."""
    parts = [b"\x80\x02}("]
    for key, value in content.items():
        parts.append(_text(key.encode()))
        if isinstance(value, np.ndarray):
            parts.append(_array(value))
        elif isinstance(value, bytes):
            parts.append(_text(value))
        else:
            parts.append(b"](" + b"".join(b"J" + struct.pack("<i", v) for v in value) + b"e")
    return b"".join(parts) + b"u."


@pytest.fixture
def pickle_of() -> Callable[[dict], bytes]:
    return python2_pickle


SMALL_CIFAR = Layout(
    folder="cifar-10-batches-py",
    train={"data_batch_1": 20, "data_batch_2": 20},
    test={"test_batch": 10},
    label_key="labels",
    classes=10,
    archive=Remote("http://127.0.0.1:9/cifar-10-python.tar.gz", sha256="", bytes=0),
)


@pytest.fixture
def small_cifar() -> Layout:
    """CIFAR-10's layout with 2 x 20 training and 10 test images."""
    return SMALL_CIFAR


@pytest.fixture
def cifar_folder(tmp_path: Path) -> Path:
    """A folder in the layout `small_cifar`, random pixels, every label equally often."""
    folder = tmp_path / "data" / SMALL_CIFAR.folder
    folder.mkdir(parents=True)
    chance = np.random.RandomState(0)
    for name, size in {**SMALL_CIFAR.train, **SMALL_CIFAR.test}.items():
        pixels = chance.randint(0, 256, (size, 3072)).astype(np.uint8)
        labels = [i % 10 for i in range(size)]
        content = {"batch_label": name.encode(), "labels": labels, "data": pixels}
        (folder / name).write_bytes(python2_pickle(content))
    return folder


@dataclass
class Answer:
    """What the server sends: `body`, under the length that it announces."""

    body: bytes
    status: int = 200
    announced: int | None = None
    silent: bool = False


@dataclass
class Web:
    """A server on 127.0.0.1; `answers` by path, and the paths that were asked for."""

    address: str
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def web() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            answer = site.answers.get(self.path, Answer(b"no such file", status=404))
            if answer.silent:
                site.closing.wait()
                return
            self.send_response(answer.status)
            length = len(answer.body) if answer.announced is None else answer.announced
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    site = Web(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    site.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def answer() -> type[Answer]:
    return Answer


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """ImageNet's layout with 3 classes: 8 training images of each, and 4 to test."""
    folder = tmp_path / "data" / "imagenet"
    chance = np.random.RandomState(0)
    for part, count in (("train", 8), ("val", 4)):
        for name in ("n01", "n02", "n03"):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = chance.randint(0, 256, (20 + number, 30, 3)).astype(np.uint8)
                path = folder / part / name / f"{name}_{number}.JPEG"
                Image.fromarray(pixels).save(path, "JPEG", quality=95)
    return folder
