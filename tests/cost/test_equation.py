"""Eq. comm_cost, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from localsgd.cost import Cluster, Syncs
from localsgd.cost.equation import printed, seconds
from localsgd.errors import UserError


def test_equation_as_printed_and_as_a_time() -> None:
    # 8 servers of 4: log2 4 = 2 exchanges inside, log2 32 = 5 across.
    cluster = Cluster(workers=32, servers=8, inside=3.0, across=100.0)
    count = Syncs(inside=7, across=2)
    assert printed(cluster, count) == 7 * 3 * 8 * 2 + 2 * 100 * 5
    assert seconds(cluster, count) == 7 * 3 * 2 + 2 * 100 * 5


def test_one_worker_a_server_has_nothing_to_say_inside() -> None:
    cluster = Cluster(workers=16, servers=16, inside=3.0, across=100.0)
    assert printed(cluster, Syncs(7, 2)) == seconds(cluster, Syncs(7, 2)) == 800


def test_one_server_makes_both_forms_one() -> None:
    cluster = Cluster(workers=16, servers=1, inside=3.0, across=100.0)
    assert printed(cluster, Syncs(7, 2)) == seconds(cluster, Syncs(7, 2)) == 884


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((16, 3, 1.0, 1.0), "K = 16 workers can't be spread evenly over K' = 3 servers"),
        ((16, 0, 1.0, 1.0), "K' = 0 servers"),
        ((16, 4, -1.0, 1.0), "C1 = -1 is out of range; give a number >= 0"),
        ((16, 4, 1.0, float("nan")), "C2 = nan"),
    ],
)
def test_refuses_clusters_that_cannot_be(arguments: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Cluster(*arguments)
