"""What a benchmark found: a table for people, and JSON lines with the facts of the machine."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Spread, Times, ratios
from localsgd.train.engine.machine import processor

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Finding:
    """One line of a table.

    Args:
        case: what was measured.
        contestant: who did it.
        cells: what people see of it, by column.
        figures: what is recorded, by name.
        result: the number that the bound is about; `None` if there is none.
        bound: the most that it may be.
    """

    case: str
    contestant: str
    cells: Mapping[str, str]
    figures: Mapping[str, Any] = field(default_factory=dict)
    result: float | None = None
    bound: float | None = None

    @property
    def holds(self) -> bool | None:
        if self.bound is None or self.result is None:
            return None
        return self.result <= self.bound

    @property
    def verdict(self) -> str:
        if self.holds is None:
            return ""
        return f"[green]<= {self.bound:g}[/]" if self.holds else f"[red]> {self.bound:g}[/]"


def timed(
    case: str, times: Mapping[str, Times], reference: str, bounds: Mapping[str, float]
) -> list[Finding]:
    """A finding for each contestant: its times, and their ratios to the reference's."""
    base = times[reference]
    return [
        _timed(case, name, own, None if name == reference else base, bounds.get(name))
        for name, own in times.items()
    ]


def _timed(case: str, name: str, own: Times, base: Times | None, bound: float | None) -> Finding:
    wall = Spread.of([1000 * seconds for seconds in own.wall])
    cells = {
        "ms": f"{wall.median:.2f}",
        "quartiles": f"{wall.lower:.2f} - {wall.upper:.2f}",
        "least - most": f"{wall.least:.2f} - {wall.most:.2f}",
        "turns": str(len(own.wall)),
    }
    figures: dict[str, Any] = {"turns": len(own.wall), "ms": _rounded(wall)}
    if base is None:
        return Finding(case, name, cells, figures)
    ratio, cpu = ratios(own.wall, base.wall), ratios(own.cpu, base.cpu)
    cells["ratio"] = f"[bold]{ratio.median:.3f}[/]"
    cells["its quartiles"] = f"{ratio.lower:.3f} - {ratio.upper:.3f}"
    cells["of CPU time"] = f"{cpu.median:.3f}"
    least = min(own.wall) / min(base.wall)
    cells["of least times"] = f"{least:.3f}"
    figures |= {"ratio": _rounded(ratio), "cpu_ratio": _rounded(cpu)}
    figures["least_ratio"] = float(f"{least:.5g}")
    return Finding(case, name, cells, figures, ratio.median, bound)


def _rounded(spread: Spread) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in asdict(spread).items()}


def publish(name: str, title: str, findings: Sequence[Finding]) -> bool:
    """Prints the table and writes `results/NAME.jsonl`; says whether all bounds hold."""
    Console().print(_table(title, findings))
    RESULTS.mkdir(exist_ok=True)
    lines = [{"benchmark": name, "machine": machine()}]
    for finding in findings:
        line = {"case": finding.case, "contestant": finding.contestant, **finding.figures}
        if finding.holds is not None:
            line |= {"bound": finding.bound, "holds": finding.holds}
        lines.append(line)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (RESULTS / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return all(finding.holds is not False for finding in findings)


def _table(title: str, findings: Sequence[Finding]) -> Table:
    columns = list(dict.fromkeys(column for finding in findings for column in finding.cells))
    table = Table(title=title, title_justify="left")
    table.add_column("case")
    table.add_column("contestant")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("bound")
    last = None
    for finding in findings:
        if last not in (None, finding.case):
            table.add_section()
        table.add_row(
            "" if finding.case == last else finding.case,
            finding.contestant,
            *(finding.cells.get(column, "") for column in columns),
            finding.verdict,
        )
        last = finding.case
    return table


def machine() -> dict[str, Any]:
    """What a time depends on, and nothing that names the machine."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
