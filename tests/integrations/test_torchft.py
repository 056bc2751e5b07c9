"""`LocalSGD` over a `torchft.Manager`: what joins and leaves, and what is refused."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
import torch

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'localsgd[torchft]'")

from localsgd.reduce import CompressedMean, Sign
from tests.integrations.fleet import Plan, fleet
from tests.integrations.fleet_by_hand import check_conserved, one_result

NAMES = ("w0", "w1", "w2", "w3")


def test_error_memory_is_conserved_whoever_comes_and_goes() -> None:
    """K = 4 -> 3 (killed) -> 4 (joined) -> 3 (left in order), with one bit a scalar."""
    options = {"local_steps": 4, "reducer": CompressedMean(Sign(), way="two-phase")}
    plan = {"options": options, "syncs": 10_000, "pause": 0.01, "inner": {"momentum": 0.0}}
    with fleet(at_least=2) as workers:
        crew = workers.start(**{name: Plan(seed=i, **plan) for i, name in enumerate(NAMES)})
        workers.until(lambda: workers.sync >= 4)
        crew[2].signal(signal.SIGKILL)
        workers.until(lambda: workers.workers_now() == 3)
        workers.start(w4=Plan(seed=9, **plan))
        workers.until(lambda: workers.workers_now() == 4)
        joined = workers.sync
        workers.until(lambda: workers.sync >= joined + 3)
        crew[0].say("leave")
        workers.until(lambda: workers.workers_now() == 3)
        workers.end()
        found = check_conserved(workers.workers)
        told = [c for c in found[max(found)].changes if "K = 0" not in c]
        assert len(told) == 3
        for text, name, what in zip(
            told,
            ("w2", "w4", "w0"),
            ("its error memory (norm", "joined", "is with the others"),
            strict=True,
        ):
            assert name in text
            assert what in text
        assert torch.stack([s.memory.abs().max() for s in found.values() if s.sync > 1]).min() > 0


def test_a_newcomer_goes_on_from_what_the_others_have() -> None:
    """Anchor, outer state, momenta, place in the run; and who does not fit in is refused."""
    options = {"local_steps": 4, "outer": "diloco", "not_finite": "leave_out"}
    plan = {"options": options, "syncs": 10_000, "pause": 0.01, "inner": {"momentum": 0.9}}
    managed = {"managed": {"workers": 2}}
    with fleet(at_least=2) as workers:
        spoiled = Plan(seed=1, spoiled_at=10, **plan, **managed)
        w0, w1 = workers.start(w0=Plan(seed=0, **plan, **managed), w1=spoiled)
        workers.until(lambda: len(w0.seen) >= 5)
        assert {s.sync: s.averaged for s in w0.seen}[4] == ["w0"]  # steps 9 to 12
        assert {s.sync: s.averaged for s in w0.seen}[5] == ["w0", "w1"]

        joined, other = workers.start(
            w2=Plan(seed=2, **plan, **managed), w3=Plan(length=41, **plan, **managed)
        )
        workers.until(lambda: other.end is not None)
        assert other.end is not None
        assert "UserError: this worker has another model or other settings" in other.end[1]
        workers.until(lambda: len(joined.seen) > 3)
        found = one_result(workers.workers)
        first = joined.seen[0]
        there = [s.momentum for w in (w0, w1) for s in w.seen if s.sync == first.sync]
        assert any(first.momentum.equal(momentum) for momentum in there)
        assert [found[s].step for s in range(1, 5)] == [0, 4, 8, 12]  # batches of K = 2
        later = found[first.sync + 1]
        assert later.given - first.given == 12
        assert later.step == later.given // 2

        before = workers.sync
        workers.darken()
        workers.light()
        workers.until(lambda: workers.sync >= before + 3)
        one_result(workers.workers)
        before = workers.sync
        for worker in (w0, w1, joined):
            worker.say(timedelta(seconds=5))
        workers.until(lambda: all(w.end or w.seen[-1].sync > before + 1 for w in (w0, w1, joined)))
        workers.darken()
        workers.until_all_end()
        for worker in (w0, w1, joined):
            assert worker.end is not None
            assert worker.end[0] == "raised"
            assert "PeerLost: the lighthouse of torchft has not said within 5 s" in worker.end[1]
