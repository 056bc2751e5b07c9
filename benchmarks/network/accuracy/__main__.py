"""CIFAR-10 (a subset) on 4 nodes over a slow link: how much sooner than DDP, and how good.

    python -m benchmarks.network.accuracy                    # where DDP has 0.49 of its speed
    python -m benchmarks.network.accuracy --rate 100mbit     # at a rate
    python -m benchmarks.network.accuracy --name trial --images 256 --epochs 1 --seeds 1    # a look

Every arm sees the same samples in the same order, with the same learning rate, from the same
weights: those of the seed. The clock runs while the workers train: batches, steps, syncs, the
last of them included. It stands while the model is judged, in all arms alike, every few epochs.
Batch-norm statistics are each worker's own in all arms, DDP's too; the model that is judged has
their mean (the variance with the term between workers).

The nodes share this machine's cores, so a step takes longer than on nodes of their own, and a link
hides more easily: --share finds the rate at which DDP has that share of its speed without
communication here, which is what says how much there is to gain. What is finished is kept in
results/NAME-runs.jsonl; the same command goes on where it was interrupted, and its tables have all
rates that were run so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import crew as alone
from benchmarks.network import rates
from benchmarks.network.accuracy.arms import SLOW, TRAINED, USUAL
from benchmarks.network.accuracy.course import Course
from benchmarks.network.accuracy.findings import claims, slow, trained
from benchmarks.network.accuracy.outcome import outcomes
from benchmarks.network.accuracy.picture import draw
from benchmarks.network.accuracy.setting import NODES, Setting
from benchmarks.network.accuracy.store import Store
from benchmarks.network.command import ended
from benchmarks.network.crew import crew
from benchmarks.network.laboratory import laboratory
from benchmarks.network.refusal import Refused
from benchmarks.report import RESULTS, publish
from localsgd.train.data.tasks import load

SHARE = 0.49
SEEDS, TURNS = (1, 2, 3), 2
"""Local SGD's settings were chosen by looking at seed 0, which so doesn't count."""


def measure(options: argparse.Namespace) -> bool:
    """Runs what is missing, prints and writes; says whether all claims hold."""
    setting = Setting(**{field.name: getattr(options, field.name) for field in fields(Setting)})
    store = Store(RESULTS / f"{options.name}-runs.jsonl", setting)
    if not options.tables:
        _run(options, setting, store)
    return report(store, setting, options.name)


def _run(options: argparse.Namespace, setting: Setting, store: Store) -> None:
    """What the store lacks."""
    rate = None if options.rate is None else rates.bits_per_second(options.rate)
    slowest = [rates.bits_per_second(text) for text in options.slow]
    load("cifar10")  # Before there are nodes, from which nothing can be downloaded.
    with (
        _progress() as progress,
        laboratory(NODES) as made,
        crew(made, environment=alone.KEEPING) as workers,
    ):
        course = Course(made, workers, setting, store, progress)
        course.train(rate or course.rate_for(options.share), options.seeds, options.arms)
        for one in slowest:
            course.pace(one, 0, SLOW, options.turns)


def report(store: Store, setting: Setting, name: str) -> bool:
    """The tables, the picture and the claims of all that the store has."""
    found = outcomes(store, setting)
    if not found:
        raise Refused(f"no run of {name} is kept with these settings; leave --tables out")
    who = f"{setting.network}, {NODES} nodes that share these cores, B = {setting.batch} a worker"
    what = f"{setting.images:,} images of CIFAR-10, {setting.steps:,} steps"
    lines = [line for outcome in found for line in trained(outcome, setting)]
    publish(name, f"{who}, {what}", [*lines, *slow(store, setting)])
    draw(found, setting, RESULTS / f"{name}.png", f"{who},\n{what}")
    return publish(f"{name}-claims", "What has to hold", claims(store, found, setting))


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))


@ended
def main(arguments: Sequence[str] | None = None) -> bool:
    return measure(_options(arguments))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.network.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    links = parser.add_mutually_exclusive_group()
    links.add_argument("--share", type=float, default=SHARE, help="of DDP; default %(default)s")
    links.add_argument("--rate", help="of a node's link, such as 100mbit")
    parser.add_argument("--slow", nargs="*", default=["10mbit"], metavar="RATE")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, metavar="SEED")
    parser.add_argument(
        "--arms", nargs="+", choices=TRAINED, default=USUAL, help=f"default: {' '.join(USUAL)}"
    )
    parser.add_argument("--turns", type=int, default=TURNS, help="of the steps on slow links")
    parser.add_argument("--name", default="network-accuracy", help="of the results")
    parser.add_argument("--tables", action="store_true", help="of what is kept; runs nothing")
    for field in fields(Setting):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default)
    options = parser.parse_args(arguments)
    if min(options.seeds) < 0:
        parser.error(f"a seed is a whole number from 0 on, not {min(options.seeds)}")
    if options.turns < 1:
        parser.error("nothing can be told without a turn; give 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
