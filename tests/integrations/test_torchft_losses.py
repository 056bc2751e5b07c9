"""Workers are killed, stopped and started while the others train, in real processes.

`LOCALSGD_CHAOS_SEEDS=30` tries so many moments in place of a few.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import replace

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'localsgd[torchft]'")

from benchmarks.network.laboratory import laboratory
from benchmarks.network.refusal import Refused, check_machine
from benchmarks.network.shell import ip
from tests.integrations.fleet import CROWDED, Fleet, Plan, fleet
from tests.integrations.fleet_by_hand import check_by_hand

ASKED = os.environ.get("LOCALSGD_CHAOS_SEEDS")
SEEDS = range(int(ASKED or "1"))
NAMES = ("w0", "w1", "w2", "w3")


def crew(**changes: object) -> dict[str, Plan]:
    """Four workers that differ in their models until they meet."""
    return {name: Plan(seed=seed, **changes) for seed, name in enumerate(NAMES)}  # type: ignore[arg-type]


def check_survivors(workers: Fleet, victim: str, least: int) -> None:
    found = check_by_hand(workers.workers)
    assert max(found) >= least
    by_name = {w.name: w for w in workers.workers}
    assert by_name.pop(victim).end == ("died", None)
    ends = [w.end for w in by_name.values()]
    assert all(end is not None and end[0] == "ended" for end in ends), ends
    models = [end[1]["model"] for end in ends if end is not None]
    assert all(model.equal(models[0]) for model in models)
    last = found[max(found)]
    assert victim not in last.names
    [told] = [text for text in last.changes if victim in text]
    assert "K = 4 -> 3" in told


def dying_at_a_step(seed: int) -> tuple[str, dict[str, Plan]]:
    draw = random.Random(seed)
    plans, victim, step = crew(), draw.choice(NAMES), draw.randrange(1, 16)
    plans[victim] = replace(plans[victim], die_at=step)
    print(f"{victim} dies at step {step}")
    return victim, plans


def dying_in_a_sync(seed: int) -> tuple[str, dict[str, Plan]]:
    """A model of 8 MB: its sum takes some milliseconds, in which all has begun to change."""
    draw = random.Random(seed)
    plans, victim = crew(length=1 << 20), draw.choice(NAMES)
    sync, delay = draw.randrange(1, 5), draw.uniform(0, 0.02)
    plans[victim] = replace(plans[victim], die_in=(sync, delay))
    print(f"{victim} dies {delay:.4f} s after the sum of sync {sync + 1} has begun")
    return victim, plans


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_is_killed(seed: int) -> None:
    """Four workers lose one at a local step, and four others one inside a sync."""
    one, plans = dying_at_a_step(seed)
    other, other_plans = dying_in_a_sync(seed)
    with (
        fleet(at_least=2) as workers,
        fleet(at_least=2) as others,
    ):
        workers.start(**plans)
        others.start(**other_plans)
        workers.until_all_end()
        others.until_all_end()
        check_survivors(workers, one, 6)
        check_survivors(others, other, 6)


def test_a_worker_that_stops_and_one_that_joins() -> None:
    """Shorter than the limit changes nothing; longer, it is left behind, and joins again."""
    with fleet(at_least=2) as workers:
        crew_of_four = workers.start(**crew(syncs=10_000, pause=0.01))
        late = crew_of_four[1]
        workers.until(lambda: workers.sync >= 3)
        late.signal(signal.SIGSTOP)
        workers.until(lambda: False, 0.3, may_pass=True)
        late.signal(signal.SIGCONT)
        workers.until(lambda: workers.sync >= 8)
        assert all(len(s.averaged) == 4 for s in late.seen[1:])

        late.signal(signal.SIGSTOP)
        workers.until(lambda: workers.workers_now() == 3)
        late.signal(signal.SIGCONT)
        workers.until(lambda: workers.workers_now() == 4)

        [joined] = workers.start(w4=Plan(seed=9, syncs=10_000, pause=0.01))
        workers.until(lambda: workers.workers_now() == 5)
        workers.end()
        found = check_by_hand(workers.workers)
        ends = [w.end for w in workers.workers]
        assert all(end is not None and end[0] == "ended" for end in ends), ends
        first = joined.seen[0]
        assert "w4" not in first.averaged
        assert "w4" in found[first.sync + 1].averaged
        told = "\n".join(found[max(found)].changes)
        assert [told.count(f"K = {change}") for change in ("4 -> 3", "3 -> 4", "4 -> 5")] == [1] * 3


@pytest.mark.skipif(not ASKED, reason="takes long; LOCALSGD_CHAOS_SEEDS=1 runs it")
@pytest.mark.slow
def test_a_network_that_falls_in_two() -> None:
    """For a moment, nothing is lost. For good, only the half with the lighthouse goes on."""
    try:
        check_machine()
    except Refused as refused:
        pytest.skip(str(refused))
    with laboratory(4, racks=2) as network:
        hub = network.namespaces[-1]
        with fleet(
            at_least=2,
            host=network.address(0),
            namespace=network.namespace(0),
        ) as workers:
            plans = {
                name: Plan(
                    seed=node,
                    syncs=10_000,
                    pause=0.02,
                    limit=3.0 * CROWDED,
                    quorum=4.0 * CROWDED,
                    hostname=network.address(node),
                    namespace=network.namespace(node),
                )
                for node, name in enumerate(NAMES)
            }
            one, two, three, four = workers.start(**plans)
            workers.until(lambda: workers.sync >= 3)
            ip("-n", hub, "link", "set", "dev", "up1", "down")
            workers.until(lambda: False, 1.0, may_pass=True)
            ip("-n", hub, "link", "set", "dev", "up1", "up")
            before = workers.sync
            workers.until(lambda: workers.sync >= before + 4)
            assert workers.workers_now() == 4

            ip("-n", hub, "link", "set", "dev", "up1", "down")
            workers.until(lambda: three.end is not None and four.end is not None)
            assert workers.workers_now() == 2
            for worker in (three, four):
                assert worker.end is not None
                assert "PeerLost: the lighthouse of torchft has not said" in worker.end[1]
            cut = max(s.sync for s in (*three.seen, *four.seen))
            workers.until(lambda: workers.sync >= cut + 3)
            workers.end()
            found = check_by_hand(workers.workers)
            assert set(found[max(found)].names) == {"w0", "w1"}
            assert one.end is not None
            assert two.end is not None
            assert one.end[0] == two.end[0] == "ended"
