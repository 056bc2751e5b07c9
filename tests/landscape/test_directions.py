"""Filter normalisation: every filter of the direction as long as the weights' own."""

from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.landscape import filter_normalised, filter_norms, shared_directions
from localsgd.landscape.directions import raw_direction
from tests.landscape.cases import batch_norm_net, objective


def test_filters_have_the_weights_norms_and_vectors_are_zero() -> None:
    subject = objective()
    raw = raw_direction(subject.n, 0, 0)
    d = subject.layout.named(filter_normalised(raw, subject.weights, subject.layout))
    w = subject.layout.named(subject.weights)
    for name, part in d.items():
        if part.ndim == 1:
            assert not part.any()
        else:
            ours, theirs = part.flatten(1).norm(dim=1), w[name].flatten(1).norm(dim=1)
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    cosine = torch.nn.functional.cosine_similarity
    first = subject.layout.named(raw)["0.weight"][0].flatten()
    assert float(cosine(first, d["0.weight"][0].flatten(), dim=0)) == pytest.approx(1)


def test_models_share_the_gaussians_and_keep_their_own_filters() -> None:
    one, two = objective(), objective(batch_norm_net(seed=8))
    ours, theirs = shared_directions([one.weights, two.weights], one.layout, 3)
    for d, e in zip(ours, theirs, strict=True):
        a, b = one.layout.named(d)["8.weight"], two.layout.named(e)["8.weight"]
        torch.testing.assert_close(
            a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True), rtol=1e-12, atol=1e-15
        )
        assert not torch.allclose(a, b)
    assert not torch.allclose(ours[0], ours[1])


def test_more_directions_do_not_change_the_first() -> None:
    subject = objective()
    (few,) = shared_directions([subject.weights], subject.layout, 2, seed=4)
    (many,) = shared_directions([subject.weights], subject.layout, 5, seed=4)
    assert torch.equal(few[1], many[1])


def test_a_filter_of_zeros_stays() -> None:
    subject = objective()
    weights = subject.weights.clone()
    subject.layout.named(weights)["0.weight"][2] = 0
    d = filter_normalised(raw_direction(subject.n, 0, 0), weights, subject.layout)
    assert not subject.layout.named(d)["0.weight"][2].any()
    assert bool(d.isfinite().all())


def test_filter_norms_spread_over_their_filter() -> None:
    subject = objective()
    norms = subject.layout.named(filter_norms(subject.weights, subject.layout))
    w = subject.layout.named(subject.weights)
    assert float(norms["3.weight"][2, 0, 0, 0]) == pytest.approx(float(w["3.weight"][2].norm()))
    assert float(norms["1.weight"][3]) == pytest.approx(float(w["1.weight"].norm()))


def test_none_asked_for() -> None:
    subject = objective()
    with pytest.raises(UserError, match="0 directions"):
        shared_directions([subject.weights], subject.layout, 0)
