"""What a process of the crew answers."""

from __future__ import annotations

import operator
import pickle

from benchmarks.network.member import _result


def answer(call: int, work: bytes) -> tuple[int, str, object]:
    return pickle.loads(_result(pickle.dumps((call, work))))


def test_an_answer_says_which_call_it_is_to() -> None:
    assert answer(3, pickle.dumps((operator.add, (1, 2)))) == (3, "", 3)


def test_what_goes_wrong_is_told_as_an_answer_to_the_same_call() -> None:
    for work, said in [
        (pickle.dumps((operator.truediv, (1, 0))), "ZeroDivisionError"),
        (b"cbenchmarks.network.nowhere\nf\n.", "ModuleNotFoundError"),
    ]:
        call, failure, result = answer(4, work)
        assert (call, result) == (4, None)
        assert said in failure
