"""While nobody is lost, workers of torchft have the bits of plain `LocalSGD` over gloo."""

from __future__ import annotations

import hashlib
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'localsgd[torchft]'")

from localsgd import LocalSGD
from tests.distributed.harness import run
from tests.integrations.fleet import RATE, Plan, Vector, fleet, wanted

NAMES = ("w0", "w1", "w2", "w3")
LENGTH, SYNCS = 1000, 8
INNER = {"momentum": 0.9}


def plain(options: dict[str, Any]) -> list[str]:
    """Hashes of the row after each sync."""
    model = Vector(LENGTH, seed=0)
    inner = torch.optim.SGD(model.parameters(), lr=RATE, **INNER)
    optimizer = LocalSGD(inner, model, average="models", **options)
    [row] = optimizer._rows
    found = []
    for step in range(4 * (SYNCS - 1)):
        batch = step * dist.get_world_size() + dist.get_rank()
        optimizer.zero_grad()
        (model.w - wanted(batch, LENGTH)).square().sum().mul(0.5).backward()
        optimizer.step()
        if optimizer.at_sync:
            found.append(hashlib.sha256(row.values.numpy().tobytes()).hexdigest())
    return found


@pytest.mark.parametrize("options", [{}, {"outer": "diloco"}], ids=["plain", "diloco"])
def test_a_short_stop_changes_no_bit(options: dict[str, Any]) -> None:
    """Four workers, whose exact means are summed in the wire's order; one stops for a moment."""
    options = {"local_steps": 4, **options}
    plan = {
        "options": options,
        "length": LENGTH,
        "syncs": SYNCS,
        "inner": INNER,
        "managed": {"workers": 4},
        "pause": 0.01,
    }
    with fleet(at_least=4) as workers:
        crew = workers.start(**{name: Plan(seed=i, **plan) for i, name in enumerate(NAMES)})
        workers.until(lambda: workers.sync >= 3)
        crew[1].signal(signal.SIGSTOP)
        workers.until(lambda: False, 0.5, may_pass=True)
        crew[1].signal(signal.SIGCONT)
        workers.until_all_end()
        assert all(w.end is not None and w.end[0] == "ended" for w in crew)
        seen = [{s.sync: s.digest for s in w.seen} for w in crew]
    expected = {sync + 2: digest for sync, digest in enumerate(run(4, plain, options)[0])}
    for own in seen:
        assert {sync: digest for sync, digest in own.items() if sync > 1} == expected
