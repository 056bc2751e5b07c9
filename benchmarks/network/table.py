"""ResNet-20 on 4 nodes, by link rate and by way to average: speed, bytes, waiting; ours and
others'.

    python -m benchmarks.network.table                       # the full table, 6 to 10 minutes
    python -m benchmarks.network.table --model small-cnn --turns 2 --rates 100mbit    # a first look
    python -m benchmarks.network.table --rates 100mbit --only ddp h16 --record some   # a few alone

All contestants train on random images of CIFAR's shape, B = 32 a worker, with the same loop and the
same optimizer, one process a node. They take turns; each time is divided by that of the loop
without any communication in the same turn. The nodes share this machine's cores, so the compute of
a step is slower than on nodes of their own, and links are easier to hide: compare ratios of one
table, and not seconds with those of a cluster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from benchmarks.network.claims import claims
from benchmarks.network.command import ended
from benchmarks.network.contestants import BOUND, CONTESTANTS
from benchmarks.network.picture import draw
from benchmarks.network.race import Laps
from benchmarks.network.refusal import Refused
from benchmarks.network.scenes import NODES, Results, Scene, run, scenes
from benchmarks.report import RESULTS, Finding, publish
from benchmarks.timing import ratios

BATCH = 32
MODEL = "resnet20"
TURNS = 5
RATES = ("10mbit", "100mbit", "10gbit")


def findings(results: Results, batch: int) -> list[Finding]:
    """A line for every contestant in every scene."""
    return [
        _finding(scene, name, laps, found[BOUND], batch)
        for scene, found in results.items()
        for name, laps in found.items()
    ]


def _finding(scene: Scene, name: str, laps: Laps, bound: Laps, batch: int) -> Finding:
    seconds = statistics.median(laps.seconds)
    share = ratios(bound.seconds, laps.seconds)
    beyond = statistics.median(
        own - base for own, base in zip(laps.seconds, bound.seconds, strict=True)
    )
    sent, through = statistics.median(laps.node_bytes), statistics.median(laps.rack_bytes)
    pace = NODES * batch / seconds
    cells = {
        "samples/s": f"{pace:,.0f}",
        "share of no communication": f"[bold]{share.median:.3f}[/]",
        "its quartiles": f"{share.lower:.3f} - {share.upper:.3f}",
        "ms a step": f"{1000 * seconds:.1f}",
        "ms waited a step": f"{1000 * beyond:.1f}",
        "kB a node a step": f"{sent / 1000:,.1f}",
    }
    if scene.racks > 1:
        cells["kB an up-link"] = f"{through / 1000:,.1f}"
    figures = {
        "name": name,
        "bits_per_second": scene.rate,
        "up_link_bits_per_second": scene.up_link,
        "turns": len(laps.seconds),
        "samples_per_second": round(pace, 1),
        "share": {key: round(value, 4) for key, value in vars(share).items()},
        "step_seconds": [round(value, 6) for value in laps.seconds],
        "waited_seconds": round(beyond, 6),
        "waited_seconds_by_ledger": round(statistics.median(laps.waited), 6),
        "node_bytes": round(sent),
        "rack_bytes": round(through),
    }
    if CONTESTANTS[name].package:
        figures["package"] = CONTESTANTS[name].package
    return Finding(scene.title, CONTESTANTS[name].title, cells, figures)


def measure(options: argparse.Namespace) -> bool:
    """Runs, prints and writes; says whether all claims hold, which are about the full table."""
    if options.only and not options.record:
        raise Refused("a few contestants alone are not the table; name their file by --record NAME")
    chosen = scenes(options.rates, racks=not options.flat, only=options.only)
    named = dict.fromkeys(name for scene in chosen for name in scene.names)
    absent = [CONTESTANTS[name].title for name in named if CONTESTANTS[name].missing]
    if absent:
        print(f"not installed, and left out: {', '.join(absent)}")
    results = run(chosen, options.model, options.batch, options.turns)
    name = options.record or ("network" if options.model == MODEL else f"network-{options.model}")
    title = f"{options.model}, {NODES} nodes, B = {options.batch} a worker"
    shared = f"{title}; times of {NODES} processes that share these cores, for a step"
    publish(name, shared, findings(results, options.batch))
    if options.only:
        return True
    draw(results, RESULTS / f"{name}.png", title)
    return publish(f"{name}-claims", "What has to hold", claims(results))


@ended
def main(arguments: Sequence[str] | None = None) -> bool:
    return measure(_options(arguments))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.network.table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--rates", nargs="*", default=RATES, metavar="RATE")
    parser.add_argument("--flat", action="store_true", help="leave the racks out")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="NAME", help="contestants, by their short names"
    )
    parser.add_argument("--record", metavar="NAME", help="results/NAME.jsonl is written")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
