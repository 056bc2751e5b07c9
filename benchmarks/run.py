"""All benchmarks of speed and memory: `python -m benchmarks.run`, or some: `... run step sync`.

Ends with 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

BENCHMARKS = ("step", "sync", "hosting", "memory", "best")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the usual seconds; 0.1 for a first look"
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    missed = [name for name in options.names or BENCHMARKS if not _main_of(name)(options.share)]
    for name in missed:
        print(f"{name}: a bound is missed", file=sys.stderr)
    return 1 if missed else 0


def _main_of(name: str) -> Callable[[float], bool]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is there
    from benchmarks import best, hosting, memory, step, sync

    modules = {"step": step, "sync": sync, "hosting": hosting, "memory": memory, "best": best}
    return modules[name].main


if __name__ == "__main__":
    sys.exit(main())
