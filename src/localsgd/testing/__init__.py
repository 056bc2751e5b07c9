"""Conformance checks for parts of one's own: plain functions that assert what a seam promises.

    from localsgd.testing import check_schedule
    check_schedule(MySchedule(8))

Each raises an `AssertionError` that says what does not hold, and returns nothing if all does. They
need no test runner; call them from a test of any kind. The package checks its own parts by them.
"""

from localsgd.testing.collective import check_collective
from localsgd.testing.compressor import check_compressor
from localsgd.testing.model import check_model
from localsgd.testing.outer import check_outer
from localsgd.testing.reducer import check_reducer
from localsgd.testing.schedule import check_schedule
from localsgd.testing.task import check_task

__all__ = [
    "check_collective",
    "check_compressor",
    "check_model",
    "check_outer",
    "check_reducer",
    "check_schedule",
    "check_task",
]
