"""Records that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

from benchmarks.network.accuracy.arms import DDP, PACE, SLOW, TWO_PHASE
from benchmarks.network.accuracy.setting import Setting
from benchmarks.network.accuracy.store import Store

RATE, SLOWEST = 40_000_000, 10_000_000
SMALL = Setting("resnet8", 64, 2, 8, local_steps=2, judged_every=1, judged=8, judged_last=16)
"""2 epochs of 2 steps of 4 x 8."""


def filled(path: Path) -> Store:
    """2 seeds of DDP and of signs: 2 epochs each, half and a quarter of DDP's time."""
    store = Store(path, SMALL)
    for seed, seconds in enumerate((1.0, 0.5)):
        laps = {"none": [1.0], "ddp": [2.0]}
        store.add(_laps(RATE, seed, list(PACE), laps))
        store.add(_run(DDP, seed, [2.0, 2.0], [4, 4], 8))
        store.add(_run(TWO_PHASE, seed, [seconds, seconds], [2, 4 - seed], 8 - seed))
    laps = {"none": [1.0], "ddp": [8.0], "sign-first": [2.5], "sign-second": [1.5]}
    laps |= {"sign-gathered-first": [3.5], "sign-gathered-second": [1.0]}
    store.add(_laps(SLOWEST, 0, list(SLOW), laps))
    return store


def _laps(rate: int, seed: int, arms: list[str], laps: dict[str, list[float]]) -> dict:
    return {"kind": "laps", "rate": rate, "seed": seed, "arms": arms, "step_seconds": laps}


def _run(arm: str, seed: int, seconds: list[float], right: list[int], last: int) -> dict:
    return {
        "kind": "run",
        "rate": RATE,
        "seed": seed,
        "arm": arm,
        "seconds": seconds,
        "cpu_seconds": [1.0, 1.0],
        "node_bytes": [1000, 3000],
        "right": right,
        "right_last": last,
    }
