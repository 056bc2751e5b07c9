"""The error that a rank gets if another one has left or does not answer."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from localsgd.errors import PeerLost
from localsgd.wire.broken import is_broken_connection, is_late
from localsgd.wire.presence import Presence


@contextmanager
def others_named_lost(presence: Presence | None) -> Generator[None]:
    """A context in which a transport error caused by another rank becomes `PeerLost`.

    Args:
        presence: knows what the ranks are doing.
    """
    try:
        yield
    except RuntimeError as error:
        late = is_late(error)
        lost = late or is_broken_connection(error)
        if isinstance(error, PeerLost) or not lost or presence is None:
            raise
        raise PeerLost(
            f"{presence.who_is_lost(late)}; rank {presence.rank} is {presence.event}; if ranks "
            "have unequal numbers of batches, cut them to the fewest, and call finish() on all; "
            "otherwise start all again from the last saved state"
        ) from error
