from __future__ import annotations

import torch

from localsgd.reduce import MajorityVote
from localsgd.wire import Entry, InProcess, Metered

X = torch.tensor([[[1.0, -1, 1, -4], [2, -2, -2, 2], [-3, -3, 3, 3], [-2, -2, 2, 0]]])


def test_most_members_decide_and_a_tie_moves_nothing() -> None:
    """Scales 7/4, 2, 3 and 3/2; 0 has voted for +1."""
    scale = (7 / 4 + 2 + 3 + 3 / 2) / 4
    found = MajorityVote().reduce(X.clone(), None, InProcess(4)).wait()
    assert found.tolist() == [[0, -scale, scale, scale]]


def test_weights_are_those_of_scales_and_every_member_has_one_vote() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    scale = 0.5 * 7 / 4 + 0.25 * 2 + 0.125 * 3 + 0.125 * 3 / 2
    found = MajorityVote().reduce(X.clone(), weights, InProcess(4)).wait()
    assert found.tolist() == [[0, -scale, scale, scale]]


def test_nothing_is_remembered() -> None:
    vote = MajorityVote()
    first = vote.reduce(X.clone(), None, InProcess(4)).wait()
    assert torch.equal(vote.reduce(X.clone(), None, InProcess(4)).wait(), first)
    assert vote.state() == {}


def test_hands_over_a_bit_a_scalar_and_a_scale() -> None:
    entry = Entry()
    MajorityVote().reduce(torch.ones(1, 4, 80), None, Metered(InProcess(4), entry)).wait()
    assert entry.bytes == 10 + 4
