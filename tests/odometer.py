"""The slow, obvious way to count nested rounds."""

from __future__ import annotations

from collections.abc import Sequence

from localsgd.schedule.progress import Progress, Schedule


def odometer(schedules: Sequence[Schedule], steps: int) -> list[int]:
    """How many levels average after each step: those whose wheel has come round."""
    left = [0] * len(schedules)
    depths = []
    for step in range(steps):
        left = [
            count or schedule(Progress(step))
            for count, schedule in zip(left, schedules, strict=True)
        ]
        depth = 0
        while depth < len(left):
            left[depth] -= 1
            if left[depth]:
                break
            depth += 1
        depths.append(depth)
    return depths
