"""What a rank reads when another one has left or does not answer."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from localsgd.collective.broken import first_line, is_broken_connection, is_late
from localsgd.errors import PeerLost


@contextmanager
def others_named_lost(steps: int) -> Generator[None]:
    """Inside, an error of the transport because of another rank becomes `PeerLost`.

    Args:
        steps: that this rank has taken.
    """
    try:
        yield
    except RuntimeError as error:
        if is_late(error):
            what = "another rank has not answered within `timeout`"
        elif is_broken_connection(error):
            what = "another rank has ended"
        else:
            raise
        raise PeerLost(
            f"{what} (after {steps} steps of this one: {first_line(error)}); if ranks have unequal "
            "numbers of batches, cut them to the fewest, and call finish() on all; else start all "
            "again from the last state that was saved"
        ) from error
