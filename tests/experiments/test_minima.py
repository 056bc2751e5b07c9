"""M4: models that runs leave to be measured, their measurement, and its place in the work."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

from experiments.costs import seconds
from experiments.engine import Place
from experiments.landscape.claims import chosen
from experiments.minima import Measures, Minima
from experiments.report.content import PENDING, Content, configurations
from experiments.scales import SCALES
from experiments.store import Store, canonical
from experiments.studies import headline, headline_minima
from experiments.studies.headline_minima import SEEDS, SHARES
from experiments.study import Claim, Job, Record, Scale
from experiments.training import TrainJob
from localsgd.errors import UserError
from localsgd.train.config.run import Run

matplotlib.use("Agg")
SMOKE, MEDIUM = SCALES["smoke"], SCALES["medium"]
GROUND: dict[str, Any] = {
    "task": "digits",
    "model": "small-cnn-2",
    "train_samples": 300,
    "workers": 4,
    "batch": 8,
    "epochs": 2.0,
    "evaluate_every": 0.5,
    "evaluate_local": "never",
}
"""18 steps of 18.75; the rate falls after 9 and 14, none of which is a whole epoch."""
LARGE = TrainJob(Run(**GROUND, method="mini-batch"), keep=SHARES)
LOCAL = TrainJob(Run(**GROUND, method="post-local", local_steps=(4,)), keep=SHARES)
MEASURES = Measures(samples=40, line_samples=30, top=2, directions=2, points=5, line_points=5)
BOTH = Minima(LOCAL, LARGE, ("A5", "A2"), MEASURES)


def place(folder: Path) -> Place:
    return Place(folder / "work", records=Store(SMOKE, folder / "out"))


def left(folder: Path) -> list[str]:
    """Models that are kept, and what is trained aside."""
    found = [*folder.glob("work/snapshots/*/*"), *folder.glob("work/again/*")]
    return sorted(path.name for path in found)


def without_seconds(record: Record) -> dict[str, Any]:
    return {**record, "seconds": 0}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    """Runs, with their models measured right after; the folder of their records."""
    folder = tmp_path_factory.mktemp("measured")
    for job in (LARGE, LOCAL):
        place(folder).once(job, lambda job=job: job.carry_out(place(folder)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TrainJob, "_trained", None)  # nothing is trained again
        record = BOTH.carry_out(place(folder))
    return folder, record


@pytest.mark.parametrize("job", [LARGE, LOCAL], ids=["mini-batch", "post-local"])
def test_keeping_models_changes_neither_the_job_nor_a_bit(job: TrainJob, tmp_path: Path) -> None:
    plain = replace(job, keep=())
    assert plain == job
    assert plain.key == job.key
    kept = job.carry_out(place(tmp_path / "kept"))
    assert without_seconds(plain.carry_out(place(tmp_path))) == without_seconds(kept)
    assert left(tmp_path) == []
    assert left(tmp_path / "kept") == sorted(f"{share:g}.safetensors" for share in SHARES)


def test_the_models_are_those_of_the_run(tmp_path: Path) -> None:
    """Both arms have one model at the switch, and end in what their records tell; those of a trunk
    that another run has gone past are there as well.
    """
    here = place(tmp_path)
    states = {}
    for job in (LARGE, LOCAL):
        record = here.once(job, lambda job=job: job.carry_out(here))
        models = job.models(here, record, tmp_path / "aside")
        task = job.task(here)
        with torch.no_grad():
            x, y = task.test_batch(torch.arange(task.test_size))
            right = float((models[1.0](x).argmax(1) == y).double().mean())
        assert right == pytest.approx(record["test_accuracy"], rel=1e-4)
        states[job] = {
            share: torch.cat([*map(torch.ravel, model.parameters())])
            for share, model in models.items()
        }
    assert torch.equal(states[LARGE][0.5], states[LOCAL][0.5])
    rows = [row for one in states.values() for row in one.values()]
    assert len({tuple(row.tolist()) for row in rows}) == 2 * len(SHARES) - 1


def test_what_is_measured(measured: tuple[Path, Record]) -> None:
    folder, record = measured
    assert left(folder) == []
    rows = record["records"]
    for arm in BOTH.names:
        largest = chosen(rows, "largest eigenvalue", model=arm)
        assert [row["epoch"] for row in largest] == [1.0, 1.25, 1.5, 1.75]
        (end,) = chosen(rows, "eigenvalues", model=arm)
        assert (end["epoch"], len(end["values"]), end["statistics"]) == (2.0, 2, "kept")
        assert len(chosen(rows, "curve", model=arm)) == 2
        assert len(chosen(rows, "sharpness", model=arm)) == 1
        sizes = [row["samples"] for row in chosen(rows, "result", model=arm)]
        assert sizes[0] == 300
    lines = chosen(rows, "interpolation", pair="A5 to A2")
    assert [line["statistics"] for line in lines] == ["interpolated", "estimated"]
    first = [chosen(rows, "largest eigenvalue", model=arm)[0] for arm in BOTH.names]
    assert first[0]["largest"] == first[1]["largest"]
    weights = {
        name: job.carry_out(place(folder))["weights"]
        for name, job in zip(BOTH.names, (LOCAL, LARGE), strict=True)
    }
    assert record["weights"] == weights


def test_it_is_done_once(measured: tuple[Path, Record], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, record = measured
    monkeypatch.setattr(Minima, "_measured", None)
    again = replace(BOTH, measures=replace(MEASURES, seconds=9.0))
    assert without_seconds(again.carry_out(place(folder))) == without_seconds(record)


def elsewhere(folder: Path, tmp_path: Path, edit: Mapping[str, Any] | None = None) -> Place:
    """The records of the runs, changed by `edit`, where nothing else of them is."""
    before, after = place(folder), place(tmp_path)
    for job in (LARGE, LOCAL):
        after.once(job, lambda job=job: {**job.carry_out(before), **(edit or {})})
    return after


def test_models_that_are_not_there_are_trained_again(
    measured: tuple[Path, Record], tmp_path: Path
) -> None:
    """Beside trunks that have gone past them, as a run without them leaves."""
    folder, record = measured
    there = elsewhere(folder, tmp_path)
    replace(LARGE, keep=()).carry_out(Place(there.scratch))
    assert left(tmp_path) == []
    assert without_seconds(BOTH.carry_out(there)) == without_seconds(record)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        ({"weights": "0123456789ab"}, "differs in its last weights from its record"),
        ({"curve": [[0.56, 0.1, 2.0]]}, "differs at epoch "),
    ],
    ids=["weights", "curve"],
)
def test_what_comes_out_otherwise_is_not_measured(
    edit: dict[str, Any], where: str, measured: tuple[Path, Record], tmp_path: Path
) -> None:
    there = elsewhere(measured[0], tmp_path, edit)
    with pytest.raises(UserError, match=f"^post-local, .*{where}.*measure it where it was made$"):
        BOTH.carry_out(there)
    assert left(tmp_path) == []


@dataclass
class Tuned:
    """The grid of A2 is done, and what `known` has."""

    known: dict[str, Record] = field(default_factory=dict)
    scale: Scale = MEDIUM

    def of(self, job: Any) -> Record | None:
        if isinstance(job, TrainJob) and job.run.seed == 1000:
            return {"test_accuracy": 0.9 - ((job.run.lr or 0.0) - 0.2) ** 2}
        return self.known.get(canonical(job.key))


def test_two_seeds_are_measured_before_the_next_ones_are_trained() -> None:
    stage = headline.later(Tuned())
    said = [
        ("M4", job.first.run.seed) if isinstance(job, Minima) else ("M1", job.run.seed)
        for job in stage
        if isinstance(job, Minima | TrainJob)
    ]
    pair = [("M1", 0), ("M1", 1)]
    assert said[:7] == [*pair * 2, ("M4", 0), ("M4", 1), ("M1", 2)]
    pair = [("M1", 4), ("M1", 5)]
    assert said[12:18] == [*pair * 2, ("M4", 4), ("M1", 6)]
    assert len(said) == 2 * headline.M1.seeds + SEEDS
    trained = {canonical(job.key): job for job in stage if isinstance(job, TrainJob)}
    wanted = [one for job in stage if isinstance(job, Minima) for one in (job.first, job.second)]
    assert {trained[canonical(job.key)].keep for job in wanted} == {SHARES}
    assert sum(bool(job.keep) for job in trained.values()) == len(wanted) == 2 * SEEDS
    assert not any(job.keep for job in headline.jobs(MEDIUM))


def test_a_measurement_that_cannot_be_made_holds_no_run_up() -> None:
    stage = headline.later(Tuned())
    done: dict[str, Record] = {canonical(job.key): {} for job in stage if isinstance(job, TrainJob)}
    then = headline.later(Tuned(done))
    assert then[:SEEDS] == [job for job in stage if isinstance(job, Minima)]
    others = [job.run.local_steps for job in then[SEEDS:] if isinstance(job, TrainJob)]
    assert len(others) == 2 * headline.M1.seeds
    assert {*others} == {(32,), (64,)}


def test_the_forecast_has_it_and_the_keys_of_the_runs_are_as_they_were(tmp_path: Path) -> None:
    store = Store(MEDIUM, tmp_path)
    whole = headline.whole(store)
    runs = [job for job in whole if isinstance(job, TrainJob)]
    rest = [job for job in whole if not isinstance(job, TrainJob)]
    assert [job.first.run.seed for job in rest if isinstance(job, Minima)] == [*range(SEEDS)]
    digest = hashlib.sha256("\n".join(canonical(job.key) for job in runs).encode()).hexdigest()
    assert (len(runs), digest[:16]) == (179, "15a62879dc37c476")
    both, alone = (seconds(jobs, store) for jobs in (whole, runs))
    assert both is not None
    assert alone is not None
    assert both - alone == pytest.approx(SEEDS * headline_minima.MEASURES.seconds)


def state(found: Claim, records: Any) -> str:
    return Content("medium", True, (), configurations(found.jobs, records), {}).state(found)


def scaled(rows: list[dict[str, Any]], factor: float) -> list[dict[str, Any]]:
    """Records in which A5 has eigenvalues of A2 times a factor, and all else is as it was."""
    found = []
    for row in rows:
        if row["kind"] == "eigenvalues":
            base = chosen(rows, "eigenvalues", model="A2")[0]["values"]
            row = {
                **row,
                "values": [value * (factor if row["model"] == "A5" else 1) for value in base],
            }
        found.append(row)
    return found


def test_the_page_by_what_is_there(measured: tuple[Path, Record]) -> None:
    """Nothing; four seeds; five of which one has diverged; five."""
    by = headline.arms(Tuned(), headline.M1)
    jobs: list[Job] = [*headline_minima.jobs(by)]
    rows = measured[1]["records"]
    trained = {canonical(job.key): {} for one in by.values() for job in one.jobs}
    whole = {
        canonical(job.key): {"records": scaled(rows, 0.5 + 0.01 * seed)}
        for seed, job in enumerate(jobs)
    }
    keys = [*whole]
    diverged = {**whole, keys[4]: {"records": [{"kind": "not measured", "why": "it diverged"}]}}
    some = {key: whole[key] for key in keys[:4]}
    for known, seeds, said in (
        ({}, 0, PENDING),
        (some, 4, PENDING),
        (diverged, 4, "not decidable at this scale"),
        (whole, 5, "reproduced"),
    ):
        records = Tuned({**trained, **known})
        page = headline_minima.page(records, by)
        end = next(one for one in page.claims if one.sentence.startswith("λ max at the end"))
        assert state(end, records) == said
        assert {one.family for one in page.claims} == {"flatness"}
        (table,) = page.tables
        assert [row[-1] for row in table.rows] == [seeds, seeds]
        assert (None in table.rows[0]) == (seeds == 0)
        if seeds:
            left, *others = page.pictures[0].draw().axes
            assert [len(axes.lines) for axes in (left, *others)] == [2, 3, 3]
    judged = headline_minima.page(Tuned({**trained, **diverged}), by).claims
    assert all("4 of 5 seeds have a result" in one.evidence for one in judged)
    assert "x 0.5198" in end.evidence
    local, large = (float(str(row[2]).split()[0]) for row in table.rows)
    assert local / large == pytest.approx(0.52, rel=0.01)
