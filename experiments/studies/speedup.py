"""Speed-up of whole runs and of their second phase, from one model of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.claims import OPEN
from experiments.clock import WORKERS
from experiments.registry import entry
from experiments.study import Cell, Claim, Page, Records, Study, Table
from localsgd.cost.speedup import of_local_steps, of_run, price_from

WHOLE = "tab:post_local_sgd_across_arch_and_tasks_speedup"
SECOND = "tab:post_local_sgd_across_arch_and_tasks_speedup_for_second_phase"
PLACE = "appendix C.3"
ROUNDED = 0.015
"""Tolerance for numbers with two decimals computed from others with two decimals."""


@dataclass(frozen=True)
class Setting:
    """A network on a task, with the paper's speed-ups by H."""

    model: str
    task: str
    whole: dict[int, float]
    second: dict[int, float]

    @property
    def name(self) -> str:
        return f"{self.model} on {self.task}"

    def derived(self, local_steps: int) -> float:
        """Speed-up of the whole run, from the paper's two phases, each with half the work."""
        return of_run([(0.5, self.second[1]), (0.5, self.second[local_steps])])

    def modelled(self, local_steps: int) -> float:
        """Speed-up of the second phase, from that at H = 1 alone; never above K."""
        return of_local_steps(WORKERS, price_from(WORKERS, self.whole[1]), local_steps)

    def predicted(self, local_steps: int) -> float:
        """Speed-up of the whole run, from that at H = 1 alone."""
        return of_run([(0.5, self.whole[1]), (0.5, self.modelled(local_steps))])


def settings() -> list[Setting]:
    """All settings of the paper."""
    whole, second = (_by_network(name) for name in ("speedup", "speedup-second-phase"))
    return [Setting(*key, whole[key], second[key]) for key in whole]


def _by_network(name: str) -> dict[tuple[str, str], dict[int, float]]:
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in entry(name).values:
        key = row["model"], row["task"]
        found.setdefault(key, {})[row["local_steps"]] = row["speedup"]
    return found


def whole_page(records: Records) -> Page:
    rows: list[list[Cell]] = [
        [
            one.model,
            one.task,
            h,
            round(one.derived(h), 2),
            round(one.predicted(h), 2),
            paper,
        ]
        for one in settings()
        for h, paper in one.whole.items()
    ]
    headings = ("model", "task", "H", "from the two phases", "from H = 1 alone", "paper")
    table = Table(f"Speed-up of a whole run on {WORKERS} GPUs (modelled)", headings, rows)
    return Page(tables=[table], claims=list(_whole_claims()), notes=(MODEL, HALVES, SLIP))


def _whole_claims() -> Iterator[Claim]:
    cases = [(one, h) for one in settings() for h in one.whole]
    off = max(abs(one.derived(h) - one.whole[h]) for one, h in cases)
    yield Claim(
        "The speed-up of a whole run of post-local SGD follows from that of its second phase.",
        PLACE,
        "consistent" if off <= ROUNDED else "not consistent",
        f"computed: the largest difference of {len(cases)} entries is {off:.3f}",
        kind="computed",
        family="counts",
    )


def second_page(records: Records) -> Page:
    rows: list[list[Cell]] = [
        [one.model, one.task, h, round(one.modelled(h), 2), paper]
        for one in settings()
        for h, paper in one.second.items()
    ]
    table = Table(
        f"Speed-up of the second phase on {WORKERS} GPUs (modelled)",
        ("model", "task", "H", "from H = 1 alone", "paper"),
        rows,
    )
    above = [(one, h) for one in settings() for h, s in one.second.items() if s > WORKERS]
    names = ", ".join(f"{one.name} with H = {h}" for one, h in above)
    said = (
        "it takes 16 GPUs. No speed-up over one worker of the same algorithm is above K on any "
        f"clock, and the paper has {len(above)} such entries: {names}"
    )
    sentence = f"The second phase is sped up by more than K = {WORKERS}."
    claims = [Claim(sentence, PLACE, OPEN, said, reservation=said, family="time")]
    return Page(tables=[table], claims=claims, notes=(MODEL, ABOVE, SLIP))


MODEL = (
    "Modelled: S(H) = K / (1 + price / H), with a sync's price in local steps taken from the "
    "paper's own speed-up at H = 1. Nothing here was measured on 16 GPUs."
)
HALVES = "The first half of a run has H = 1, so that 1 / S = 0.5 / S(1) + 0.5 / S(H)."
ABOVE = (
    "The paper compares with the time of the same algorithm on one GPU, whose overheads make "
    "speed-ups above K possible."
)
SLIP = (
    "The paper's two tables of speed-ups say WideResNet-28-12; its text and its tables of accuracy "
    "and of sizes have WideResNet-28-10 alone, which is what is named here."
)
STUDIES = (Study(WHOLE, lambda scale: (), whole_page), Study(SECOND, lambda scale: (), second_page))
