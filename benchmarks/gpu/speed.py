"""Samples a second of K workers on one device, by variant; models are averaged after every step."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.gpu.hosting import VARIANTS, Hosted, Variant
from localsgd.loop import train
from localsgd.schedule.fixed import every
from localsgd.schedule.rounds import Position
from localsgd.train.data.tasks.images import ImageTask

WANTED = 60_000
"""Samples a second of K = 16, B = 128 on one H100."""
TURNS = 5


def measure(
    task: ImageTask, model: str, workers: int, batch: int, variant: Variant, steps: int
) -> dict[str, float]:
    """Samples a second: median, least and most of five turns of `steps` steps, after a warm-up."""
    hosted = Hosted(task, model, workers, batch, variant)
    levels = hosted.levels(hosted.workers.params)
    position = Position.start(1)

    def advance() -> None:
        train(
            hosted, levels, [every(1)], lambda step: 0.01,
            steps=hosted.step + steps, position=position,
        )  # fmt: skip
        _finish(task)

    advance()
    paces = []
    for _ in range(TURNS):
        start = time.perf_counter()
        advance()
        paces.append(steps * workers * batch / (time.perf_counter() - start))
    loss = float(hosted.workers.take_losses()[0].sum())
    if not loss < float("inf"):
        raise RuntimeError("the loss is not finite")
    return {"median": statistics.median(paces), "least": min(paces), "most": max(paces)}


def _finish(task: ImageTask) -> None:
    if task.train.pixels.device.type == "cuda":
        torch.cuda.synchronize()


def table(
    task: ImageTask, model: str, workers: int, batch: int, names: Sequence[str], steps: int
) -> list[dict[str, Any]]:
    """A line for each variant, and for its single worker with the whole batch at once; printed as
    they are found. What fails says so, and the others go on.
    """
    device = task.train.pixels.device
    print(json.dumps({"model": model, "workers": workers, "batch": batch, **_machine(device)}))
    found = []
    for name in names:
        variant = VARIANTS[name]
        if variant.needs_cuda and device.type != "cuda":
            continue
        for k, b in ((workers, batch), (1, workers * batch)):
            line: dict[str, Any] = {"variant": name, "workers": k, "batch": b}
            try:
                pace = measure(task, model, k, b, variant, steps)
                line |= {"samples_per_second": {key: round(v, 1) for key, v in pace.items()}}
            except RuntimeError as error:
                line |= {"failed": " ".join(str(error).split())[:300]}
            print(json.dumps(line), flush=True)
            found.append(line)
            _forget()
    _print_table(found, workers, batch)
    return found


def _forget() -> None:
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _print_table(found: list[dict[str, Any]], workers: int, batch: int) -> None:
    print(f"\n{'variant':24} {'K':>4} {'B':>6} {'samples/s':>12} {'least - most':>20}")
    best = 0.0
    for line in found:
        start = f"{line['variant']:24} {line['workers']:4} {line['batch']:6}"
        if "failed" in line:
            print(f"{start}  failed: {line['failed'][:60]}")
            continue
        pace = line["samples_per_second"]
        print(f"{start} {pace['median']:12,.0f} {pace['least']:9,.0f} - {pace['most']:,.0f}")
        if line["workers"] == workers:
            best = max(best, pace["median"])
    verdict = "holds" if best >= WANTED else "missed"
    print(f"best with K = {workers}, B = {batch}: {best:,.0f} (wanted: {WANTED:,}; {verdict})")


def _machine(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__}
