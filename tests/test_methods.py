from __future__ import annotations

import pytest

from localsgd.errors import UserError
from localsgd.methods import METHODS, Moments, method
from localsgd.schedule import Progress

MOMENTS = Moments(switch=10, warmup_steps=6, warmup_shape="constant")


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("mini-batch", [1, 1, 1, 1]),
        ("local", [4, 4, 4, 4]),
        ("post-local", [1, 1, 1, 4]),
        ("local-warmup", [1, 1, 4, 4]),
        ("hierarchical", [4, 4, 4, 4]),
        ("hierarchical-post-local", [1, 1, 1, 4]),
    ],
)
def test_h_at_the_start_around_the_warmup_and_at_the_switch(name: str, lengths: list[int]) -> None:
    schedule = method(name).schedule(4, MOMENTS)
    assert [schedule(Progress(step)) for step in (0, 5, 6, 10)] == lengths


def test_every_method_says_what_it_reads() -> None:
    """A setting that is not named among `uses` changes nothing; one that is changes something."""
    others = {
        "local_steps": (5, MOMENTS),
        "switch": (4, Moments(3, 6, "constant")),
        "step_warmup": (4, Moments(10, 3, "constant")),
    }
    for name, chosen in METHODS.items():
        usual = lengths(chosen.schedule(4, MOMENTS))
        for setting, (length, moments) in others.items():
            changed = lengths(chosen.schedule(length, moments)) != usual
            assert changed == (setting in chosen.uses), (name, setting)


def lengths(schedule) -> list[int]:
    return [schedule(Progress(step)) for step in range(12)]


def test_unknown() -> None:
    with pytest.raises(UserError, match="unknown method 'post_local'; nearest: post-local"):
        method("post_local")
