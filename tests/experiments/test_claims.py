"""The rule of verdicts, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.claims import OPEN, claimed, conclude, corrected, counted_once, interest, verdict
from experiments.families import FAMILIES
from experiments.scales import SCALES
from experiments.study import Claim, Job, Record, Scale
from localsgd.basics.paired import Test, evidence, holm, paired
from localsgd.errors import UserError
from tests.experiments.jobs import Square

ABOVE = (1.0, 1.1, 0.9, 1.05, 0.95)
ACROSS = (-1.0, 1.1, 0.9, 0.2, -0.4)


class All:
    """Every job is done, but for one."""

    def __init__(self, scale: Scale = SCALES["small"], missing: Job | None = None) -> None:
        self.scale, self.missing = scale, missing

    def of(self, job: Job) -> Record | None:
        return None if job == self.missing else {}


def concluded(differences: tuple[float, ...], **settings: object) -> Claim:
    records = settings.pop("records", All())
    return conclude(
        records,  # type: ignore[arg-type]
        "It is.",
        "here",
        differences,
        "one less another",
        [Square(1), Square(2)],
        **{"family": "local", **settings},  # type: ignore[arg-type]
    )


def test_one_difference_decides_nothing_and_none_has_no_mean() -> None:
    found = paired([3.0])
    assert math.isnan(found.low)
    assert math.isnan(found.deviation)
    assert verdict(Test((3.0,))) == OPEN
    assert "too few" in evidence(found)
    with pytest.raises(UserError, match="one for each seed"):
        paired([])


def test_a_claim_holds_fails_or_stays_open() -> None:
    assert verdict(Test(ABOVE, *claimed(1))) == "reproduced"
    assert verdict(Test(ABOVE, *claimed(-1))) == "not reproduced"
    assert verdict(Test(ACROSS, *claimed(1))) == verdict(Test(ACROSS, *claimed(-1))) == OPEN


def test_fewer_than_five_seeds_decide_nothing() -> None:
    assert verdict(Test(ABOVE[:4])) == OPEN
    found = concluded(ABOVE[:3])
    assert found.state == OPEN
    assert found.reservation == "3 seeds are planned, and a verdict takes 5"
    assert found.evidence.endswith(f"n = 3; {found.reservation}")


def test_a_margin_forgives_that_much() -> None:
    """-0.34 to -0.26 is no worse within 0.5, and worse within 0.1."""
    below = (-0.3, -0.32, -0.28, -0.31, -0.29)
    assert verdict(Test(below, *claimed(1))) == "not reproduced"
    assert verdict(Test(below, *claimed(1, 0.5))) == "reproduced"
    assert verdict(Test(below, *claimed(1, 0.1))) == "not reproduced"
    assert verdict(Test(below, *claimed(1, 0.3))) == OPEN
    assert verdict(Test(below, *claimed(-1, -0.2))) == "reproduced"


def test_to_be_equal_takes_both_bounds() -> None:
    below = (-0.3, -0.32, -0.28, -0.31, -0.29)
    assert verdict(Test(below, -0.5, 0.5)) == "reproduced"
    assert verdict(Test(below, -0.1, 0.1)) == "not reproduced"
    assert verdict(Test(below, -0.5, -0.29)) == OPEN
    wide = Test(below, -0.5, 0.5)
    assert wide.p == Test(below, -0.5).p > Test(below, -math.inf, 0.5).p


def test_differences_without_width_are_left_to_the_signs() -> None:
    """Signs of five equal differences can't reach 5 %; those of six can."""
    assert Test((2.0,) * 5).p == 2 / 2**5
    assert verdict(Test((2.0,) * 5)) == OPEN
    assert verdict(Test((2.0,) * 6)) == "reproduced"
    assert Test((0.0,) * 6).p == 1
    rounded = tuple(0.82 - 0.8 + 1e-17 * n for n in range(5))
    assert Test(rounded).p == 2 / 2**5


def test_signs_take_a_verdict_of_t_back() -> None:
    """One of five the other way: t is sure of it at 5 %, the signs are not at their least."""
    mixed = (-0.01, 1.0, 1.1, 0.9, 1.2)
    assert Test(mixed).p < 0.05
    assert Test(mixed).flips > 2 / 2**5
    assert verdict(Test(mixed)) == OPEN


def test_a_family_is_corrected_and_what_is_missing_counts() -> None:
    found = [concluded(ABOVE), concluded(tuple(x - 0.88 for x in ABOVE))]
    assert [one.state for one in found] == ["reproduced", "reproduced"]
    missing = concluded((), records=All(missing=Square(2)), seeds=5)
    assert missing.evidence == "one less another: 1 of 2 runs are done"
    other = concluded(ABOVE, family="signs")
    judged = corrected([*found, missing, missing, other])
    assert [one.state for one in judged] == ["reproduced", OPEN, OPEN, OPEN, "reproduced"]
    p = found[1].test.p  # type: ignore[union-attr]
    assert f"p = {p:.2g}, among 4 claims: {3 * p:.2g}, sign" in judged[1].evidence
    assert "among" not in judged[4].evidence


def test_claims_that_never_decide_are_no_part_of_a_family() -> None:
    beside = [concluded(ABOVE[:3]), concluded(ABOVE, reservation="untuned")]
    assert [one.state for one in beside] == [OPEN, OPEN]
    (judged, *rest) = corrected([concluded(ABOVE), *beside])
    assert "claims" not in judged.evidence
    assert rest == beside
    two = corrected([concluded(ABOVE), concluded(ACROSS), *beside])
    assert "among 2 claims that can be decided, of 4: " in two[0].evidence


@pytest.mark.parametrize("gone", [(), (math.nan,), (math.inf,), (-math.inf,)])
def test_a_seed_without_a_result_makes_no_other_claim_easier(gone: tuple[float, ...]) -> None:
    """It decides nothing itself, and is one of its family as before."""
    lacking = concluded((*ABOVE[:4], *gone), seeds=5)
    assert (lacking.state, lacking.test, lacking.reservation) == (OPEN, None, "")
    assert lacking.evidence.endswith("4 of 5 seeds have a result")
    close = tuple(x - 0.88 for x in ABOVE)
    (judged, *_) = corrected([concluded(close), lacking, lacking, lacking])
    assert judged.state == OPEN
    assert concluded(close).state == "reproduced"
    for order in ([lacking, concluded(ABOVE)], [concluded(ABOVE), lacking]):
        assert {one.state for one in corrected(order)} == {"reproduced", OPEN}


def test_no_seed_with_a_result() -> None:
    lacking = concluded((math.nan,) * 5, seeds=5)
    assert lacking.state == OPEN
    assert lacking.evidence == "one less another: 0 of 5 seeds have a result"


def test_a_p_that_is_none_counts_as_one() -> None:
    assert holm([math.nan, 0.001, 0.002]) == [1.0, 0.003, 0.004]
    assert holm([0.002, 0.001, math.nan]) == [0.004, 0.003, 1.0]


def test_more_runs_never_take_a_verdict_back() -> None:
    first = concluded(ABOVE)
    missing = concluded((), records=All(missing=Square(2)), seeds=5)
    rng = np.random.default_rng(0)
    for _ in range(20):
        later = concluded(tuple(rng.normal(0.5, 0.5, 5)))
        before, after = corrected([first, missing])[0], corrected([first, later])[0]
        assert before.state == "reproduced" == after.state


def test_a_smoke_run_decides_nothing() -> None:
    found = concluded(ABOVE, records=All(SCALES["smoke"]))
    assert (found.state, found.reservation) == (OPEN, "a smoke run decides nothing")


def test_what_is_modelled_is_consistent_at_best() -> None:
    assert concluded(ABOVE, kind="modelled").state == "consistent"
    assert concluded(ABOVE, kind="modelled", bounds=claimed(-1)).state == "not consistent"


def test_one_interval_gives_one_verdict() -> None:
    better, no_worse = concluded(ABOVE, subject="a"), concluded(ABOVE, subject="a")
    free = concluded(ABOVE)
    kept, again = counted_once([better, free, no_worse, free])
    assert kept == [better, free, free]
    assert again == [(no_worse, better)]


def test_the_smallest_difference_of_interest_is_named_and_decides_nothing() -> None:
    small = tuple(0.1 * x for x in ABOVE)
    assert interest(Test(small), 0.2, " points") == "+0.2 points, excluded"
    assert interest(Test(ABOVE), 0.2, " points") == "+0.2 points"
    assert interest(Test(small, *claimed(-1)), 0.2) == "-0.2, excluded"
    assert interest(Test(small, -0.5), None, " points") == "-0.5 points"
    found = concluded(small, least=0.2, unit=" points")
    assert found.state == "reproduced"
    assert "smallest of interest +0.2 points, excluded" in found.evidence


def test_reasons_are_of_known_scales() -> None:
    scales = {*SCALES, "medium"}
    assert all(set(one.why) <= scales for one in FAMILIES.values())
