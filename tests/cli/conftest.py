"""The command line in processes of its own, forked from one that has everything imported."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from localsgd.cli import main
from localsgd.train.launch import ending
from tests.runs import same

SECONDS = 240.0
TINY = (
    *("--task", "digits", "--model", "small-cnn-4", "--train-samples", "80", "--workers", "4"),
    *("--batch", "5", "--epochs", "3", "--local-steps", "3", "--switch", "step:4"),
    *("--reduction", "ordered"),
)
"""12 steps of 4 workers, evaluated after 4, 8 and 12; H = 1 for 4 steps, then rounds of 3."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(4 * SECONDS))


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status (None: killed by the test), what it printed, and the
    folder that it was started in.
    """

    status: int | None
    out: str
    err: str
    folder: Path


@dataclass(frozen=True)
class Started:
    """What one process is to do: arguments, variables, and a signal it gets at a step."""

    arguments: Sequence[str]
    environment: dict[str, str]
    at_step: tuple[int, str] | None = None


class Zygote:
    def __init__(self, folder: Callable[[], Path], home: Path) -> None:
        unwanted = {"RANK", "WORLD_SIZE", "LOCALSGD_DATA"}
        environment = {name: v for name, v in os.environ.items() if name not in unwanted} | {
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "FATAL",
            "HOME": str(home),
            "https_proxy": "http://127.0.0.1:9",
            "MPLCONFIGDIR": str(home),
        }
        self._folder = folder
        self.environment = environment
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, started: Sequence[Started]) -> list[Ended]:
        folder = self._folder()
        request = {
            "processes": [(list(p.arguments), p.environment, p.at_step) for p in started],
            "seconds": SECONDS,
            "folder": str(folder),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        self._answer()
        statuses = self._answer()
        printed = [
            [(folder / f"{rank}.{stream}").read_text() for stream in ("out", "err")]
            for rank in range(len(statuses))
        ]
        return [
            Ended(status, out, err, folder)
            for status, (out, err) in zip(statuses, printed, strict=True)
        ]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        with self._process:
            self._process.kill()


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    zygote = Zygote(lambda: tmp_path_factory.mktemp("said"), tmp_path_factory.mktemp("home"))
    yield zygote
    zygote.close()


Command = Callable[..., Ended]
Ranks = Callable[..., list[Ended]]
Done = Callable[..., tuple[Path, str]]
Refused = Callable[..., str]


@pytest.fixture(scope="session")
def command(zygote: Zygote) -> Command:
    """`command("run", ..., COLUMNS="40")`: one process with those arguments and variables."""

    def command(
        *arguments: object, at_step: tuple[int, str] | None = None, **environment: str
    ) -> Ended:
        [ended] = zygote.run([Started(list(map(str, arguments)), environment, at_step)])
        return ended

    return command


@pytest.fixture(scope="session")
def ranks(zygote: Zygote) -> Ranks:
    """`ranks([...], [...])`: a process for each list of arguments, joined as torchrun does it."""

    def ranks(
        *commands: Sequence[object],
        at_step: dict[int, tuple[int, str]] | None = None,
        port: int | None = None,
        **environment: str,
    ) -> list[Ended]:
        size = str(len(commands))
        port = free_port() if port is None else port
        return zygote.run(
            [
                Started(
                    list(map(str, arguments)),
                    {
                        **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
                        **{"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size},
                        **{"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)},
                        **environment,
                    },
                    (at_step or {}).get(rank),
                )
                for rank, arguments in enumerate(commands)
            ]
        )

    return ranks


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def done(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """`done("run", ...)`: the folder that the command has filled, and what it printed."""

    def done(*arguments: object) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("done") / "here"
        ended = command(*arguments, "--out", folder)
        assert (ended.status, ended.err) == (0, "")
        return folder, ended.out

    return done


@pytest.fixture(scope="session")
def whole(done: Done) -> Path:
    """The folder of the tiny run, undisturbed."""
    folder, said = done("run", *TINY)
    (folder.parent / "out").write_text(said)
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """`refused("run", ...)`: the line that says why, of a command in this process."""
    monkeypatch.setattr(ending, "_said", False)

    def refused(*arguments: object) -> str:
        assert main(list(map(str, arguments))) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return refused


def same_end(one: Path, other: Path) -> bool:
    """Whether two runs ended with the same bits, and were evaluated at the same steps, once each.

    Losses are sums over processes, and of batches that depend on them, so they agree to rounding.
    """
    rows, others = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (one, other)
    )
    for exact in ("step", "test_accuracy", "syncs"):
        if [row[exact] for row in rows] != [row[exact] for row in others]:
            return False
    for loss in ("test_loss", "train_loss"):
        if [row[loss] for row in rows] != pytest.approx([row[loss] for row in others], abs=1e-5):
            return False
    models = [load_file(path / "model.safetensors") for path in (one, other)]
    return same(*models) and same_workers(one, other)


def same_workers(one: Path, other: Path) -> bool:
    """Whether the last checkpoints hold the same parameters, buffers and inner states."""
    import torch

    states = []
    for path in (one, other):
        last = max((path / "checkpoints").glob("step-*"))
        states.append(
            [torch.load(file, weights_only=True) for file in sorted(last.glob("worker-*.pt"))]
        )
    return len(states[0]) > 0 and same(*states)
