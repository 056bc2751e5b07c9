from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.train.data.sampling.streams import Streams


@pytest.mark.parametrize(("samples", "workers", "batch"), [(24, 2, 3), (25, 2, 3), (31, 3, 2)])
def test_streams_read_on_and_together_read_everything(
    samples: int, workers: int, batch: int
) -> None:
    streams = Streams(samples, workers, batch, seed=0)
    seen: list[int] = []
    for step in range(-(-samples // (workers * batch))):
        now = torch.cat([streams.indices(worker, step) for worker in range(workers)])
        assert len(set(now.tolist())) == workers * batch
        seen += now.tolist()
        following = torch.cat([streams.indices(worker, step + 1) for worker in range(workers)])
        assert torch.equal(following, (now + 1) % samples)
    assert set(seen) == set(range(samples))
    assert max(map(seen.count, seen)) <= 2


def test_a_picture() -> None:
    streams = Streams(10, workers=2, batch=2, seed=0)
    steps = [[streams.indices(worker, step).tolist() for worker in range(2)] for step in range(4)]
    assert steps == [
        [[0, 2], [5, 7]],
        [[1, 3], [6, 8]],
        [[2, 4], [7, 9]],
        [[3, 5], [8, 0]],
    ]
    assert streams.steps_per_epoch == 2.5


def test_more_streams_than_segments_are_refused() -> None:
    with pytest.raises(UserError, match="9 segments of text: too few for 2 workers x 5 streams"):
        Streams(9, 2, 5, seed=0)
