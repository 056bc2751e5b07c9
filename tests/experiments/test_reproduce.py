"""All studies at the smallest scale, as the command runs them."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from experiments import engine, flat, studies
from experiments import reproduce as reproduction
from experiments.costs import planned
from experiments.engine import Place, distinct
from experiments.families import FAMILIES
from experiments.registry import entries, entry
from experiments.report import write
from experiments.report.content import Content
from experiments.reproduce import Request, reproduce
from experiments.scales import SCALES, scale_of
from experiments.store import Store
from experiments.studies import convex
from experiments.study import Page, Record, Scale, Study
from experiments.training import TrainJob
from localsgd.basics.shards import share
from localsgd.basics.units import size
from localsgd.errors import UserError
from localsgd.train.config.run import Run
from localsgd.train.data import tasks
from localsgd.train.data.tasks import imagenet
from tests.experiments.jobs import Square

SMOKE = SCALES["smoke"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduced")


@pytest.fixture(scope="module")
def said(folder: Path) -> str:
    """What `reproduce --all --scale smoke` prints."""
    console = Console(file=io.StringIO(), width=300, record=True)
    request = Request(
        everything=True, scale="smoke", processes=2, out=folder / "out", work=folder / "work"
    )
    assert reproduce(request, console) == 0
    return console.export_text()


@pytest.fixture
def store(said: str, folder: Path) -> Store:
    return Store(SMOKE, folder / "out")


def pages(store: Store) -> Iterator[tuple[str, Page]]:
    for label, study in studies.studies().items():
        yield entry(label).name, study.page(store)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_page_is_full(said: str, store: Store) -> None:
    """Tables without gaps, whose rows name their jobs; claims with evidence; pictures that draw."""
    for name, page in pages(store):
        assert page.tables or page.pictures, name
        for table in page.tables:
            assert table.rows, table.title
            assert len(table.jobs) in (0, len(table.rows)), table.title
            for row in table.rows:
                assert len(row) == len(table.headings), (name, table.title, row)
                assert None not in row, (name, table.title, row)
        for claim in page.claims:
            assert claim.evidence, (name, claim.sentence)
            assert claim.place, (name, claim.sentence)
        assert len({picture.name for picture in page.pictures}) == len(page.pictures)
        for picture in page.pictures:
            axes = picture.draw().axes
            assert axes, (name, picture.name)
        assert entry(name).shows in said


@pytest.mark.timeout(600)
def test_every_record_is_there_and_short(said: str, store: Store) -> None:
    for study in studies.studies().values():
        for job in distinct(study.jobs(SMOKE)):
            assert store.of(job) is not None, job.title
    for path in store.folder.glob("train-*.jsonl"):
        assert max(map(len, path.read_text().splitlines())) < 2048


@pytest.mark.timeout(600)
def test_done_once_it_takes_no_time(said: str, folder: Path) -> None:
    console = Console(file=io.StringIO(), width=300, record=True)
    request = Request(("arms",), scale="smoke", out=folder / "out", work=folder / "work")
    assert reproduce(request, console) == 0
    assert "smoke: 10 jobs, 10 done" in console.export_text()


def test_every_label_has_a_study() -> None:
    assert list(studies.studies()) == list(entries())


@pytest.mark.parametrize("label", studies.studies())
def test_before_anything_is_done_there_is_a_page(label: str, tmp_path: Path) -> None:
    """Its claims decide nothing, and its jobs are runs that can be carried out."""
    study = studies.studies()[label]
    for scale in (SCALES[name] for name in study.scales):
        page = study.page(Store(scale, tmp_path))
        for claim in page.claims:
            if claim.jobs:
                assert claim.state == "not decidable at this scale", claim.sentence
        for job in study.jobs(scale):
            assert job.title
            if isinstance(job, TrainJob):
                assert planned(job).steps >= 1


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_scale_has_a_report_and_a_forecast(
    scale: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the studies with a design there, and no others; nothing is carried out."""
    designed = {label for label, one in studies.studies().items() if scale.name in one.scales}
    assert designed == {one.label for one in entries().values()} or scale.name == "medium"
    content = Content.of(Store(scale, tmp_path))
    assert {one.entry.label for one in content.sections if one.page is not None} == designed
    write(scale.name, tmp_path / "r.html", text=tmp_path / "r.md", records=tmp_path)

    monkeypatch.setattr(engine, "carry_out", lambda *_: engine.Outcome(failed={"nothing": "run"}))
    console = Console(file=io.StringIO(), width=300, record=True)
    request = Request(
        everything=True, scale=scale.name, processes=1, out=tmp_path, work=tmp_path / "work"
    )
    monkeypatch.setattr(reproduction.showing, "_written", lambda picture, path: path)
    assert reproduce(request, console) == 1
    said = console.export_text()
    assert {one.label for one in entries().values() if f"{one.both}: {one.shows}" in said} == (
        designed
    )
    # Only where the jobs at hand are a part of the work is the whole of it foretold.
    assert ("what is done already included" in said) == (scale.name == "medium")


def test_an_accuracy_family_says_what_the_medium_scale_can_show() -> None:
    assert all("medium" in one.why for one in FAMILIES.values() if one.accuracy)


def done(folder: Path, **settings: Any) -> Record:
    ground = {**SMOKE.ground, "evaluate_local": "never", **settings}
    return TrainJob(Run(**ground)).carry_out(Place(folder))


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"method": "mini-batch"}, [10]),
        ({"method": "local", "local_steps": (4,)}, [3]),  # 4 + 4 + 2
        ({"method": "post-local", "local_steps": (4,)}, [7]),  # 5 single steps, 4 + 1
        ({"method": "batch-growth", "local_steps": (4,)}, [7]),
    ],
)
def test_rounds_and_bytes_are_those_of_the_schedule(
    settings: dict[str, Any], rounds: list[int], tmp_path: Path
) -> None:
    """Every sync hands over a whole model: 64 x 64 + 64 + 64 x 10 + 10 scalars, padded."""
    record = done(tmp_path, **settings)
    assert record["steps"] == 10
    assert record["syncs"] == rounds
    assert record["scalars"] == 16 * math.ceil(record["scalars"] / 16) >= 4810
    assert record["bytes"] == [count * 4 * record["scalars"] for count in rounds]


def test_blocks_average_within_and_all_together(tmp_path: Path) -> None:
    """2 + 2 + 2 | 2 + 2: blocks average after every 2 steps, all of them after 6 and at the end."""
    record = done(tmp_path, method="hierarchical", workers=None, topology="8x2", local_steps=(2, 3))
    assert record["syncs"] == [5, 2]
    assert record["bytes"] == [count * 4 * record["scalars"] for count in (5, 2)]


def test_a_table_shows_what_was_counted(store: Store) -> None:
    page = studies.studies()["tab:improve_sign_sgd"].page(store)
    rows = {row[1:3]: row for row in map(tuple, page.tables[0].rows)}
    headings = list(page.tables[0].headings)
    by = {key: dict(zip(headings, row, strict=True)) for key, row in rows.items()}
    one = by["ef-sign", 1]
    assert one["rounds"] == "10"
    assert float(str(one["sent"]).split()[0]) < 10 * 4 * 4810 / 1000 / 16  # a 32nd, scales beside
    assert str(one["sent"]).endswith(size(1e4)[-2:])
    assert one["paper: CIFAR-10"] == "92.45 ± 0.28"


def test_seeds_that_are_asked_for_are_taken_or_refused() -> None:
    few, more = scale_of("small", 2), scale_of("paper", 5)
    assert [len(flat.jobs(scale)) for scale in (few, more)] == [2, 5]
    assert [len(convex.of_figure(scale, "time")) for scale in (few, more)] == [2, 5]
    request = Request(names=("headline",), scale="medium", seeds=3)
    with pytest.raises(UserError, match="has its numbers of seeds in its design; leave --seeds"):
        reproduce(request, Console(file=io.StringIO()))


def test_a_share_leaves_the_first_jobs_of_others_to_them(tmp_path: Path) -> None:
    """While a grid lacks points of another share, nothing follows from it."""
    console = Console(file=io.StringIO())
    first = [Square(number) for number in range(6)]
    study = Study(
        entry("arms").label,
        lambda scale: first,
        lambda records: Page([]),
        lambda records: [*first, Square(100)],
    )
    store = Store(SMOKE, tmp_path / "out")
    request = Request(names=("arms",), shard="1/2")
    outcome = engine.carry_out(share(first, "1/2"), store, Place(tmp_path), 1, console)
    more = reproduction._later(request, [study], first, store, outcome)
    mine = engine.share_by_key([Square(100)], "1/2")
    assert [job.number for job in more] == [job.number for job in mine]


def test_missing_data_is_told_and_others_go_on(
    folder: Path, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def missing(*_: Any, **__: Any) -> Any:
        raise UserError("no data here; put it there")

    monkeypatch.setattr(tasks, "load", missing)
    console = Console(file=io.StringIO(), width=300, record=True)
    request = Request(("votes",), scale="smoke", out=tmp_path, work=tmp_path, data_dir=tmp_path)
    assert reproduce(Request(**{**vars(request), "processes": 1}), console) == 1
    text = console.export_text()
    assert text.count("no data here; put it there") == 1
    assert "…" in text


def test_a_folder_of_images_is_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole path of the ImageNet rows, a ResNet-50 of two channels, on 16 pictures."""
    for part, count in (("train", 8), ("val", 2)):
        for label in ("cat", "dog"):
            place = tmp_path / "imagenet" / part / label
            place.mkdir(parents=True)
            for number in range(count):
                (place / f"{number}.JPEG").write_bytes(bytes([number, label == "cat"]))

    def decode(path: Path) -> torch.Tensor:
        number, cat = path.read_bytes()
        shape = (3, 64 + number, 80)
        return torch.full(shape, 200 * cat + number, dtype=torch.uint8)

    monkeypatch.setattr(imagenet, "pillow_decode", lambda: decode)
    settings: dict[str, Any] = {
        "task": "imagenet",
        "model": "imagenet-resnet50-2",
        "workers": 2,
        "batch": 2,
        "epochs": 3.0,
        "lr_warmup": 0.0,
        "evaluate_local": "never",
        "method": "post-local",
        "local_steps": (2,),
    }
    record = TrainJob(Run(**settings)).carry_out(Place(tmp_path / "work", tmp_path))
    assert record["steps"] == 12
    assert record["syncs"] == [4 + 4]
    assert record["samples"] == 16
    assert 0 <= record["test_accuracy"] <= 1
