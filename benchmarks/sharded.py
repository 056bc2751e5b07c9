"""A sync of sharded workers against one flat all-reduce of the shards.

Two workers of two shards each, on gloo over loopback; with `--link 1gbit` each worker is a node of
the network laboratory, whose link both its ranks share. Beside it, torchft's LocalSGD and DiLoCo if
torchft is installed, which send a message for each tensor and copy it there and back; and the least
that this takes, one tensor at a time. Our DiLoCo is timed as well. All use one process group across
workers. It needs a machine that does nothing else: four processes on two cores wait for each other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks import crew, torchft_sync
from benchmarks.network import crew as nodes
from benchmarks.network import rates
from benchmarks.network.command import ended
from benchmarks.network.laboratory import laboratory
from benchmarks.report import Finding, publish, timed
from benchmarks.sharded_sync import OURS, REFERENCE, Timed, timed_here

SECONDS = 40.0
BOUNDS = {"even": 1.05, "uneven": 1.3}
WIDTHS = {"even": 2048, "uneven": 2047}


def over_loopback(width: int, seconds: float) -> Timed:
    return crew.run(4, timed_here, width, seconds)


def over_a_link(rate: int, width: int, seconds: float) -> Timed:
    """Two nodes of two ranks; the first rank's answer."""
    with laboratory(2) as made, nodes.crew(made, 2, crew.KEEPING) as workers:
        made.shape(rate)
        return workers.call(timed_here, width, seconds, seconds=crew.SECONDS)[0]


def measure(run: Callable[[int, float], Timed], seconds: float = SECONDS) -> list[Finding]:
    findings = []
    for name, bound in BOUNDS.items():
        times, sent = run(WIDTHS[name], seconds)
        case = f"{name} shards"
        findings += timed(case, times, REFERENCE, {OURS: bound})
        cells = {"ratio": f"[bold]{sent:.4f}[/]", "ms": "bytes"}
        findings.append(Finding(case, f"{OURS}, bytes", cells, {"bytes": sent}, sent, 1.01))
    return findings


@ended
def main(arguments: Sequence[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual seconds")
    parser.add_argument("--link", type=rates.bits_per_second, help="such as 1gbit; needs root")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not torchft_sync.THERE:
        print("torchft is not installed, so its LocalSGD and DiLoCo are left out")
    run, name, title = over_loopback, "sharded", "A sync of sharded workers"
    if options.link is not None:
        run, name = partial(over_a_link, options.link), "sharded-link"
        title += f", {rates.named(options.link)}"
    return publish(name, title, measure(run, options.share * SECONDS))


if __name__ == "__main__":
    sys.exit(main())
