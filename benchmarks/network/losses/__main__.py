"""What a killed worker costs: four nodes of a slow network, on torchft's engine.

    # python -m benchmarks.network.losses

Beside torchft's own LocalSGD, with equal H, model, batch, time limits and lighthouse. Four workers
train undisturbed; then one of them is killed (`kill -9`) every so often, and starts again at once.
Of each method it says

- seconds lost to one kill: from the last sync before it to the first after it, less the usual time
  between two syncs;
- samples per second with kills, as a share of those without. Samples count once they are in a
  mean that counts.

A node's worker is a fork of a process that has imported everything, so that a start costs no
import. Needs what the other network benchmarks need, `torchft`, and `unshare` of util-linux: a
node's name must be its address, as torchft tells others where to fetch its state by that name.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.network import rates
from benchmarks.network.laboratory import Laboratory, laboratory
from benchmarks.network.refusal import Refused
from benchmarks.report import Finding, publish
from localsgd.basics.units import plural

NODES = 4
LOCAL_STEPS = 16
METHODS = {"localsgd": "localsgd on torchft, H = 16", "torchft": "torchft's LocalSGD, H = 16"}


class Node:
    """A node's process, which starts and kills its worker; see `node.py`."""

    def __init__(self, network: Laboratory, number: int) -> None:
        self.address = network.address(number)
        command = [sys.executable, "-m", "benchmarks.network.losses.node", self.address]
        named = ["unshare", "--uts", "sh", "-c", f'hostname {self.address}; exec "$@"', "sh"]
        self._process = subprocess.Popen(
            network.within(number, [*named, *command]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def say(self, *call: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self.say("kill")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass
class Crew:
    """Workers of one method on all nodes.

    Args:
        nodes: their processes.
        call: what starts a worker, without its name and file.
        folder: of what workers tell.
    """

    nodes: Sequence[Node]
    method: str
    lighthouse: str
    model: str
    batch: int
    folder: Path
    starts: int = 0

    def start(self, number: int) -> None:
        self.starts += 1
        name, file = f"node-{number}", self.folder / f"{number}-{self.starts}"
        self.nodes[number].say(
            "start", self.method, name, self.lighthouse, self.model, self.batch, str(file)
        )

    def syncs(self) -> list[tuple[float, int]]:
        """(when the first worker had it, of how many workers) for each sync that counted."""
        found: dict[int, tuple[float, int]] = {}
        for file in self.folder.iterdir():
            for line in file.read_text().splitlines():
                try:
                    at, sync, workers = json.loads(line)
                except ValueError:  # Its writer was killed.
                    continue
                found[sync] = min(found.get(sync, (at, workers)), (at, workers))
        return [found[sync] for sync in sorted(found)]

    def wait(self, syncs: int, seconds: float) -> None:
        """Waits for so many syncs of all workers."""
        end = time.monotonic() + seconds
        while sum(workers == NODES for _, workers in self.syncs()) < syncs:
            if time.monotonic() > end:
                raise Refused(f"{self.method}: no {syncs} syncs of all within {seconds:.0f} s")
            time.sleep(0.2)

    def pace(self, start: float, end: float) -> float:
        """Samples a second between the first and the last sync of a span."""
        inside = [(at, workers) for at, workers in self.syncs() if start <= at <= end]
        if len(inside) < 2:
            return 0.0
        samples = sum(workers for _, workers in inside[1:]) * LOCAL_STEPS * self.batch
        return samples / (max(end, inside[-1][0]) - inside[0][0])


@contextmanager
def crew(network: Laboratory, method: str, model: str, batch: int) -> Iterator[Crew]:
    # The lighthouse is a process of its own on node 0: a worker can't be a fork of one.
    *nodes, light = started = [Node(network, number) for number in (*range(NODES), 0)]
    try:
        for node in started:
            if node.answer() != "ready":
                raise Refused("a node has not started; is torchft installed?")
        light.say("light", 2)
        lighthouse = f"http://{light.address}:{light.answer()}"
        with tempfile.TemporaryDirectory() as folder:
            made = Crew(nodes, method, lighthouse, model, batch, Path(folder))
            for number in range(NODES):
                made.start(number)
            yield made
    finally:
        for node in started:
            node.close()


def lost(syncs: Sequence[tuple[float, int]], kills: Sequence[float], usual: float) -> list[float]:
    """Seconds that each kill has cost, beyond the usual time between two syncs."""
    times = [at for at, _ in syncs]
    found = []
    for kill in kills:
        before = max((at for at in times if at <= kill), default=kill)
        after = min((at for at in times if at > kill), default=None)
        if after is not None:
            found.append(after - before - usual)
    return found


def measure(network: Laboratory, method: str, options: argparse.Namespace, rate: int) -> Finding:
    draw = random.Random(options.seed)
    with crew(network, method, options.model, options.batch) as workers:
        workers.wait(3, 300)
        start = time.monotonic()
        time.sleep(options.seconds)
        end = time.monotonic()
        calm = workers.pace(start, end)
        inside = [at for at, _ in workers.syncs() if start <= at <= end]
        usual = statistics.median(b - a for a, b in itertools.pairwise(inside))
        kills: list[float] = []
        begin = time.monotonic()
        for _ in range(options.kills):
            time.sleep(draw.uniform(0, usual))
            victim = draw.randrange(1, NODES)  # The lighthouse stays.
            workers.nodes[victim].say("kill")
            kills.append(time.monotonic())
            workers.start(victim)
            time.sleep(max(0.0, kills[0] + len(kills) * options.every - time.monotonic()))
        stormy = workers.pace(begin, time.monotonic())
        costs = lost(workers.syncs(), kills, usual)
    figures = {
        "name": method,
        "bits_per_second": rate,
        "samples_per_second": round(calm, 1),
        "samples_per_second_with_kills": round(stormy, 1),
        "share": round(stormy / calm, 3) if calm else 0.0,
        "seconds_between_syncs": round(usual, 2),
        "kills": len(kills),
        "lost_seconds": [round(cost, 2) for cost in costs],
    }
    cells = {
        "samples/s": f"{calm:,.0f}",
        "with kills": f"{stormy:,.0f}",
        "share": f"[bold]{figures['share']:.2f}[/]",
        "s between syncs": f"{usual:.1f}",
        "s lost to a kill": " ".join(f"{cost:.1f}" for cost in costs),
    }
    return Finding(f"{rate / 1e6:g} Mbit/s", METHODS[method], cells, figures)


def forecast(options: argparse.Namespace) -> str:
    """How long it takes, without the first syncs of each run."""
    runs = len(options.rates) * len(options.methods)
    minutes = runs * (options.seconds + options.kills * options.every) / 60
    return f"{plural(runs, 'run')}, about {minutes:.0f} min, and a minute each to start"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.network.losses",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rates", nargs="*", default=["100mbit", "10mbit"], metavar="RATE")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seconds", type=float, default=90, help="undisturbed")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--every", type=float, default=30, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments")
    parser.add_argument("--record", default="network-losses", metavar="NAME")
    options = parser.parse_args(arguments)
    try:
        if importlib.util.find_spec("torchft") is None:
            raise Refused("torchft is not installed: pip install 'localsgd[torchft]'")
        print(forecast(options), file=sys.stderr)
        findings = []
        for name in options.rates:
            rate = rates.bits_per_second(name)
            for method in options.methods:
                with laboratory(NODES) as network:
                    network.shape(rate)
                    findings.append(measure(network, method, options, rate))
    except Refused as error:
        print(f"benchmarks.network.losses: {error}", file=sys.stderr)
        return 2
    title = f"{options.model}, {NODES} nodes, B = {options.batch}; a kill every {options.every:g} s"
    publish(options.record, title, findings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
