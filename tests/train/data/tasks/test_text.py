from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from localsgd.errors import UserError
from localsgd.train.data.models.lstm import LSTM
from localsgd.train.data.tasks import wikitext
from localsgd.train.data.tasks.text import TextTask, count_segments

T = 4


def text_task(train: Tensor, test: Tensor, words: int = 9) -> TextTask:
    sizes = count_segments(len(train), T), count_segments(len(test), T)
    card = replace(
        wikitext.CARD,
        classes=words,
        input_shape=(T,),
        train_size=sizes[0],
        test_size=sizes[1],
    )
    return TextTask(card=card, train=train, test=test)


@pytest.fixture
def task() -> TextTask:
    return text_task(torch.arange(44) % 9, torch.randint(9, (270,)))


def test_a_target_is_the_next_token_and_segments_follow_one_another(task: TextTask) -> None:
    assert task.train_size == 10  # 43 tokens have a next one
    inputs, targets = task.train_batch(torch.tensor([0, 9, 1]), None)
    assert inputs.tolist()[0] == [0, 1, 2, 3]
    assert targets.tolist()[0] == [1, 2, 3, 4]
    assert inputs.tolist()[2] == [4, 5, 6, 7]
    assert targets.tolist()[1] == [(37 + i) % 9 for i in range(4)]
    assert text_task(torch.arange(41) % 9, task.test).train_size == 10
    assert text_task(torch.arange(40) % 9, task.test).train_size == 9


def test_a_subset_is_a_stretch_of_the_ring(task: TextTask) -> None:
    part = task.subset(7)
    first = next(i for i in range(10) if torch.equal(row(task, i), row(part, 0)))
    for index in range(7):
        assert torch.equal(row(part, index), row(task, (first + index) % 10))
    again = part.subset(3)
    assert again.train_size == 3
    assert any(torch.equal(row(again, 0), row(part, index)) for index in range(7))
    with pytest.raises(UserError, match="1 to 10 can"):
        task.subset(11)


def row(task: TextTask, index: int) -> Tensor:
    return task.train_batch(torch.tensor([index]), None)[0]


def model_of(task: TextTask) -> LSTM:
    torch.manual_seed(1)
    return LSTM(task.classes, layers=2, width=6).double().eval()


def test_judged_stream_by_stream_from_zeros(task: TextTask) -> None:
    """67 segments in 64 streams, three of which have two: by hand, each stream as one batch."""
    assert (task.test_size, task.pieces) == (67, 64)
    model = model_of(task)
    loss, correct, found = 0.0, 0, []
    for piece in range(64):
        start, end = T * (piece * 67 // 64), T * ((piece + 1) * 67 // 64)
        found.append((end - start) // T)
        with torch.no_grad():
            output = model(task.test[None, start:end])[0]
        target = task.test[start + 1 : end + 1]
        loss += F.cross_entropy(output, target, reduction="sum").item()
        correct += int((output.argmax(1) == target).sum())
    assert (sum(found), max(found)) == (67, 2)
    sums = task.judge(model, torch.arange(64)).tolist()
    assert sums == [pytest.approx(loss, rel=1e-12), correct, 67 * T]


def test_streams_may_be_judged_apart(task: TextTask) -> None:
    model = model_of(task)
    whole = task.judge(model, torch.arange(64))
    parts = [task.judge(model, some) for some in torch.arange(64).tensor_split(5)]
    torch.testing.assert_close(torch.stack(parts).sum(0), whole, rtol=1e-12, atol=0)
    assert torch.equal(task.judge(model, torch.arange(0)), torch.zeros(3).double())


def test_a_short_test_text_has_fewer_streams(task: TextTask) -> None:
    short = text_task(task.train, task.test[:15])
    assert (short.test_size, short.pieces) == (3, 3)
    assert short.judge(model_of(short), torch.arange(3))[2] == 12


def test_tokens_that_are_not_what_the_card_says_are_a_mistake(task: TextTask) -> None:
    with pytest.raises(ValueError, match="segments"):
        replace(task, train=task.test)


def test_a_model_without_a_state_to_carry_is_judged_segment_by_segment(task: TextTask) -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Embedding(9, 6), torch.nn.Linear(6, 9)).double()
    loss, correct, targets = task.judge(model, torch.arange(64)).tolist()
    x, y = task.test_batch(torch.arange(task.test_size))
    with torch.no_grad():
        output = model(x)
    assert loss == pytest.approx(y.numel() * task.loss(output, y).item(), rel=1e-12)
    assert (correct, targets) == (int(task.correct(output, y)), 67 * T)
