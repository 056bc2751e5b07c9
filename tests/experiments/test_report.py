"""The report, from the records that are kept and from a few made here."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments import tuning
from experiments.engine import Place, distinct
from experiments.families import FAMILIES
from experiments.markdown import escaped, table
from experiments.registry import entries, entry
from experiments.report import page
from experiments.report.content import (
    PENDING,
    Content,
    anchor_of,
    configurations,
    judged_pages,
    section,
)
from experiments.report.tally import Tally, reasons
from experiments.report.text import Text
from experiments.scales import SCALES
from experiments.store import Store, canonical
from experiments.studies import headline, studies
from experiments.study import Claim
from localsgd.cli import main
from localsgd.train.launch import ending
from tests.experiments import browser

VOID = frozenset({"br", "col", "hr", "img", "input", "meta"})
MADE = ("arms", "convex")
"""Studies whose smallest runs are made here: of training, and of another kind."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The smallest runs of two studies."""
    found = Store(SCALES["smoke"], tmp_path_factory.mktemp("records"))
    place = Place(tmp_path_factory.mktemp("scratch"))
    for name in MADE:
        for job in studies()[entry(name).label].jobs(found.scale):
            found.add(job, job.carry_out(place))
    return found


@pytest.fixture(scope="module")
def content(store: Store) -> Content:
    return Content.of(store)


@pytest.fixture(scope="module")
def written(content: Content, store: Store) -> str:
    return page.page(Text(content, Tally.of(content, store.folder.parent), "images", runs=True))


class Checked(HTMLParser):
    """Elements that are closed in the order in which they were opened, and what they refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: set[str] = set()
        self.loaded: list[str] = []
        self.rows: list[int] = []
        self.without_words: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in known:
            self.ids.append(known["id"] or "")
        if tag == "a" and "href" in known:
            self.targets.add(known["href"] or "")
        self.loaded += [known[name] or "" for name in ("src", "srcset", "data") if name in known]
        if tag in ("link", "script", "iframe", "object", "embed"):
            self.loaded.append(f"{tag} {known}")
        if tag == "tbody":
            self.rows.append(0)
        if tag == "tr" and self.rows:
            self.rows[-1] += 1
        if tag == "img" and not known.get("alt"):
            self.without_words.append(known.get("src") or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.words += data

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()


def test_text_is_escaped_wherever_it_stands() -> None:
    """It comes back as it was, and is no element: in prose, in a cell, in a title, in a link."""
    text = """<script>a*b*_c_`d`|&lt;[e](f)~~g~~\\h$i$</script>"""
    said = escaped(text)
    for source in (said, f"- {said}", f"**{said}**", table([said], [[said]]), f"### {said}"):
        made = Checked(page.markdown().render(source))
        assert made.words.strip().startswith(text)
        assert not made.targets
    assert "<script" not in page.markdown().render(f'[a](#b "{said}") {said}')


def test_the_page_is_whole_and_loads_nothing(written: str) -> None:
    found = Checked(written)
    assert not found.open
    assert len(set(found.ids)) == len(found.ids)
    assert found.targets <= {f"#{name}" for name in found.ids}
    assert all(address.startswith("data:image/") for address in found.loaded)
    assert not re.search(r"url\(|@import", written)
    assert not found.without_words
    assert all(found.rows)
    assert len(written) < 5_000_000


def test_every_label_and_every_claim_is_there(written: str, content: Content) -> None:
    found = Checked(written)
    for one in entries().values():
        assert one.name in found.ids
        assert one.label in found.words
    for _, claim in content.claims:
        assert found.words.count(claim.sentence) >= 2, "among all, and in its section"
        assert claim.evidence in found.words
    assert sum(content.counts.values()) == len(content.claims)


def test_numbers_lead_to_their_runs(written: str, content: Content) -> None:
    """A row's link, the runs' place, a line for each seed in its curve."""
    job, *_ = studies()[entry("arms").label].jobs(SCALES["smoke"])
    anchor = anchor_of(job)
    assert f'href="#{anchor}"' in written
    place = written.index(f'id="{anchor}"')
    (spark,) = re.findall(
        'svg.xml;base64,([^"]+)"', written[written.rindex("<details>", 0, place) :]
    )[:1]
    assert base64.b64decode(spark).count(b"<polyline") == 2
    assert content.configurations[anchor].runs.keys() == {0, 1}


def test_what_is_not_run_is_said(content: Content, tmp_path: Path) -> None:
    """Also where running it would decide nothing."""
    states = {content.state(claim) for entry, claim in content.claims if entry.name == "signs"}
    assert states == {PENDING}
    five = replace(SCALES["small"], seeds=5)
    nothing = Content.of(Store(five, tmp_path))
    states = {nothing.state(claim) for entry, claim in nothing.claims if entry.name == "nets"}
    assert states == {PENDING}
    made = [claim for entry, claim in content.claims if entry.name == "arms"]
    assert {content.state(claim) for claim in made} == {"not decidable at this scale"}
    counted = Claim("A sentence.", "somewhere", "reproduced", "counted")
    assert content.state(counted) == "reproduced"


def test_the_tally_counts_every_claim_on_accuracy_once(content: Content, store: Store) -> None:
    tally = Tally.of(content, store.folder.parent)
    (by,) = tally.counts.values()
    wanted = [claim for _, claim in content.of_kind("measured") if FAMILIES[claim.family].accuracy]
    assert sum(counts.total() for counts in by.values()) == len(wanted)
    assert tally.sentences[0].startswith(f"Of the paper's {len(wanted)} claims on accuracy as they")
    assert len(tally.rows) == sum(one.accuracy for one in FAMILIES.values())
    subjects = [claim.subject for _, claim in content.claims if claim.subject is not None]
    assert len(set(subjects)) == len(subjects)


def test_the_tally_tells_every_scale_that_has_records(content: Content, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    (small / "train-cifar10.jsonl").write_text("")
    tally = Tally.of(content, tmp_path)
    assert [*tally.counts] == ["smoke", "small"]
    assert not any("shown" in row[2] or "the other way" in row[2] for row in tally.rows)
    assert any("Nothing has converged here" in reason for _, reason in reasons("small"))


def test_all_records_of_the_main_claims_are_counted() -> None:
    """In the list and in the section, however far the work is; a run that tunes stands apart."""
    kept = Store(SCALES["medium"])
    keys = {
        canonical(json.loads(line)["key"])
        for path in kept.folder.glob("*.jsonl")
        for line in path.read_text().splitlines()
    }
    one = section(entry("arms"), kept, judged_pages(kept))
    whole = distinct(headline.whole(kept))
    assert {canonical(job.key) for job in whole if kept.of(job) is not None} == keys
    assert (one.done, len(one.jobs)) == (len(keys), len(whole))
    large = headline.arms(kept, headline.M1)["A2"]
    tunes = tuning.point(headline.to_tune(kept.scale, "A2"), 0.5)
    assert tunes.run.lr == large.run.lr
    found = configurations([*large.jobs, tunes], kept)
    runs, tuned = found[anchor_of(large.jobs[0])], found[anchor_of(tunes)]
    assert [*runs.runs] == [*range(10)]
    assert [*tuned.runs] == [tuning.SEED]
    assert tuned.title == f"{runs.title}, to tune the rate"


def test_evidence_is_counted_where_it_is_first_told(store: Store) -> None:
    pages = judged_pages(store)
    label = entry("post-local-sweeps").label
    (note,) = [note for note in pages[label].notes if "H = 16 is better than mini-batch" in note]
    assert note.endswith("rests on the numbers of a claim of arms, and is counted there.")
    sentence = note[1 : note.index("”")]
    assert sentence in {claim.sentence for claim in studies()[label].page(store).claims}
    assert sentence not in {claim.sentence for claim in pages[label].claims}


def test_every_claim_has_a_family_and_says_what_its_evidence_is(content: Content) -> None:
    assert all(claim.family in FAMILIES for _, claim in content.claims)
    for _, claim in content.claims:
        consistent = claim.state in ("consistent", "not consistent")
        assert consistent <= (claim.kind != "measured"), claim.sentence


def test_a_page_of_the_records_that_are_kept(tmp_path: Path) -> None:
    """Through the command; figures of the Markdown lie where it says."""
    out, text = tmp_path / "report.html", tmp_path / "docs" / "reproduced.md"
    text.parent.mkdir()
    assert main(["report", "--out", str(out), "--markdown", str(text)]) == 0
    found = Checked(out.read_text(encoding="utf-8"))
    assert not found.open
    assert out.stat().st_size < 5_000_000
    said = text.read_text(encoding="utf-8")
    pictures = re.findall(r"\]\((images/[^)]+)\)", said)
    assert pictures
    assert all((text.parent / name).is_file() for name in pictures)
    for one in entries().values():
        assert f"## {one.name}\n" in said


def test_a_page_with_tuned_baselines_says_so(tmp_path: Path) -> None:
    out, text = tmp_path / "report.html", tmp_path / "reproduced.md"
    told = ["report", "--scale", "smoke", "--out", str(out), "--markdown", str(text)]
    assert main(told) == 0
    assert "learning rates of baselines tuned" not in out.read_text(encoding="utf-8")
    assert main([*told, "--tune"]) == 0
    assert "learning rates of baselines tuned" in out.read_text(encoding="utf-8")
    made_by = f"`localsgd report --scale smoke --tune --markdown {text.name}`"
    assert made_by in text.read_text(encoding="utf-8")


def test_mistakes_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    inside = str(tmp_path / "file" / "new")
    for arguments, says in (
        (["report", "--records", inside], "new is no folder of records; give one with --records"),
        (["report", "--out", f"{inside}/r.html"], "new cannot be written; give another place with"),
        (["report", "--markdown", str(tmp_path)], "is a folder; give a file with --markdown"),
        (["reproduce", "signs", "--out", inside], "new cannot be written; give another place"),
        (["reproduce", "signs", "--work", inside], "another place with --work"),
    ):
        monkeypatch.setattr(ending, "_said", False)
        assert main([*arguments, "--scale", "smoke"]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert says in said.err


def test_cells_cannot_break_a_table() -> None:
    made = table(["a", "b"], [[escaped("1 | 2\n<b>"), "3"]], numbers=[1])
    assert made.splitlines() == ["| a | b |", "| --- | ---: |", r"| 1 \| 2 \<b\> | 3 |"]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not on the PATH")
@pytest.mark.timeout(240)
def test_in_a_browser(written: str, tmp_path: Path) -> None:
    """At a phone's width nothing is wider than the screen; nothing fails; night is dark."""
    light = browser.opened(written, tmp_path, width=400)
    dark = browser.opened(written, tmp_path, width=400, dark=True)
    for found in (light, dark):
        assert found.failures == []
        assert found.client == 400
        assert found.scroll <= found.client
        assert found.empty_tables == 0
        assert found.tables > 30
        assert found.images > 5
    assert light.brightness > 200 > 60 > dark.brightness
