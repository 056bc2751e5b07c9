"""`localsgd run --fault-tolerant SCRIPT`: its mistakes, and a run in which a worker is killed."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from localsgd.cli.fault_tolerant import FaultTolerantCommand, split
from localsgd.cli.main import _call, _parse
from localsgd.errors import UserError, short
from localsgd.integrations import joining
from localsgd.integrations.joining import GATE, Joining, _gate
from localsgd.train.launch.slurm import LOOPBACK
from localsgd.train.launch.store import serve_on
from localsgd.train.launch.tending import OPEN, OVER
from tests.distributed.harness import SECONDS

pytestmark = pytest.mark.timeout(4 * SECONDS)

SCRIPT = """
import os
import signal
import sys

import torch

from localsgd import LocalSGD
from localsgd.integrations.torchft import Managed

model = torch.nn.Linear(4, 1, bias=False).double()
inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = LocalSGD(inner, model, local_steps=2, fault_tolerance=Managed())
members = optimizer.membership
first, seen, names = members.syncs, members.workers, members.names
killed = "LOCALSGD_AGAIN" in os.environ  # or one that has seen that w1 is another
while members.step < int(sys.argv[1]) or not killed:
    optimizer.zero_grad()
    model(torch.full((2, 4), members.batch % 7 / 7).double()).square().mean().backward()
    if members.name.startswith("w1:") and not killed and members.syncs == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    killed = killed or (members.workers == 3 and members.names != names)
optimizer.finish()
weights = "".join(value.hex() for value in model.weight.flatten().tolist())
print(f"{members.name[:2]} {first} {seen} {members.workers} {weights}\\n", end="", flush=True)
"""


def said(*arguments: str) -> str:
    with pytest.raises(UserError) as raised:
        _call(_parse(["run", "--fault-tolerant", *arguments]))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_follows_the_options_is_the_scripts() -> None:
    own, script = split(["--processes", "3", "--restarts=1", "a.py", "--lr", "0.1", "--processes"])
    assert own == ["--processes", "3", "--restarts=1"]
    assert script == ("a.py", "--lr", "0.1", "--processes")


@pytest.mark.parametrize("flag", ["--fault-tolerant", "--fault_tolerant"])
def test_a_script_may_have_a_flag_of_this_name(flag: str) -> None:
    found = _parse(["run", flag, "--processes", "3", "a.py", "--fault-tolerant"])
    assert found == FaultTolerantCommand(("a.py", "--fault-tolerant"), processes=3)


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise AssertionError")
    assert "starts a script of yours, and none was given" in said()
    assert f"{script}x is no file" in said(f"{script}x")
    assert "--processes 0 is too small" in said("--processes", "0", str(script))
    assert "--restarts -1 is too small" in said("--restarts", "-1", str(script))
    assert "--proceses" in said("--proceses", "3", str(script))
    monkeypatch.setitem(sys.modules, "torchft", None)
    assert said(str(script)) == (
        "workers that come and go need torchft, which is not installed; pip install "
        "'localsgd[torchft]'"
    )


def test_a_lighthouse_that_does_not_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchft")
    script = tmp_path / "train.py"
    script.write_text("raise AssertionError")
    for place in ("127.0.0.1:1", "http://127.0.0.1:1"):
        told = said("--lighthouse", place, str(script))
        assert told.startswith("no lighthouse answers at http://127.0.0.1:1 (Connection refused)")
    for place in ("node0", "http://node0", "node0:x"):
        told = said("--lighthouse", place, str(script))
        assert told.endswith("is no place of a lighthouse; give HOST:PORT, such as node0:29510")
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://127.0.0.1:2")
    assert "no lighthouse answers at http://127.0.0.1:2" in said(str(script))


def test_what_the_environment_says_is_checked_before_a_worker_joins() -> None:
    pytest.importorskip("torchft")
    here = {"TORCHFT_LIGHTHOUSE": "127.0.0.1:1"}
    with pytest.raises(UserError, match=r"^no lighthouse answers at http://"):
        Joining.of(here)
    for workers in ("0", "-1", "four", "9" * 19):
        with pytest.raises(UserError, match=f"^LOCALSGD_WORKERS={workers!r} is no number"):
            Joining.of({**here, "LOCALSGD_WORKERS": workers})
    for seconds in ("0", "-1", "abc", "nan", "inf"):
        with pytest.raises(UserError, match=f"^TORCHFT_TIMEOUT_SEC={seconds!r} is no number"):
            Joining.of({**here, "TORCHFT_TIMEOUT_SEC": seconds})


def test_a_worker_that_starts_when_others_have_ended_does_not_train_alone() -> None:
    store, port = serve_on(LOOPBACK)
    store.set(OPEN, "")
    assert _gate({GATE: str(port)}, "w0", False) is not None
    store.set(OVER, "")
    with pytest.raises(UserError, match=r"^w1 comes when other workers have ended already"):
        _gate({GATE: str(port)}, "w1", False)


@pytest.mark.parametrize("port", ["abc", "0", "-1", "99999", "9" * 5000])
def test_a_gate_that_is_no_port_is_refused_in_one_line(port: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"{GATE}={short(port)} is no port")):
        _gate({GATE: port}, "w0", False)


def test_a_gate_without_a_launcher_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LIMIT", timedelta(seconds=1))
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UserError, match=f"^{GATE}={port}: no launcher listens"):
        _gate({GATE: str(port)}, "w0", False)


@pytest.mark.parametrize("workers", ["²", "9" * 5000])
def test_workers_are_counted_in_plain_digits(workers: str) -> None:
    with pytest.raises(UserError, match=r"^LOCALSGD_WORKERS=.{1,90} is no number of workers"):
        joining._workers({joining.WORKERS: workers})


@pytest.mark.slow
def test_a_worker_that_is_killed_comes_back(tmp_path: Path) -> None:
    """All three end with the same weights; the lines say what happened."""
    pytest.importorskip("torchft")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "localsgd", "run", "--fault-tolerant", "--processes", "3"]
    found = subprocess.run(
        [*command, str(script), "40"],
        capture_output=True,
        text=True,
        timeout=3 * SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr
    told = [line.split() for line in sorted(found.stdout.splitlines())]
    assert [(name, seen) for name, _, seen, *_ in told] == [("w0", "3"), ("w1", "3"), ("w2", "3")]
    assert [first == "1" for _, first, *_ in told] == [True, False, True]
    assert {workers for *_, workers, _ in told} == {"3"}
    assert len({weights for *_, weights in told}) == 1
    lines = re.findall(r"localsgd: \d\d:\d\d:\d\d (.*)", found.stderr)
    assert re.fullmatch(r"3 workers \(w0, w1, w2\), lighthouse http://127.0.0.1:\d+", lines[0])
    assert re.fullmatch(
        r"w1 \(pid \d+\) was killed by SIGKILL after \d+ s, and is started again \(1 of 3\)",
        lines[1],
    )
    assert lines[2:] == ["all have ended; started again: w1 1 time"]


JOINED = """
import torch

from localsgd import LocalSGD
from localsgd.integrations.torchft import Managed

model = torch.nn.Linear(4, 1, bias=False).double()
inner = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = LocalSGD(inner, model, local_steps=2, fault_tolerance=Managed())
members = optimizer.membership
while members.step < 8:
    optimizer.zero_grad()
    model(torch.full((2, 4), members.batch % 7 / 7).double()).square().mean().backward()
    optimizer.step()
optimizer.finish()
weights = "".join(value.hex() for value in model.weight.flatten().tolist())
print(f"{members.name.partition(':')[0]} {members.workers} {weights}\\n", end="", flush=True)
"""


@pytest.mark.slow
def test_two_machines_meet_at_one_lighthouse(tmp_path: Path) -> None:
    """The machines are host names of their own; all four workers end with the same weights."""
    coordination = pytest.importorskip("torchft.coordination")
    apart = ["unshare", "--user", "--map-root-user", "--uts"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare of util-linux, and user namespaces")
    script = tmp_path / "train.py"
    script.write_text(JOINED)
    lighthouse = coordination.LighthouseServer(
        bind=f"{LOOPBACK}:0", min_replicas=4, join_timeout_ms=60_000
    )
    place = f"{LOOPBACK}:{lighthouse.address().rsplit(':', 1)[1]}"
    command = f"{sys.executable} -m localsgd run --fault-tolerant --processes 2 --workers 4"
    try:
        machines = [
            subprocess.Popen(
                [*apart, "sh", "-c", f"hostname {host}; {command} --lighthouse {place} {script}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for host in ("node0", "node1")
        ]
        found = [machine.communicate(timeout=3 * SECONDS) for machine in machines]
    finally:
        lighthouse.shutdown()
    assert [machine.returncode for machine in machines] == [0, 0], found
    told = sorted(line.split() for out, _ in found for line in out.splitlines())
    names = ["node0-w0", "node0-w1", "node1-w0", "node1-w1"]
    assert [(name, workers) for name, workers, _ in told] == [(name, "4") for name in names]
    assert len({weights for *_, weights in told}) == 1
