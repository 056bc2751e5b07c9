"""Who averages with whom: K workers in nested blocks.

`8x2` is 8 blocks of 2 workers, as in the paper; `4x2x2` is 4 racks of 2 nodes of 2 workers; `2+3+3`
is three blocks of unequal size. Lists by level run from the innermost outwards, so `8x2` has the
sizes (2, 8).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from localsgd.basics.units import plural
from localsgd.errors import UserError


@dataclass(frozen=True)
class Topology:
    """Nested blocks of workers.

    Args:
        sizes: members of a group at each level, innermost first; their product is K.
        unequal: sizes of the innermost blocks if they differ (there are two levels then); otherwise
            empty.
    """

    sizes: tuple[int, ...]
    unequal: tuple[int, ...] = ()

    @staticmethod
    def parse(text: str | int) -> Topology:
        """Reads `16`, `8x2`, `4x2x2` (outermost first, as people write it) or `2+3+3`."""
        text = str(text).strip()
        if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
            return Topology(tuple(int(size) for size in reversed(text.split("x"))))
        if re.fullmatch(r"[1-9]\d*(\+[1-9]\d*)+", text):
            blocks = tuple(int(size) for size in text.split("+"))
            if len(set(blocks)) == 1:
                return Topology((blocks[0], len(blocks)))
            return Topology((max(blocks), len(blocks)), blocks)
        raise UserError(
            f"topology {text!r} is not understood; write 16, 8x2 (8 blocks of 2), 4x2x2, or 2+3+3"
        )

    @property
    def workers(self) -> int:
        return sum(self.unequal) if self.unequal else math.prod(self.sizes)

    @property
    def levels(self) -> int:
        return len(self.sizes)

    def __str__(self) -> str:
        if self.unequal:
            return "+".join(map(str, self.unequal))
        return "x".join(map(str, reversed(self.sizes)))


def check_hosting(topology: Topology, processes: int) -> None:
    """Raises unless each process hosts whole blocks, or each block has whole processes."""
    hosted, rest = divmod(topology.workers, processes)
    if rest or not hosted:
        raise UserError(
            f"{plural(topology.workers, 'worker')} ({topology}) cannot be spread evenly over "
            f"{plural(processes, 'process', 'processes')}; use a number of processes that divides "
            f"{topology.workers}"
        )
    if topology.unequal:
        if processes > 1 and hosted > 1:
            raise UserError(
                f"blocks of unequal size ({topology}) can't be placed on "
                f"{plural(processes, 'process', 'processes')} of {plural(hosted, 'worker')} each; "
                "use one process, or one for each worker"
            )
        return
    whole = 1
    for size in topology.sizes:
        whole *= size
        if hosted % whole and whole % hosted:
            raise UserError(
                f"topology {topology} over processes of {plural(hosted, 'worker')} would cut a "
                f"block of {whole}; a process must host whole blocks, or a block whole processes"
            )
