"""Measurements during a run: at the right epochs, and without touching the run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from localsgd.errors import UserError
from localsgd.landscape import Every, largest_eigenvalue, step_noise
from localsgd.landscape.figures import draw
from tests.landscape.cases import (
    assert_same_state,
    batch_norm_net,
    samples,
    state_of,
    the_dense_hessian,
)

LOSS = nn.CrossEntropyLoss()


def test_once_for_each_multiple_that_is_reached() -> None:
    hook = Every(lambda model: [{"kind": "x"}], every_epochs=2, start=2)
    net = nn.Linear(1, 1)
    for epoch in (0.5, 1.9, 2.0, 2.1, 3.9, 4.2, 9.0, 9.5, 10.0):
        hook(epoch, net, run="a")
    assert [r["epoch"] for r in hook.records] == [2.0, 4.2, 9.0, 10.0]
    assert hook.records[0] == {"kind": "x", "epoch": 2.0, "run": "a"}


@pytest.mark.parametrize("method", ["lanczos", "power"])
def test_largest_eigenvalue(method: str) -> None:
    net = batch_norm_net()
    exact = float(torch.linalg.eigvalsh(the_dense_hessian())[-1])
    before, random = state_of(net), torch.get_rng_state()
    hook = Every(largest_eigenvalue(LOSS, {"test": [samples()]}, method=method, tolerance=1e-5))
    (record,) = hook(0, net)
    assert record["largest"] == pytest.approx(exact, rel=1e-3)
    assert (record["data"], record["statistics"]) == ("test", "kept")
    assert_same_state(before, state_of(net))
    assert torch.equal(random, torch.get_rng_state())


def test_with_statistics_measured_first() -> None:
    measure = largest_eigenvalue(LOSS, {"test": [samples()]}, estimate_on=[samples()])
    assert measure(batch_norm_net())[0]["statistics"] == "estimated"


def test_step_noise_and_its_figures(tmp_path) -> None:
    hook = Every(step_noise(LOSS, [samples()], local_batch=3, workers=4))
    for epoch in range(3):
        hook(epoch, batch_norm_net(epoch), model="large batch")
    assert [r["ratio"] for r in hook.records] == [pytest.approx(4 * 27 / 18)] * 3
    (path,) = draw(hook.records, tmp_path)
    assert path.name == "step_noise.png"


def test_what_cannot_be() -> None:
    with pytest.raises(UserError, match="every 0 epochs"):
        Every(lambda model: [], 0)
    with pytest.raises(UserError, match="no method 'qr'"):
        largest_eigenvalue(LOSS, {}, method="qr")
