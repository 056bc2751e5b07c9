from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from localsgd.train.data.models.initial import initialise
from localsgd.train.data.models.lstm import LSTM, Tied

WORDS = 7


def net(streams: int = 0, *, tied: bool = False, dropout: float = 0.0) -> LSTM:
    model = LSTM(WORDS, layers=2, width=5, tied=tied).double()
    model.dropout.p = dropout
    model.carry(streams)
    return model


def tokens(streams: int, count: int) -> Tensor:
    return torch.randint(WORDS, (streams, count))


@pytest.mark.parametrize("tied", [False, True])
def test_segments_that_are_carried_are_one_text(tied: bool) -> None:
    model, text = net(streams=3, tied=tied), tokens(3, 12)
    parts = torch.cat([model(part) for part in text.split(4, dim=1)], 1)
    whole = copy.deepcopy(model).eval()(text)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-14)
    model.carry(3)
    assert not torch.allclose(model(text[:, 8:]), whole[:, 8:])  # zeros are another start


def test_a_stream_has_its_row() -> None:
    model = net(streams=2)
    text = tokens(2, 6)
    model(text[:, :3])
    alone = net(streams=1)
    alone.load_state_dict(model.state_dict())
    alone(text[1:, :3])
    expected = alone(text[1:, 3:])
    torch.testing.assert_close(model(text[:, 3:])[1:], expected, rtol=1e-12, atol=1e-14)


def test_no_gradient_flows_into_what_is_carried() -> None:
    model, text = net(streams=2), tokens(2, 4)
    model(text)
    assert not model.outputs.requires_grad
    start = model.outputs.clone(), model.cells.clone()
    model(text).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.advance(text, start)[0].sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-12, atol=1e-14)


def test_evaluation_starts_from_zeros_and_leaves_what_is_carried() -> None:
    model, text = net(streams=2), tokens(2, 4)
    fresh = model.eval()(text)
    model.train()(text)
    before = model.outputs.clone(), model.cells.clone()
    assert before[0].abs().sum() > 0
    assert torch.equal(model.eval()(text), fresh)
    assert model(tokens(5, 2)).shape == (5, 2, WORDS)  # any number of streams
    assert torch.equal(model.outputs, before[0])
    assert torch.equal(model.cells, before[1])


def test_without_streams_every_batch_starts_from_zeros() -> None:
    model, text = net(), tokens(4, 3)
    assert torch.equal(model(text), model(text))


def test_what_is_carried_is_in_the_buffers_and_not_in_the_state_dict() -> None:
    model = net(streams=3)
    shapes = {name: tuple(buffer.shape) for name, buffer in model.named_buffers()}
    assert shapes == {"outputs": (2, 3, 5), "cells": (2, 3, 5)}
    assert not {"outputs", "cells"} & model.state_dict().keys()
    memory = model.outputs.data_ptr()
    model(tokens(3, 2))
    assert model.outputs.data_ptr() == memory  # filled, never replaced


def test_dropout_is_on_the_output_of_the_last_layer_alone() -> None:
    model, text = net(streams=1, dropout=0.999_999), tokens(1, 30)
    assert model.lstm.dropout == 0
    torch.manual_seed(0)
    dropped = model(text)
    bias = model.get_parameter("head.bias")
    assert torch.equal(dropped, bias.expand_as(dropped))
    assert model.outputs.abs().min() > 0


def test_tied_weights_are_one_parameter() -> None:
    model = net(tied=True)
    assert isinstance(model.head, Tied)
    assert [n for n, p in model.named_parameters() if p.shape[0] == WORDS] == [
        "embedding.weight",
        "head.bias",
    ]
    with torch.no_grad():
        model.embedding.weight.zero_()
    assert (model(tokens(2, 2)) == 0).all()


def test_where_it_starts() -> None:
    model = LSTM(500, layers=1, width=40)
    initialise(model)
    embedding = model.embedding.weight
    assert 0.099 < embedding.abs().max() <= 0.1
    assert model.get_parameter("head.weight").std().item() == pytest.approx(0.01, rel=0.05)
    assert (model.get_parameter("head.bias") == 0).all()
