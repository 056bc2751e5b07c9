"""Links have their rates; nothing is left behind, and nothing of others is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.network import laboratory as laboratories
from benchmarks.network import owner
from benchmarks.network.crew import Crew, CrewFailed
from benchmarks.network.laboratory import Laboratory, laboratory
from benchmarks.network.owner import namespaces, remove, remove_stale
from benchmarks.network.refusal import Refused
from benchmarks.network.shell import CommandFailed, ip
from tests.benchmarks.network.conftest import ROOT

pytestmark = pytest.mark.timeout(60)

MESSAGE = 1_000_000
"""Bytes."""


# Links.


def pass_on(sender: int, receiver: int) -> float:
    """Seconds for a message from one to the other, and a word of thanks."""
    message, thanks = torch.zeros(MESSAGE, dtype=torch.uint8), torch.zeros(1)
    dist.barrier()
    start = time.perf_counter()
    if dist.get_rank() == sender:
        dist.send(message, receiver)
        dist.recv(thanks, receiver)
    elif dist.get_rank() == receiver:
        dist.recv(message, sender)
        dist.send(thanks, sender)
    return time.perf_counter() - start


def test_links_and_up_links_have_their_rates(crew: Crew, racks: Laboratory) -> None:
    racks.shape(40_000_000, 20_000_000)
    try:
        inside = crew.call(pass_on, 0, 1)[0]
        before = racks.counters()
        across = crew.call(pass_on, 0, 2)[0]
        crossed = racks.counters() - before
    finally:
        racks.shape(None, None)
    # Less a full bucket; more for headers, and for a busy machine.
    ideal = 8 * MESSAGE / 40e6
    assert 0.9 * ideal < inside < 2 * ideal
    assert 1.8 * ideal < across < 4 * ideal
    assert MESSAGE < crossed.nodes[0].sent < 1.1 * MESSAGE
    assert MESSAGE < crossed.nodes[2].received < 1.1 * MESSAGE
    assert MESSAGE < crossed.racks[0].sent < 1.1 * MESSAGE
    assert crossed.nodes[1].sent + crossed.nodes[3].sent < 0.1 * MESSAGE


def fail() -> None:
    if dist.get_rank() == 2:
        raise ArithmeticError("two and two")
    time.sleep(0.3)  # So that what the others answer comes after the failure is told.


def test_a_failure_in_a_crew_is_told_with_its_rank(crew: Crew) -> None:
    with pytest.raises(CrewFailed, match=r"(?s)rank 2.*two and two"):
        crew.call(fail)
    assert crew.call(dist.get_rank) == [0, 1, 2, 3]


# What is left.


def links_here() -> str:
    """The machine's own interfaces, without what changes by itself."""
    return "\n".join(line for line in ip("-oneline", "link", "show").splitlines())


def test_only_namespaces_of_its_own_are_made_and_all_are_removed(possible: None) -> None:
    before, names = links_here(), set()

    def fails() -> None:
        with laboratory(3, racks=2) as made:
            assert links_here() == before
            names.update(made.namespaces)
            assert names <= set(namespaces())
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fails()
    assert links_here() == before
    assert not names & set(namespaces())


@contextmanager
def owning() -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """Another process with a laboratory: it, its prefix, its guard."""
    command = [sys.executable, "-m", "tests.benchmarks.network.owning", "50"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    prefix = None
    try:
        with process.stdout:
            prefix, guard = process.stdout.readline().split()
            yield process, prefix, int(guard)
    finally:
        process.kill()
        process.wait()
        for name in namespaces(prefix) if prefix else ():
            remove(name)


def _wait_for(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_is_stopped(number: int, possible: None) -> None:
    with owning() as (process, prefix, _):
        assert len(namespaces(prefix)) == 3
        os.killpg(process.pid, number)
        _wait_for(lambda: not namespaces(prefix))


def test_what_a_killed_guard_has_left_is_removed_by_the_next_start(possible: None) -> None:
    with owning() as (process, prefix, guard):
        # Its process on the node may still be on its way there.
        _wait_for(lambda: bool(ip("netns", "pids", f"{prefix}n1")))
        sleeping = int(ip("netns", "pids", f"{prefix}n1"))
        os.kill(guard, signal.SIGKILL)
        remove_stale()
        assert len(namespaces(prefix)) == 3  # Its owner lives.
        process.kill()
        process.wait()
        assert len(namespaces(prefix)) == 3
        with laboratory(1):
            assert not namespaces(prefix)
        _wait_for(lambda: not Path(f"/proc/{sleeping}").exists())


def test_names_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(owner, "PLACE", tmp_path)
    for name in ("lsgd-", "lsgd-mine", "lsgd-1-x-hub", "cni-77", f"x-{owner.Owner.this().prefix}a"):
        (tmp_path / name).touch()
    assert namespaces() == remove_stale() == []
    with pytest.raises(ValueError):
        remove("lsgd-mine")


def test_a_process_id_that_was_given_out_again_is_no_owner() -> None:
    this = owner.Owner.this()
    assert this.lives
    assert not owner.Owner(this.pid, this.started - 1).lives
    assert owner.owner_of(f"{this.prefix}0-hub") == this


# Refusals.


def test_refusals_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(nodes: int = 1, racks: int = 1) -> str:
        with pytest.raises(Refused) as caught, laboratory(nodes, racks):
            pass
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "0 nodes" in refused(0)
    assert "3 racks for 2 nodes" in refused(2, 3)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.which", lambda program: None)
        assert "iproute2" in refused()
    monkeypatch.setattr("shutil.which", lambda program: program)
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: 1000)
        assert "root" in refused()
    with monkeypatch.context() as patch:
        patch.setattr("sys.platform", "darwin")
        assert "Linux" in refused()


@pytest.mark.parametrize(
    ("program", "word", "feature"),
    [("ip", "netns", "namespaces"), ("ip", "bridge", "bridges"), ("tc", "tbf", "tbf")],
)
def test_a_kernel_without_a_feature_is_refused_and_nothing_stays(
    program: str, word: str, feature: str, possible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = getattr(laboratories, program)

    def lacking(*arguments: str) -> str:
        if word in arguments:
            raise CommandFailed(f"{word}: Operation not supported")
        return genuine(*arguments)

    monkeypatch.setattr(laboratories, program, lacking)
    before = namespaces()
    with pytest.raises(Refused, match=rf"{feature}.*Operation not supported"), laboratory(2):
        pass
    assert namespaces() == before


@pytest.mark.parametrize("rate", [1_000, 100_000_000_000])
def test_rates_out_of_range_are_refused(rate: int, racks: Laboratory) -> None:
    with pytest.raises(Refused, match=r"10 Mbit/s to 10 Gbit/s"):
        racks.shape(rate)
