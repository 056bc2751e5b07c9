"""A sync on 36.5 M scalars over links of 100 Mbit/s: signs against float32, one node a
process.

The tensors of WRN-28-10 on 4 nodes: a dense mean, the scaled sign with error feedback in two
phases, and by gathering. Times are those of the slowest process, encoding and decoding included;
bytes are those that the interfaces counted, beside the payload in the ledger.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import torch

from benchmarks import crew as alone
from benchmarks.network.command import ended, turns_of
from benchmarks.network.crew import Crew, crew
from benchmarks.network.laboratory import Laboratory, laboratory
from benchmarks.network.payload import WAYS, sent, share_of_ring
from benchmarks.network.rates import named
from benchmarks.network.sign_sync import average, prepare
from benchmarks.report import Finding, publish
from benchmarks.timing import Spread, ratios
from benchmarks.workloads import scalars, wide_resnet

NODES = 4
RATE = 100_000_000
TURNS = 3
FASTER = 10.0
OVERHEAD = 1.1
"""Most bytes on the wire per byte of payload, with headers and acknowledgements."""


def _laps(made: Laboratory, workers: Crew, turns: int) -> tuple[dict, dict, dict]:
    """Seconds of the slowest process, bytes that a node sent and payload, by way."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    crossed: dict[str, list[int]] = {way: [] for way in WAYS}
    payload: dict[str, int] = {}
    for _ in range(turns):
        for way in WAYS:
            before = made.counters()
            answers = workers.call(average, way)
            after = made.counters()
            seconds[way].append(max(took for took, _ in answers))
            crossed[way].append(max(node.sent for node in (after - before).nodes))
            payload[way] = answers[0][1]
    return seconds, crossed, payload


def measure(turns: int = TURNS) -> list[Finding]:
    with laboratory(NODES) as made, crew(made, environment=alone.KEEPING) as workers:
        workers.call(prepare, NODES)
        for way in WAYS:
            workers.call(average, way)  # Members learn their places, memories are made.
        made.shape(RATE)
        seconds, crossed, payload = _laps(made, workers, turns)
    count = scalars(wide_resnet())
    found = []
    for way in WAYS:
        wall, wire = Spread.of(seconds[way]), statistics.median(crossed[way])
        due = sent(way, payload[way], NODES)
        share = wire / statistics.median(crossed["dense"])
        cells = {
            "seconds": f"{wall.median:.2f}",
            "quartiles": f"{wall.lower:.2f} - {wall.upper:.2f}",
            "MB payload": f"{payload[way] / 1e6:.3f}",
            "MB on the wire": f"{wire / 1e6:.3f}",
            "of the payload's": f"{wire / due:.4f}",
            "of float32": f"1/{1 / share:.2f}",
        }
        figures = {
            "turns": turns,
            "seconds": vars(wall),
            "payload_bytes": payload[way],
            "wire_bytes": wire,
            "wire_bytes_by_payload": due,
            "share_of_float32_by_payload": share_of_ring(way, payload[way], count, NODES),
        }
        case = f"{count:,} scalars, {NODES} nodes, {named(RATE)}"
        found.append(Finding(case, way, cells, figures, wire / due, OVERHEAD))
    gain = ratios(seconds["two-phase"], seconds["dense"])
    cells = {"seconds": f"{gain.median:.4f}", "quartiles": f"{gain.lower:.4f} - {gain.upper:.4f}"}
    title = "time of two-phase by that of dense"
    figures = {"ratio": vars(gain)}
    return [*found, Finding("signs", title, cells, figures, gain.median, 1 / FASTER)]


@ended
def main(arguments: Sequence[str] = ()) -> bool:
    turns = turns_of(arguments, "signs", TURNS)
    torch.set_num_threads(1)
    return publish("network-signs", "Signs on a slow link", measure(turns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
