from __future__ import annotations

import pytest

from localsgd.train.launch import check_same
from localsgd.train.launch.equal_arguments import _message

pytestmark = pytest.mark.timeout(120)


def test_every_rank_raises_the_same_error(zygote, torchrun):
    first = "seed=1\nlearning_rate=0.1\nworkers=8"
    other = "seed=1\nlearning_rate=0.2\nworkers=8\ntask=digits"
    outcome = zygote.run("same", torchrun(3), first, other, first)
    assert outcome.statuses == [0, 0, 0], outcome.err
    message = (
        "rank 1 was started with a different configuration from rank 0: "
        "learning_rate 0.1 / 0.2, task missing / digits (rank 0 / rank 1)\n"
    )
    assert outcome.out == [message] * 3


def test_bytes_and_many_differences():
    assert _message("model", [1, 3], None) == (
        "ranks 1, 3 were started with a different model from rank 0: start all of them alike"
    )
    texts = ["", "a=1\nb=2\nc=3\nd=4"]
    assert "c missing / 3 and 1 more (rank 0 / rank 1)" in _message("plan", [1], texts)


def test_one_process_has_nothing_to_compare():
    check_same("configuration", "seed=1")
