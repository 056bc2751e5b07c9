"""What the studies of flatness share: one job a seed, which trains all arms and measures them.

The work is that of `experiments/landscape`, whose design was fixed before it ran; seeds that were
run there are taken over, not run again. The medium scale has another design, as flatness is
measured there of the runs of `studies/headline.py` themselves (M4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.claims import conclude
from experiments.landscape import claims as flat
from experiments.landscape.design import ARMS, SETTINGS, Setting
from experiments.landscape.study import load, one_seed, read, rounded
from experiments.markdown import spread
from experiments.study import (
    Cell,
    Claim,
    Job,
    Picture,
    Record,
    Records,
    Scale,
    ScaleName,
    Workplace,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EARLIER = Path(__file__).parent / "results" / "landscape"
KEPT = ("result", "largest eigenvalue", "eigenvalues", "curve", "interpolation", "effort")
"""Kinds of records that the paper's figures are made of."""
UNITS = {
    "ratio": "geometric mean of ratios",
    "points": "points",
    "loss": "rise beyond the first less rise beyond the second, loss",
}
"""What a claim's values are, in words."""
WORDS = dict(zip(ARMS, ARMS, strict=True)) | {"H=1": "mini-batch (H=1)"}
SETTING: Mapping[ScaleName, Setting] = {
    "smoke": replace(
        SETTINGS["digits"],
        name="tiny",
        model="mlp-16",
        train_samples=160,
        batch=4,
        epochs=3,
        every=3,
        samples=30,
        seeds=1,
    ),
    "small": SETTINGS["fashion-mlp"],
    "paper": Setting(
        name="cifar10-resnet20",
        task="cifar10",
        model="resnet20",
        train_samples=None,
        workers=16,
        batch=128,
        epochs=300,
        lr=0.2,
        lr_batch=128,
        every=10,
        samples=None,
        seeds=3,
    ),
}


@dataclass(frozen=True)
class FlatJob:
    """All arms of one seed, trained and measured."""

    setting: Setting
    seed: int

    @property
    def key(self) -> Mapping[str, Any]:
        chosen = {k: v for k, v in asdict(self.setting).items() if k not in ("name", "seeds")}
        return {"kind": "landscape", **chosen, "seed": self.seed}

    @property
    def title(self) -> str:
        return f"flatness of {self.setting.model} on {self.setting.task}, seed {self.seed}"

    def carry_out(self, place: Workplace) -> Record:
        found = self._earlier() or self._new(place)
        kept = [record for record in found if record["kind"] in KEPT]
        (effort,) = (record["seconds"] for record in kept if record["kind"] == "effort")
        return {"seconds": round(effort, 1), "records": kept}

    def _earlier(self) -> list[dict[str, Any]]:
        if SETTINGS.get(self.setting.name) != self.setting:
            return []
        found = read(EARLIER / f"{self.setting.name}.jsonl")
        return [record for record in found if record["seed"] == self.seed]

    def _new(self, place: Workplace) -> list[dict[str, Any]]:
        task = load(self.setting, place.data_dir)
        found = one_seed(self.setting, task, self.seed, lambda line: None)
        return [{"seed": self.seed, **rounded(record)} for record in found]


def jobs(scale: Scale) -> list[FlatJob]:
    setting = SETTING[scale.name]
    return [FlatJob(setting, seed) for seed in range(scale.asked or setting.seeds)]


@dataclass(frozen=True)
class Flat:
    """The records of all seeds that are done, as `experiments/landscape` reads them."""

    records: Records
    jobs: Sequence[Job]
    seeds: Sequence[flat.Records]

    @staticmethod
    def of(records: Records) -> Flat:
        wanted = jobs(records.scale)
        done = [found for job in wanted if (found := records.of(job)) is not None]
        return Flat(records, wanted, [[*one["records"]] for one in done])

    @property
    def together(self) -> flat.Records:
        return [record for seed in self.seeds for record in seed]

    def spread(self, value: flat.Value, digits: int = 4) -> Cell:
        """Mean and deviation over seeds, to so many significant digits."""
        found = [value(seed) for seed in self.seeds]
        return spread(found, f".{digits}g", ".2g") if found else None

    def claims(self, wanted: Callable[[flat.Claim], bool], place: str) -> list[Claim]:
        """Those of the earlier design that a figure is about."""
        return [self.judged(one, place) for one in flat.all_claims() if wanted(one)]

    def judged(self, claim: flat.Claim, place: str) -> Claim:
        """A claim by the one rule; seeds without a result leave it undecided."""
        first = claim.text[0]
        sentence = (first if first == "λ" else first.upper()) + claim.text[1:] + "."
        return conclude(
            self.records,
            sentence,
            place,
            [claim.value(seed) for seed in self.seeds],
            UNITS[claim.unit],
            self.jobs,
            family=claim.family,
            bounds=claim.bounds,
            show=claim.show,
            least=claim.least,
            seeds=len(self.jobs),
        )

    def picture(self, name: str, title: str, draw: Callable[[flat.Records], Figure]) -> Picture:
        return Picture(name, title, lambda: draw(self.together), self.jobs)


def note(scale: ScaleName) -> str:
    """The setting in words."""
    one = SETTING[scale]
    samples = "all" if one.train_samples is None else f"{one.train_samples:,}"
    return (
        f"{one.model} on {one.task}, {samples} training samples, K = {one.workers}, B = "
        f"{one.batch}, {one.epochs:g} epochs; the arms of a seed go on from one first phase. "
        "Eigenvalues by Lanczos, of the loss without weight decay, batch norm estimated again; the "
        "paper has power iteration. Evidence as x is the geometric mean of the ratios of the first "
        "to the second."
    )
