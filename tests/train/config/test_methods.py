from __future__ import annotations

from dataclasses import replace

import pytest

from localsgd.errors import UserError
from localsgd.schedule.progress import Progress
from localsgd.train.config.methods import METHODS, Moments, method
from localsgd.train.config.run import Run

MOMENTS = Moments(
    switch=10,
    warmup_steps=6,
    warmup_shape="constant",
    period=5,
    alpha=0.3,
    waiting=0.05,
    cycle=12,
)


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("mini-batch", [1, 1, 1, 1]),
        ("local", [4, 4, 4, 4]),
        ("post-local", [1, 1, 1, 4]),
        ("local-warmup", [1, 1, 4, 4]),
        ("hierarchical", [4, 4, 4, 4]),
        ("hierarchical-post-local", [1, 1, 1, 4]),
        ("ef-sign", [1, 1, 1, 4]),
        ("batch-growth", [1, 1, 1, 4]),
        ("decreasing", [4, 2, 2, 1]),
        ("cyclic", [1, 1, 4, 2]),
        ("slowmo", [4, 4, 4, 4]),
    ],
)
def test_h_at_the_start_around_the_warmup_and_at_the_switch(name: str, lengths: list[int]) -> None:
    schedule = method(name).schedule(4, MOMENTS)
    assert [schedule(Progress(step)) for step in (0, 5, 6, 10)] == lengths


def test_every_method_says_what_it_reads() -> None:
    """A setting that is not named among `uses` changes nothing; one that is changes something."""
    others = {
        "local_steps": (5, MOMENTS),
        "switch": (4, replace(MOMENTS, switch=3)),
        "step_warmup": (4, replace(MOMENTS, warmup_steps=3)),
        "adapt_every": (4, replace(MOMENTS, period=2)),
        "qsr_alpha": (4, replace(MOMENTS, alpha=0.9)),
        "waiting": (4, replace(MOMENTS, waiting=0.5)),
        "lr_cycles": (4, replace(MOMENTS, cycle=10)),
    }
    for name, chosen in METHODS.items():
        usual = lengths(chosen.schedule(4, MOMENTS))
        for setting, (length, moments) in others.items():
            changed = lengths(chosen.schedule(length, moments)) != usual
            assert changed == (setting in chosen.uses), (name, setting)


def lengths(schedule) -> list[int]:
    """H at each step of a run whose rate and loss fall, and which waits half of the time."""
    memory: dict[str, float] = {}
    return [
        schedule(
            Progress(
                step,
                fraction=step / 100,
                learning_rate=0.2 * 0.8**step,
                loss=2.0 * 0.8 ** min(step, 4),
                seconds=2.0 * step,
                waited_seconds=1.0 * step,
                memory=memory,
            )
        )
        for step in range(24)
    ]


def test_what_a_method_presets_is_a_setting_of_a_run() -> None:
    for chosen in METHODS.values():
        assert set(chosen.preset) <= set(Run.__struct_fields__)


def test_unknown() -> None:
    with pytest.raises(UserError, match="unknown method 'post_local'; nearest: post-local"):
        method("post_local")
