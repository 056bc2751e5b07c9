"""The paper's main claims where they can be seen: M1 to M5. Fixed before the first counted run.

    M1  CIFAR-10, 10,000 images, 80 epochs, K = 16, B = 32, ten seeds
    M4  flatness of M1's models, five seeds (`headline_minima.py` has its design)
    M3  CIFAR-10, all 50,000 images, 100 epochs, K = 16, B = 128, five seeds
    M5  compressed and hierarchical syncs, otherwise as M1, five seeds
    M2  CIFAR-100, otherwise as M1, five seeds

Arms (the paper's figure of five ways to train): A1 one worker; A2 K = 16; A3 K = 16 with eight
times the batch, the effective batch of A4; A4 local SGD, H = 8; A5 post-local SGD that goes on from
the workers of A2 at the first decay, H = 8, 16, 32 and 64. M5 has the paper's table of signs (sign
and EF-sign, H = 1 and post-local H = 16) and that of blocks: local SGD with H = 16 beside
hierarchical local SGD with as many syncs of all (8 blocks of 2 and 2 blocks of 8, H = 2, H^b = 8).

The network is ResNet-20 with identity shortcuts. The rate is scaled linearly from 0.2 for 128
samples, warmed up over 1/60 of the run, and falls tenfold at 50 % and 75 %. Nesterov momentum 0.9,
weight decay 1e-4, crops and flips; bfloat16 by autocast, with weights in float32.

- Rates. Those of A1, A2 and A3 of M1 are tuned on a seed that does not count, by test accuracy at
  the end, as in the paper: the paper's grid of five (15/16 to 17/16 of the scaled rate), half and
  twice of it, as the five are alike but for chance, and for A3 down to 1/16; a grid grows while its
  best lies at an end. A5 goes on at A2's rate, and A4 takes A2's factor. M2 and M3 take the factors
  of M1: the gap between A1 and A2 of M2, whose rates are not tuned there, decides nothing. In M5
  local and hierarchical SGD take A2's factor. EF-sign and sign are tuned at H = 1, and larger H go
  on at that rate: EF-sign, which steps as SGD does, from half to twice the scaled rate; sign steps
  along signs at a rate that is neither scaled nor warmed up, from 1/16 of the released code's 0.01.
- The subset of 10,000 images is one for all seeds, class-balanced. A seed gives first weights,
  order and augmentation. Arms of one seed are paired; A2 and A5 share their first phase to the bit.
- The outcome is the test accuracy of the averaged model at the end of training, batch norm with the
  workers' mean statistics. Test loss is the second outcome. Results with statistics re-estimated on
  augmented training data are recorded beside them and decide nothing.
- The main claim is one: A5 with H = 16 ends at a higher test accuracy than A2 in M1. It is a family
  of its own. The other H, M3 and M2 are a second family, and test losses a third.
- No claim is decided before all seeds of its arms are there.

The order of the work: the grid of A2; A2, A5 with H = 16 and what M4 measures of the two, two seeds
at a time; A5 with H = 32 and 64 (M1a); the grids of A1 and A3, then A1, A3, A4 and A5 with H = 8
(M1b); M3 seed by seed; the grids of sign and EF-sign, then M5; M2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments import tuning
from experiments.arms import Arm, Row, arm, claim, jobs_of, spread, table, values
from experiments.pictures import learning_curves
from experiments.studies import headline_minima
from experiments.study import Claim, Job, Page, Records, Scale, Table
from experiments.training import TrainJob

GRIDS = {
    "A1": tuning.HALF_TO_TWICE,
    "A2": tuning.HALF_TO_TWICE,
    "A3": tuning.FACTORS,
    "sign": (1 / 16, 1 / 4, 1.0),
    "EF-sign": (1 / 2, 1.0, 2.0),
}
"""Factors by the arm that is tuned; of sign and EF-sign, that with H = 1."""
SIGN = {
    "method": "sign",
    "optimizer": "sign",
    "lr": 0.01,
    "lr_scaling": "none",
    "lr_warmup": 0.0,
}
BLOCKS = {"method": "hierarchical", "workers": None, "local_steps": (2, 8)}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "A1": {"method": "mini-batch", "workers": 1},
    "A2": {"method": "mini-batch"},
    "A3": {"method": "mini-batch"},
    "A4": {"method": "local", "local_steps": (8,)},
    "A5, H = 8": {"method": "post-local", "local_steps": (8,)},
    "A5, H = 16": {"method": "post-local", "local_steps": (16,)},
    "A5, H = 32": {"method": "post-local", "local_steps": (32,)},
    "A5, H = 64": {"method": "post-local", "local_steps": (64,)},
    "sign, H = 1": {**SIGN, "local_steps": (1,)},
    "sign, H = 16": {**SIGN, "local_steps": (16,)},
    "EF-sign, H = 1": {"method": "ef-sign", "local_steps": (1,)},
    "EF-sign, H = 16": {"method": "ef-sign", "local_steps": (16,)},
    "local, H = 16": {"method": "local", "local_steps": (16,)},
    "8 x 2 workers": {**BLOCKS, "topology": "8x2"},
    "2 x 8 workers": {**BLOCKS, "topology": "2x8"},
}
AFTER_THE_DECAY = 45.0
"""The epoch of M1's first evaluation after the first decay of the rate."""
MAIN = (16,)
"""H of the main claim."""
EFFECTIVE = 8
"""Ratio of the batches of A3 and A2: the H of A4."""


@dataclass(frozen=True)
class Part:
    """One data set and size, with the arms that are trained on it.

    Args:
        name, title: for people.
        arms: by name, in the order of the table.
        seeds: how many, from 0.
        ground: settings on top of the scale's.
    """

    name: str
    title: str
    arms: tuple[str, ...]
    seeds: int
    ground: Mapping[str, Any] = field(default_factory=dict)


FULL = {"train_samples": None, "epochs": 100.0, "batch": 128, "lr_warmup": 1.667}
M1 = Part(
    "M1", "CIFAR-10, 10,000 images", tuple(name for name in SETTINGS if name[0] == "A"), seeds=10
)
M3 = Part("M3", "CIFAR-10, 50,000 images", ("A2", "A5, H = 16", "A5, H = 32"), 5, FULL)
M2 = Part(
    "M2",
    "CIFAR-100, 10,000 images",
    ("A1", "A2", "A5, H = 16", "A5, H = 32"),
    5,
    {"task": "cifar100"},
)
M5 = Part(
    "M5",
    "CIFAR-10, 10,000 images, compressed and hierarchical syncs",
    tuple(name for name in SETTINGS if name[0] != "A"),
    5,
)
PARTS = (M1, M3, M5, M2)
HOMES = {
    "A1": (M1, "A1"),
    "A2": (M1, "A2"),
    "A3": (M1, "A3"),
    "sign": (M5, "sign, H = 1"),
    "EF-sign": (M5, "EF-sign, H = 1"),
}
"""The part that a tuned arm is tuned in, and its name there."""
FIRST = ("A2", "A5, H = 16")
SECOND = ("A5, H = 32", "A5, H = 64")
"""The arms of M1a: those of the main claim and of M4, and the others; the rest of M1 is M1b."""


def untuned(scale: Scale, part: Part) -> dict[str, Arm]:
    """The arms at the scaled rate, by name."""
    batch = {**scale.ground, **part.ground}["batch"]
    sized = replace(scale, seeds=part.seeds)
    return {
        name: arm(
            sized,
            f"{name} ({part.name})",
            **{
                **part.ground,
                **SETTINGS[name],
                **({"batch": EFFECTIVE * batch} if name == "A3" else {}),
            },
        )
        for name in part.arms
    }


def factors(records: Records) -> dict[str, float | None]:
    """The best factors of the tuned arms; `None` if a grid is not done."""
    return {
        name: tuning.best_factor(records, to_tune(records.scale, name), grid)
        for name, grid in GRIDS.items()
    }


def to_tune(scale: Scale, name: str) -> Arm:
    """A tuned arm, at its rate before tuning."""
    part, full = HOMES[name]
    return untuned(scale, part)[full]


def arms(records: Records, part: Part) -> dict[str, Arm]:
    """The arms of a part at their rates; at the scaled rate while a grid is not done.

    Those count as tuned whose own grid it is, not those that take its factor over.
    """
    known = factors(records)
    found = {}
    for name, one in untuned(records.scale, part).items():
        by = _rated_by(name)
        if (factor := known[by]) is not None:
            one = replace(tuning.at(one, factor), tuned=HOMES[by] == (part, name))
        found[name] = one
    return headline_minima.keeping(found) if part is M1 else found


def _rated_by(name: str) -> str:
    """The tuned arm whose factor an arm takes."""
    own = name.partition(",")[0]
    return own if own in GRIDS else "A2"


def grid_points(records: Records, name: str) -> list[TrainJob]:
    """The jobs to run next in an arm's grid; none once it is done."""
    one = to_tune(records.scale, name)
    known = tuning.scores(records, one, GRIDS[name])
    return [tuning.point(one, factor) for factor in tuning.due(known, GRIDS[name])]


def seed_by_seed(*columns: Sequence[Job]) -> list[Job]:
    """All jobs, two seeds at a time. `columns` have a job for each seed.

    Arms of one seed go on from one first phase, and M4 measures their models. Both are kept in
    scratch, which may be lost, so a seed is finished before the next begins; two at a time, as
    processes wait for each other otherwise.
    """
    seeds = range(max(map(len, columns)))
    return [job for first in seeds[::2] for column in columns for job in column[first : first + 2]]


def stages(records: Records) -> Iterator[list[Job]]:
    """The work in its order, each stage known once those before it are done."""
    known = factors(records)
    if known["A2"] is None:
        yield [*grid_points(records, "A2")]
        return
    m1 = arms(records, M1)
    first, second = ([m1[name].jobs for name in names] for names in (FIRST, SECOND))
    yield seed_by_seed(*first, headline_minima.jobs(m1))
    yield seed_by_seed(*second)
    if None in (known["A1"], known["A3"]):
        yield [job for name in ("A1", "A3") for job in grid_points(records, name)]
        return
    yield seed_by_seed(*(one.jobs for name, one in m1.items() if name not in (*FIRST, *SECOND)))
    yield seed_by_seed(*(one.jobs for one in arms(records, M3).values()))
    if None in (known["sign"], known["EF-sign"]):
        yield [job for name in ("sign", "EF-sign") for job in grid_points(records, name)]
        return
    for part in (M5, M2):
        yield seed_by_seed(*(one.jobs for one in arms(records, part).values()))


def jobs(scale: Scale) -> list[TrainJob]:
    """The first stage; the rest follows from its results."""
    return [tuning.point(to_tune(scale, "A2"), factor) for factor in GRIDS["A2"]]


def later(records: Records) -> list[Job]:
    """The first stage whose runs are not all done. Measurements that are left of earlier ones come
    before it and hold nothing up: they may have to wait for another machine.
    """
    waiting: list[Job] = []
    for stage in stages(records):
        due = [job for job in stage if records.of(job) is None]
        if any(isinstance(job, TrainJob) for job in due):
            return [*waiting, *stage]
        waiting += due
    return waiting


def whole(records: Records) -> list[Job]:
    """All the work as far as it is known: grids as they have grown, arms at the rates found so far.

    Forecasts of hours are made from it, and what is done is counted in it.
    """
    grids = [
        tuning.point(one, factor)
        for name, grid in GRIDS.items()
        for one in [to_tune(records.scale, name)]
        for factor in dict.fromkeys((*grid, *tuning.scores(records, one, grid)))
    ]
    runs = jobs_of([one for part in PARTS for one in arms(records, part).values()])
    return [*grids, *runs, *headline_minima.jobs(arms(records, M1))]


def page(records: Records) -> Page:
    by = {part.name: arms(records, part) for part in PARTS}
    m1 = by["M1"]
    flatness = headline_minima.page(records, m1)
    curves = [
        learning_curves(
            f"curves-{name.lower()}",
            f"Training loss and test accuracy of {', '.join(found)} ({part.title})",
            records,
            list(found.values()),
        )
        for part, (name, found) in zip(PARTS, by.items(), strict=True)
    ]
    shown = {
        "A1": "one worker (A1)",
        "A2": "large batch (A2)",
        "A5, H = 16": "post-local SGD, H = 16 (A5)",
        "A5, H = 32": "post-local SGD, H = 32 (A5)",
    }
    drawn = [name for name in shown if values(records, m1[name], "test_accuracy")]
    main = learning_curves(
        "headline",
        f"{M1.title}: {', '.join(shown[name] for name in drawn or shown)}",
        records,
        [m1[name] for name in shown],
        names=[*shown.values()],
        minus=(m1["A2"], AFTER_THE_DECAY),
    )
    return Page(
        tables=[
            made
            for part in PARTS
            for made in (
                _accuracies(records, part, by[part.name]),
                _losses(records, part, by[part.name]),
            )
        ]
        + [*flatness.tables],
        pictures=[
            main,
            *curves,
            *flatness.pictures,
            *(
                picture
                for name, grid in GRIDS.items()
                for picture in tuning.pictures(records, [to_tune(records.scale, name)], grid, name)
            ),
        ],
        claims=[*_claims(records, by), *flatness.claims],
        notes=[*NOTES, *flatness.notes],
    )


def _accuracies(records: Records, part: Part, by: Mapping[str, Arm]) -> Table:
    rows = [Row((name, f"{one.run.lr:g}"), one) for name, one in by.items()]
    return table(f"{part.name}: {part.title}", ("arm", "rate"), rows, records, paper=())


def _losses(records: Records, part: Part, by: Mapping[str, Arm]) -> Table:
    fields = ("test_loss", "train_loss", "recalibrated_test_accuracy", "recalibrated_test_loss")
    digits = (3, 3, 2, 3)
    return Table(
        f"{part.name}: losses, and results with statistics re-estimated on augmented images",
        (
            "arm",
            "test loss",
            "train loss",
            "re-estimated: test acc. (%)",
            "re-estimated: test loss",
        ),
        [
            [name, *(spread(records, one, f, d) for f, d in zip(fields, digits, strict=True))]
            for name, one in by.items()
        ],
        jobs=[one.jobs for one in by.values()],
    )


def _claims(records: Records, by: Mapping[str, Mapping[str, Arm]]) -> Iterator[Claim]:
    for part in PARTS:
        found = by[part.name]
        for name, one in found.items():
            if name.startswith("A5"):
                yield from _better(records, part, one, found["A2"])
        if "A1" in found:
            yield claim(
                records,
                f"A large batch (A2) ends at a lower test accuracy than a small one (A1): "
                f"{part.title}.",
                "section 1",
                found["A1"],
                found["A2"],
                family="gap",
                paper_tunes=(found["A1"], found["A2"]),
            )
    yield from _of_m5(records, by["M5"])
    m1 = by["M1"]
    yield claim(
        records,
        "Local SGD (A4) is better than mini-batch SGD with the same effective batch and the same "
        "number of rounds (A3): CIFAR-10, 10,000 images.",
        "section 4.1",
        m1["A4"],
        m1["A3"],
        family="local",
        paper_tunes=(m1["A3"],),
    )


def _of_m5(records: Records, by: Mapping[str, Arm]) -> Iterator[Claim]:
    for method in ("sign", "EF-sign"):
        yield claim(
            records,
            f"Post-local {method} with H = 16 is better than with H = 1: {M5.title}.",
            "section 4.2",
            by[f"{method}, H = 16"],
            by[f"{method}, H = 1"],
            family="signs",
        )
    yield claim(
        records,
        f"With H = 1 error feedback is better than signs alone: {M5.title}.",
        "section 4.2",
        by["EF-sign, H = 1"],
        by["sign, H = 1"],
        family="signs",
        paper_tunes=(by["EF-sign, H = 1"], by["sign, H = 1"]),
    )
    for blocks in ("8 x 2", "2 x 8"):
        yield claim(
            records,
            f"Hierarchical local SGD on {blocks} workers with H = 2, H^b = 8 is better than local "
            f"SGD with H = 16, at as many syncs of all: {M5.title}.",
            "appendix D.3",
            by[f"{blocks} workers"],
            by["local, H = 16"],
            family="hierarchical",
        )


def _better(records: Records, part: Part, one: Arm, large: Arm) -> Iterator[Claim]:
    h = one.run.local_steps
    assert h is not None
    sentence = (
        f"Post-local SGD with H = {h[0]} (A5) ends at a {{}} than the large batch (A2) that it "
        f"goes on from: {part.title}."
    )
    yield claim(
        records,
        sentence.format("higher test accuracy"),
        "section 4.2",
        one,
        large,
        family="main" if (part, h) == (M1, MAIN) else "post-local",
    )
    yield claim(
        records,
        sentence.format("lower test loss"),
        "not in the paper, our second outcome",
        one,
        large,
        family="post-local loss",
        sign=-1,
        field="test_loss",
    )


NOTES = (
    "The paper has 50,000 images, 300 epochs and B = 128; M3 has all images, a third of the "
    "epochs. Rates of A1, A2 and A3 are tuned in M1, and those of sign and EF-sign in M5 at H = 1, "
    "on a seed that is not counted, by test accuracy at the end, as in the paper; the other arms "
    "take A2's factor or that of H = 1, and M2 and M3 take the factors of M1.",
    "All numbers are of the averaged model at the end of training, with the workers' mean "
    "statistics of batch norm.",
)
