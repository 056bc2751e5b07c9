"""What a rank leaves in the store."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from localsgd.wire.presence import Event, Presence


def test_marks_do_not_pile_up() -> None:
    """Those of the last events stay, as others may be behind."""
    store = dist.HashStore()
    own, other = (Presence(store, rank, 2, timedelta(seconds=5)) for rank in range(2))
    for step in range(500):
        own.event = Event("the sync", step)
        own.mark()
        own.mark()  # in another row
    assert store.num_keys() < 100
    for step in range(480, 500):
        other.event = Event("the sync", step)
        assert other.marked() == [0]
