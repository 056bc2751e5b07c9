"""Syncs of a run, against the rounds that a run takes."""

from __future__ import annotations

import pytest

from localsgd.cost import Syncs, syncs
from localsgd.errors import UserError
from localsgd.schedule.fixed import every
from localsgd.schedule.progress import Progress
from localsgd.schedule.rounds import rounds


def counted(samples: int, joint_batch: int, local_steps: int, block_steps: int) -> Syncs:
    """The same by walking through the rounds; the last one may be cut short and still
    synchronises.
    """
    counts, step = [0, 0], 0

    def progress() -> Progress:
        return Progress(step=step)

    for taken, depth, _ in rounds([every(local_steps), every(block_steps)], progress):
        step += taken
        over = step * joint_batch >= samples
        counts[1 if over else depth - 1] += 1
        if over:
            return Syncs(*counts)
    raise AssertionError


@pytest.mark.parametrize("samples", [1, 95, 96, 97, 1000])
@pytest.mark.parametrize(("local_steps", "block_steps"), [(1, 1), (4, 1), (1, 4), (2, 3)])
def test_equal_the_rounds_of_a_run(samples: int, local_steps: int, block_steps: int) -> None:
    expected = counted(samples, 2 * 3, local_steps, block_steps)
    assert syncs(samples, 2, 3, local_steps, block_steps) == expected


def test_within_sixteen_steps_as_the_paper_counts_them() -> None:
    inside = [syncs(16, 1, 1, h, 16 // h) for h in (1, 2, 4, 8, 16)]
    assert [count.inside for count in inside] == [15, 7, 3, 1, 0]
    assert {count.across for count in inside} == {1}


def test_whole_numbers_stay_exact() -> None:
    assert syncs(2**60 + 1, 1, 1, 1).across == 2**60 + 1


def test_refuses_what_is_no_count() -> None:
    with pytest.raises(UserError, match=r"H\^b = 0 is out of range; give a whole number >= 1"):
        syncs(16, 1, 1, 1, 0)
