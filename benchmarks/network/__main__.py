"""Runs a program of yours on a shaped network, as torchrun does on a cluster:

    python -m benchmarks.network --nodes 4 --rate 100mbit -- train.py --epochs 1
    python -m benchmarks.network --nodes 4 --racks 2 --rate 1gbit --up-link 10mbit -- -m my.module

and says at the end what crossed every link.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.network import rates, torchrun
from benchmarks.network.laboratory import Counters, laboratory
from benchmarks.network.refusal import Refused

LOOK_SECONDS = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if not options.program:
        _parser().error("no program; give it after --, as for python: train.py ... or -m MODULE")
    try:
        return _run(options)
    except Refused as error:
        print(f"benchmarks.network: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.network",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--racks", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="on each node")
    parser.add_argument("--rate", help="of a node's link, such as 100mbit; unshaped if not given")
    parser.add_argument("--up-link", metavar="RATE", help="of a rack's link")
    parser.add_argument("program", nargs="*", metavar="-- PROGRAM")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.processes < 1:
        raise Refused(f"{options.processes} processes on a node train nothing; give 1 or more")
    if options.up_link and options.racks == 1:
        raise Refused("one rack has no up-link; give --racks 2 or more, or leave --up-link out")
    rate, up_link = (
        None if text is None else rates.bits_per_second(text)
        for text in (options.rate, options.up_link)
    )
    with laboratory(options.nodes, options.racks) as made:
        made.shape(rate, up_link)
        with torchrun.started(made, options.program, options.processes) as agents:
            status = _wait(agents)
        _report(made.counters())
    return status


def _wait(agents: Sequence[subprocess.Popen[bytes]]) -> int:
    """The exit status: 0, or that of the first process that fails; others are not waited for."""
    while True:
        found = [agent.poll() for agent in agents]
        failed = [status for status in found if status]
        if failed or None not in found:
            return failed[0] if failed else 0
        time.sleep(LOOK_SECONDS)


def _report(crossed: Counters) -> None:
    links = [(f"node {index}", one) for index, one in enumerate(crossed.nodes)]
    links += [(f"rack {index}", one) for index, one in enumerate(crossed.racks)]
    for name, one in links:
        print(f"{name}: {one.sent:,} bytes sent, {one.received:,} received", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
