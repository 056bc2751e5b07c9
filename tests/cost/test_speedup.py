"""Speed-ups of runs from their phases, all that the paper prints, and the clock of its times."""

from __future__ import annotations

import pytest

from experiments import clock as paper
from experiments.studies.speedup import Setting, settings
from localsgd.cost.speedup import Clock, of_local_steps, of_run, price_from
from localsgd.errors import UserError

TABLE = [(one, h) for one in settings() for h in one.whole if h > 1]


@pytest.mark.parametrize(("network", "h"), TABLE, ids=lambda value: getattr(value, "name", value))
def test_whole_runs_follow_from_their_second_phase(network: Setting, h: int) -> None:
    """The paper's twelve entries to 0.01."""
    derived = of_run([(0.5, network.second[1]), (0.5, network.second[h])])
    assert abs(derived - network.whole[h]) <= 0.01
    # It is the half that decides: another share of the run misses.
    other = of_run([(0.45, network.second[1]), (0.55, network.second[h])])
    assert abs(other - network.whole[h]) > 0.05


def test_there_are_twelve() -> None:
    assert len(TABLE) == 12
    assert all(one.whole[1] == one.second[1] for one in settings())


def test_phases_by_hand() -> None:
    assert of_run([(1.0, 7.0)]) == 7.0
    assert of_run([(0.5, 4.0), (0.25, 8.0), (0.25, 16.0)]) == 1 / (0.125 + 0.03125 + 0.015625)


def test_local_steps_save_syncs_and_no_more() -> None:
    price = price_from(16, 8.0)
    assert price == 1.0
    assert [of_local_steps(16, price, h) for h in (1, 3, 15)] == [8.0, 12.0, 15.0]


def test_the_clock_of_the_paper_s_times() -> None:
    clock = paper.fitted()
    assert clock.compute == pytest.approx(7.73, abs=0.005)
    assert clock.syncing == pytest.approx(12.30, abs=0.005)
    errors = clock.errors({h: paper.minutes()[h] for h in (1, 2, 4, 8, 16, 32)})
    assert max(map(abs, errors.values())) < 0.0311
    step = 60 / paper.STEPS
    assert clock.compute * step == pytest.approx(0.062, abs=5e-4)
    assert clock.syncing * step == pytest.approx(0.098, abs=5e-4)


def test_fit_finds_the_clock_that_made_the_times() -> None:
    clock = Clock(3.0, 5.0)
    found = Clock.fit({h: clock.time(h) for h in (1, 2, 7, 50)})
    assert (found.compute, found.syncing) == pytest.approx((3.0, 5.0), abs=1e-12)


def test_refuses_what_cannot_be() -> None:
    with pytest.raises(UserError, match=r"sum to 0.9; they must sum to 1"):
        of_run([(0.5, 1.0), (0.4, 1.0)])
    with pytest.raises(UserError, match="numbers > 0"):
        of_run([(1.0, 0.0)])
    with pytest.raises(UserError, match="17 on 16 workers is beyond this model"):
        price_from(16, 17.0)
    with pytest.raises(UserError, match="times of 1 H give no line"):
        Clock.fit({1: 2.0})
