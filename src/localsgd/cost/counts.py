"""The number of syncs in a run of known length.

K: workers · B: rows of a worker's batch · H: local steps · H^b: block steps · N: samples of a run
"""

from __future__ import annotations

from dataclasses import dataclass

from localsgd.errors import UserError


@dataclass(frozen=True)
class Syncs:
    """Syncs of a run with two levels.

    Args:
        inside: syncs of the blocks alone, without those that are part of a sync of all.
        across: syncs of all workers.
    """

    inside: int
    across: int


def syncs(samples: int, workers: int, batch: int, local_steps: int, block_steps: int = 1) -> Syncs:
    """The counts of Eq. comm_cost (Lin et al., 2020), ceil(N / (K B H)) and ceil(N / (K B H H^b)).

    Within 16 steps of H H^b = 16 the blocks average 16 / H - 1 times, all workers once:

    Examples:
        >>> [syncs(16, 1, 1, h, 16 // h).inside for h in (1, 2, 4, 8, 16)]
        [15, 7, 3, 1, 0]

    Args:
        samples: N, of all workers and epochs together.
        workers: K.
        batch: B.
        local_steps: H.
        block_steps: H^b; 1 for a single level.
    """
    given = {"N": samples, "K": workers, "B": batch, "H": local_steps, "H^b": block_steps}
    for name, number in given.items():
        if number < 1:
            raise UserError(f"{name} = {number} is out of range; give a whole number >= 1")
    rounds = _ceil(samples, workers * batch * local_steps)
    across = _ceil(samples, workers * batch * local_steps * block_steps)
    return Syncs(rounds - across, across)


def _ceil(number: int, part: int) -> int:
    # In whole numbers: N / part rounds for N above 2^53.
    return -(-number // part)
