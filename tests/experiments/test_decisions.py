"""When a claim is decided: by all runs that were planned, with all that came of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from experiments import flat, studies
from experiments.arms import UNTUNED, arm, claim
from experiments.claims import corrected
from experiments.landscape import claims as landscape
from experiments.registry import entry
from experiments.report.content import PENDING, Content, configurations
from experiments.scales import SCALES
from experiments.studies import all_reduce, arms, grids, imagenet, noise, two_workers, variants
from experiments.study import Claim, Job, Record, Scale

SMALL = SCALES["small"]
FIVE = replace(SMALL, seeds=5, main_seeds=5)
OPEN = "not decidable at this scale"


@dataclass
class Made:
    """Records that a function makes; `None` is a run that is not done."""

    make: Callable[[Any], Record | None]
    scale: Scale = FIVE

    def of(self, job: Job) -> Record | None:
        return self.make(job)


def state(found: Claim, records: Made) -> str:
    """As the report has it."""
    return Content("small", False, (), configurations(found.jobs, records), {}).state(found)


def accuracy(job: Any) -> Record:
    """Local SGD is 2 points better, give or take."""
    gain = (0.02 + 1e-4 * job.run.seed) * (job.run.method == "local")
    return {"test_accuracy": 0.8 + gain + 0.001 * job.run.seed}


def compared(records: Made, **settings: Any) -> Claim:
    better = arm(FIVE, "local", main=True, method="local", local_steps=(4,))
    worse = arm(FIVE, "mini-batch", main=True, method="mini-batch")
    return claim(records, "Better.", "here", better, worse, family="local", **settings)


def jittered(job: Any) -> Record:
    record = accuracy(job)
    return {"test_accuracy": record["test_accuracy"] + 1e-4 * (job.run.seed % 2) * len(job.title)}


@pytest.mark.parametrize("done", range(6))
def test_a_claim_waits_for_all_planned_seeds(done: int) -> None:
    """Five seeds decide; what the first ones say is not told, so that nobody can stop at them."""
    local = Made(lambda job: accuracy(job) if job.run.seed < done else None)
    one_sided = Made(
        lambda job: jittered(job) if job.run.seed < done or job.run.method == "local" else None
    )
    for records in (local, one_sided):
        found = compared(records)
        assert state(found, records) == ("reproduced" if done == 5 else PENDING)
        assert found.state == ("reproduced" if done == 5 else OPEN)
        assert ("runs are done" in found.evidence) == (done < 5)
    assert f"{2 * done} of 10 runs" in compared(local).evidence or done == 5


def test_a_run_without_a_result_does_not_vanish() -> None:
    records = Made(lambda job: {"test_accuracy": None} if job.run.seed == 4 else accuracy(job))
    found = compared(records)
    assert state(found, records) == OPEN
    assert "n = 4; smallest of interest +0.20 points; 4 of 5 seeds have a result" in found.evidence


def test_flatness_waits_for_all_planned_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    one = landscape.Claim("it is", "here", lambda records: -1.0 - 0.1 * records[0]["seed"], -1)
    monkeypatch.setattr(landscape, "all_claims", lambda: [one])
    for done, said in ((3, PENDING), (6, "reproduced")):
        records = Made(
            lambda job, done=done: {"records": [{"seed": job.seed}]} if job.seed < done else None
        )
        (found,) = flat.Flat.of(records).claims(lambda claim: True, "here")
        assert state(found, records) == said
        assert found.evidence.endswith("3 of 6 runs are done") == (done == 3)


def curve(at: float, final: float, syncs: int = 1000) -> Record:
    """It is at 84 % after so many of 24 epochs, and ends elsewhere."""
    rows = [[at, 0.84, 0.1], [24, final, 0.1]] if final >= 0.84 else [[24, final, 0.1]]
    return {"test_accuracy": final, "steps": 1000, "syncs": [syncs], "curve": rows}


def reaching(*missing: tuple[int, int, int]) -> Made:
    """H = 8 is four times as fast as H = 1 at K = 16, where it gets there; `missing` do not."""

    def make(job: Any) -> Record:
        k, h = job.run.workers, (job.run.local_steps or (1,))[0]
        if (k, h, job.run.seed) in missing:
            return curve(24, 0.5)
        return curve((6 if h > 1 else 20) + 0.1 * job.run.seed, 0.85, 1000 // h)

    return Made(make)


def test_runs_that_never_arrive_do_not_vanish() -> None:
    """A faster arm of which a seed misses the target is not faster, and H = 1 that does is no
    proof of it.
    """
    for missing, said in (
        ((), None),
        (((16, 8, 2),), "reached by 4 of 5 (5 of 5)"),
        (((16, 1, 1), (16, 1, 2)), "reached by 5 of 5 (3 of 5)"),
        (((16, 8, 2), (16, 1, 1), (16, 1, 2)), "reached by 4 of 5 (3 of 5)"),
    ):
        records = reaching(*missing)
        found = grids.page_of_time(records).claims[0]
        assert state(found, records) == (OPEN if said else "consistent")
        assert (said or "n = 5") in found.evidence


def test_steps_of_runs_that_never_arrive_do_not_vanish() -> None:
    for missing, said in ((), None), (((32, 2, 0),), "reached by 4 of 5 (5 of 5)"):
        records = reaching(*missing)
        (found,) = grids.page_of_steps(records).claims
        assert state(found, records) == (OPEN if said else "reproduced")
        assert (said or "n = 5") in found.evidence


def test_a_mean_says_how_many_it_is_of() -> None:
    page = grids.page_of_time(reaching((16, 8, 2)))
    (row,) = [row for row in page.tables[0].rows if row[:2] == [16, 8]]
    assert row[2] == "4 of 5"
    assert str(row[3]).endswith("(4 of 5)")


def test_the_target_is_part_of_what_is_planned() -> None:
    """It is the mean of K = 1, and moves while that is not done."""
    whole = reaching()
    records = Made(
        lambda job: None if job.run.workers == 1 and job.run.seed == 2 else whole.make(job)
    )
    for page in (grids.page_of_time(records), grids.page_of_steps(records)):
        assert {state(one, records) for one in page.claims} == {PENDING}


def counted(job: Any) -> Record:
    """A run of 1,000 steps, with a sync after every H of them."""
    syncs = 1000 // (job.run.local_steps or (1,))[0]
    curve = [[1, 0.8, 1]]
    counts = {"steps": 1000, "syncs": [syncs], "bytes": [syncs], "curve": curve}
    return {"test_accuracy": 0.8, **counts}


def test_a_clock_fitted_to_the_paper_confirms_nothing_of_it() -> None:
    """A sync of two workers costs 0.4 steps, one of 32 two of them."""
    records = Made(counted)
    two = two_workers.page(records).claims[-1]
    many = imagenet.page_of_local(records).claims[0]
    for found, said in ((two, "1.36"), (many, "2.39")):
        assert (state(found, records), found.test) == (OPEN, None)
        assert f"can't confirm it (it says {said})" in found.evidence
    assert corrected([two, many]) == [two, many]


def test_measured_steps_on_a_modelled_clock_have_one() -> None:
    found = grids.page_of_time(reaching()).claims[0]
    assert "modelled seconds" in found.evidence
    assert "95 % interval" in found.evidence


def test_an_untuned_baseline_that_the_paper_tunes_decides_nothing() -> None:
    """The figures are told all the same; once the rate is tuned here, they decide."""
    records = Made(accuracy)
    by = variants.arms(FIVE, 16, 8)
    for sign in (-1, 1):
        found = compared(records, sign=sign, paper_tunes=[by["huge"]])
        assert state(found, records) == OPEN
        assert found.evidence.endswith(f"; {UNTUNED}")
        assert "+2.02 points, 95 % interval +2.00 to +2.04, n = 5" in found.evidence
    tuned = replace(by["huge"], tuned=True)
    assert state(compared(records, paper_tunes=[tuned]), records) == "reproduced"


def test_which_claims_rest_on_a_baseline_that_the_paper_tunes() -> None:
    """Those between arms of different rates; post-local SGD shares the rate it is compared with."""
    records = Made(lambda job: {**counted(job), **jittered(job)})
    for name, count in (
        ("arms", 2),
        ("signs", 1),
        ("votes", 1),
        ("variants", 2),
        ("same-batch", 8),
        ("nets", 6),
        ("lstm", 1),
    ):
        claims = studies.studies()[entry(name).label].page(records).claims
        resting = [one for one in claims if UNTUNED in one.reservation]
        assert len(resting) == count, name
        assert {state(one, records) for one in resting} <= {OPEN}


def test_a_baseline_that_is_tuned_here_decides() -> None:
    """Local SGD wins against the best rate too."""
    scale = replace(FIVE, tunes=True)
    records = Made(lambda job: {**counted(job), **accuracy(job)}, scale)
    found = [one for one in variants.claims(records) if "the same effective" in one.sentence]
    assert {state(one, records) for one in found} == {"reproduced"}
    assert all("rate x" in one.evidence for one in found)


def test_the_best_noise_is_chosen_among_all() -> None:
    """While one run is missing, it might be of the best; its arm is part of what is compared."""

    def make(job: Any) -> Record:
        lost = (400 + job.run.seed) * (job.run.noise or 0)
        gained = (0.01 + 1e-4 * job.run.seed) * (job.run.method == "post-local")
        return {**counted(job), "test_accuracy": 0.8 - lost + gained}

    weakest = noise.noisy(FIVE, {})[1e-6, 0.5].jobs
    whole, part = Made(make), Made(lambda job: None if job in weakest[1:] else make(job))
    for records, said in ((whole, "reproduced"), (part, PENDING)):
        page = noise.page(records)
        assert [state(one, records) for one in page.claims] == [said, said]
        for one in page.claims:
            assert {*weakest} <= {*one.jobs}
            assert len({*one.jobs}) == len(one.jobs) == 4 * 5 + 5
        marked = [row[0] for row in page.tables[0].rows[2:] if row[-1]]
        assert marked == (["noise 1e-06 / (1 + t)^0.5"] if records is whole else [])


@pytest.mark.parametrize(
    ("cores", "said", "words"),
    [
        (2, OPEN, "2 cores here, which more processes share"),
        (3, "reproduced", "3 less 2 processes, repeats: +1"),
        (64, "reproduced", "4 less 2 processes, repeats: +2"),
    ],
)
def test_processes_that_share_cores_decide_nothing(
    cores: int, said: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    records = Made(
        lambda job: {"times": [job.processes * (1 + 1e-3 * n) for n in range(job.repeats)]}
    )
    (found,) = all_reduce.page(records).claims
    assert state(found, records) == said
    assert words in found.evidence
    missing = Made(lambda job: None)
    (found,) = all_reduce.page(missing).claims
    assert state(found, missing) == (PENDING if cores > 2 else OPEN)


def test_a_tuned_baseline_is_not_where_post_local_sgd_comes_from() -> None:
    for tunes, words in (
        (False, "mini-batch SGD that it goes on from"),
        (True, "tuned mini-batch"),
    ):
        records = Made(lambda job: {**counted(job), **accuracy(job)}, replace(FIVE, tunes=tunes))
        said = [one.sentence for one in variants.claims(records) if "mini-batch" in one.sentence]
        assert sum(words in one for one in said) == 2
        a2 = "the large batch (A2) at its tuned rate" if tunes else "(A2) that it goes on from"
        assert sum(a2 in one.sentence for one in arms.page(records).claims) == 1
