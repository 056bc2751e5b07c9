from __future__ import annotations

import pytest

from localsgd.train.config.complete import complete_run
from localsgd.train.config.learning_rate import Cosine, StepDecay
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import Run
from localsgd.train.data.tasks.cifar import CIFAR10_ENTRY


def test_every_boundary_by_hand() -> None:
    rate = StepDecay(start=1.0, peak=3.0, warmup_steps=4, decays=(10, 20), factor=0.5)
    rising = [rate(step) for step in range(6)]
    assert rising == [1.0, 1.5, 2.0, 2.5, 3.0, 3.0]
    assert [rate(step) for step in (9, 10, 19, 20, 1000)] == [3.0, 1.5, 1.5, 0.75, 0.75]
    assert [rate.decayed(step) for step in (0, 9, 10, 30)] == [False, False, True, True]


def test_without_warmup_or_decay() -> None:
    rate = StepDecay(start=1.0, peak=3.0, warmup_steps=0, decays=())
    assert [rate(0), rate(10**9)] == [3.0, 3.0]
    assert not rate.decayed(10**9)


def test_a_cosine_falls_from_the_end_of_its_warmup() -> None:
    """Half-way down at the middle of what is left after it, (12 + 4) / 2."""
    rate = Cosine(start=1.0, peak=3.0, warmup_steps=4, cycle=12)
    assert [rate(step) for step in range(5)] == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert rate(8) == pytest.approx(1.5, rel=1e-14)
    assert rate(6) == pytest.approx(1.5 * (1 + 0.5**0.5), rel=1e-14)  # cos(π/4)
    assert not rate.decayed(11)
    assert rate.decays == ()


def test_restarts_begin_at_the_peak_without_a_warmup() -> None:
    rate = Cosine(start=1.0, peak=3.0, warmup_steps=4, cycle=12, floor=1.0)
    assert rate(8) == pytest.approx(2.0, rel=1e-14)
    for cycle in (12, 24):
        assert rate(cycle) == 3.0
        assert rate(cycle + 6) == pytest.approx(2.0, rel=1e-14)
        assert rate(cycle + 3) == pytest.approx(2.0 + 0.5**0.5, rel=1e-14)
    assert 1.0 < rate(11) < 1.1


def test_a_warmup_that_fills_the_cycle() -> None:
    rate = Cosine(start=1.0, peak=3.0, warmup_steps=4, cycle=4)
    assert [rate(step) for step in (3, 4, 6)] == [2.5, 3.0, 1.5]


def paper(workers: int) -> Plan:
    """300 epochs of CIFAR-10 with B = 128 and a rate of 0.2 for one worker."""
    run = Run(task="cifar10", workers=workers, batch=128, epochs=300.0, lr=0.2, lr_batch=128)
    return Plan(complete_run(run, CIFAR10_ENTRY.card), 50_000)


def test_sixteen_workers_of_the_paper() -> None:
    plan = paper(16)
    rate = plan.learning_rate
    assert plan.batch == 2048
    assert plan.steps == 7324  # floor(300 * 50,000 / 2,048)
    assert rate.warmup_steps == 123  # the first step at or after 5 epochs = 122.07 steps
    assert rate.decays == (3662, 5493)
    assert rate(0) == 0.2
    assert rate(1) == pytest.approx(0.2 + 3.0 / 123, abs=1e-15)
    assert rate(122) == pytest.approx(3.2 - 3.0 / 123, abs=1e-15)
    assert rate(123) == rate(3661) == 3.2
    assert rate(3662) == rate(5492) == pytest.approx(0.32, abs=1e-15)
    assert rate(5493) == rate(7323) == pytest.approx(0.032, abs=1e-15)


def test_a_single_worker_of_the_paper_has_no_warmup() -> None:
    plan = paper(1)
    rate = plan.learning_rate
    assert plan.steps == 117_187  # floor(300 * 390.625)
    assert rate.warmup_steps == 0
    assert rate.decays == (58_594, 87_891)  # the first steps past 50 % and 75 % of them
    assert [rate(0), rate(58_593)] == [0.2, 0.2]
    assert [rate(58_594), rate(87_890)] == pytest.approx([0.02, 0.02], abs=1e-15)
    assert [rate(87_891), rate(117_186)] == pytest.approx([0.002, 0.002], abs=1e-15)
