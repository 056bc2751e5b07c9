"""Workers are killed, stopped and started while the others train, in real processes.

`LOCALSGD_CHAOS_SEEDS=30` tries so many moments in place of a few.
"""

from __future__ import annotations

import os
import random
import signal

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'localsgd[torchft]'")

from tests.integrations.fleet import Fleet, Plan, check_by_hand, fleet

SEEDS = range(int(os.environ.get("LOCALSGD_CHAOS_SEEDS", "1")))
NAMES = ("w0", "w1", "w2", "w3")
HEARTBEAT = 1.5


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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_is_killed_at_a_local_step(seed: int) -> None:
    draw = random.Random(seed)
    plans, victim, step = crew(), draw.choice(NAMES), draw.randrange(1, 16)
    plans[victim] = Plan(seed=NAMES.index(victim), die_at=step)
    print(f"{victim} dies at step {step}")
    with fleet(at_least=2, heartbeat=HEARTBEAT) as workers:
        workers.start(**plans)
        workers.until_all_end()
        check_survivors(workers, victim, 6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_is_killed_inside_a_sync(seed: int) -> None:
    """A model of 8 MB: its sum takes some milliseconds, in which all has begun to change."""
    draw = random.Random(seed)
    plans, victim = crew(length=1 << 20), draw.choice(NAMES)
    sync, delay = draw.randrange(1, 5), draw.uniform(0, 0.02)
    plans[victim] = Plan(seed=NAMES.index(victim), length=1 << 20, die_in=(sync, delay))
    print(f"{victim} dies {delay:.4f} s after the sum of sync {sync + 1} has begun")
    with fleet(at_least=2, heartbeat=HEARTBEAT) as workers:
        workers.start(**plans)
        workers.until_all_end()
        check_survivors(workers, victim, 6)
        for worker in workers.workers:
            print(worker.name, [(s.sync, s.digest[:6], len(s.averaged)) for s in worker.seen])


def test_a_worker_that_stops_and_one_that_joins() -> None:
    """Shorter than the limit changes nothing; longer, it is left behind, and joins again."""
    with fleet(at_least=2, heartbeat=HEARTBEAT) as workers:
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
        assert "w4" not in first.averaged and "w4" in found[first.sync + 1].averaged
        told = "\n".join(found[max(found)].changes)
        assert [told.count(f"K = {change}") for change in ("4 -> 3", "3 -> 4", "4 -> 5")] == [1] * 3
