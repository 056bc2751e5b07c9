"""Bytes that a member sends over gloo for a payload as a ledger counts it. (As many come in.)

An all-reduce is a ring: each member passes on 2 (M - 1)/M of its row. An all-gather hands every
member's part to all others. An exchange sends what is handed over.
"""

from __future__ import annotations

WAYS = ("dense", "two-phase", "gather")


def sent(way: str, payload: int, members: int) -> float:
    """Bytes that each member sends for a sync, headers left out.

    Args:
        way: `dense` for an exact mean; `two-phase` or `gather` for a compressed one.
        payload: that one member hands over, by the ledger: a row, or a compressed row.
        members: M.
    """
    if way == "gather":
        return payload * (members - 1)
    return 2 * payload * (members - 1) / members


def share_of_ring(way: str, payload: int, scalars: int, members: int) -> float:
    """The bytes as a fraction of those of a ring of float32 for as many scalars."""
    return sent(way, payload, members) / sent("dense", 4 * scalars, members)
