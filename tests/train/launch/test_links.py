"""What a run makes of links that go down, between nodes that are network namespaces."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.network.laboratory import WIRE, Laboratory, laboratory
from benchmarks.network.refusal import Refused
from benchmarks.network.shell import ip

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Laboratory]:
    try:
        made = laboratory(3)
        laid = made.__enter__()
    except Refused as error:
        pytest.skip(str(error))
    yield laid
    made.__exit__(None, None, None)


def run(zygote, nodes: Laboratory, down_seconds: float | None, seconds: float, limit: float):
    """Node 1's link goes down after the first rounds, for good if not for so many seconds."""
    environments = [
        {
            **{"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
            **{"MASTER_ADDR": nodes.address(0), "MASTER_PORT": "29500", "NODE": node},
            **{"GLOO_SOCKET_IFNAME": WIRE, "OMP_NUM_THREADS": "1"},
        }
        for rank, node in enumerate(map(nodes.namespace, range(3)))
    ]

    def link(state: str) -> None:
        ip("-n", nodes.namespaces[-1], "link", "set", "dev", "n1", state)

    def meanwhile(pids: list[int], folder: Path) -> None:
        outs = [folder / f"{rank}.out" for rank in range(3)]
        while not all(out.is_file() and out.read_text() for out in outs):
            time.sleep(0.02)
        time.sleep(2.0)  # until each has heard of the others
        link("down")
        if down_seconds is not None:
            time.sleep(down_seconds)
            link("up")

    outcome = zygote.run("over_links", environments, seconds, limit, meanwhile=meanwhile)
    link("up")
    return outcome


def test_a_link_that_is_down_for_two_seconds_harms_nothing(zygote, nodes):
    outcome = run(zygote, nodes, down_seconds=2.0, seconds=5.0, limit=30.0)
    assert outcome.statuses == [0, 0, 0], outcome.err
    assert outcome.err == ["", "", ""]
    assert len(set(outcome.out)) == 1  # as many rounds everywhere


def test_a_link_that_is_down_for_good_ends_both_sides(zygote, nodes):
    outcome = run(zygote, nodes, down_seconds=None, seconds=60.0, limit=4.0)
    assert outcome.statuses == [3, 3, 3]
    silent = r"rank 1 \(pid \d+ on \S+\) has not been heard of for \d+ s(, last at step \d+)?\n"
    unanswered = r"rank 0 \(pid \d+ on \S+\) keeps the run's store and has not answered for \d+ s\n"
    for rank, pattern in ((0, silent), (1, unanswered), (2, silent)):
        assert re.fullmatch(pattern, outcome.err[rank])
