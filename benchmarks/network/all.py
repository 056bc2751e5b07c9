"""Everything on the network, about 12 minutes on two quiet cores: `python -m
benchmarks.network.all`.

The table, signs on a slow link, and declared delays. Ends with 1 if a bound is missed.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is there
    from benchmarks.network import delays, signs, table

    missed = 0
    for part in (lambda: table.main([]), signs.main, delays.main):
        start = time.monotonic()
        status = part()
        print(f"{time.monotonic() - start:.0f} s\n")
        if status == 2:
            return status
        missed |= status
    return missed


if __name__ == "__main__":
    sys.exit(main())
