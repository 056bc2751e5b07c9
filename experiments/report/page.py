"""The HTML page: a summary, all claims, a section for each label, and the runs behind them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from experiments.report.content import STATES, Content, Section
from experiments.report.markup import Html, element, joined
from experiments.report.pieces import CLASS, badge, claim_item, figure, grid, paper_table, table
from experiments.report.runs import listed
from experiments.report.tally import Tally
from experiments.study import Kind, Page

STYLE = Path(__file__).with_name("style.css")
PAPER = "Don't Use Large Mini-Batches, Use Local SGD"
AUTHORS = "Lin, Stich, Patel and Jaggi, ICLR 2020"
MEANING = (
    "Student's t over seeds decides, of differences paired by seed: once all planned runs are "
    "done, with 5 seeds or more, at 5 % after Holm's correction within a family of claims, and "
    "unless a test by sign flips objects. A claim is reproduced where the mean lies in what is "
    "claimed, not reproduced where it lies outside, and else not decidable at this scale. Evidence "
    "about the same numbers is counted once. What is computed from the paper's own numbers, or "
    "modelled on a clock fitted to them, is consistent at best, and counted apart."
)
KINDS: dict[Kind, str] = {
    "measured": "Trained and measured here",
    "computed": "Computed from the paper's own numbers, or counted: consistency, not reproduction",
    "modelled": "Modelled: on a clock that is fitted to the paper's minutes",
}
SCALES = {
    "smoke": "seconds in all; it shows that everything works, and decides nothing",
    "small": "CPU minutes a study: small networks, part of the data, the paper's proportions",
    "medium": "CPU days: the paper's network, data and procedure, fewer images and epochs",
    "paper": "the paper's own size",
}


def page(content: Content, tally: Tally) -> str:
    """The whole page; it loads nothing from elsewhere."""
    title = "The paper's tables and figures, reproduced"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(STYLE.read_text(encoding="utf-8"))),
    )
    body = element(
        "body",
        element("header", element("h1", title), element("p", f"“{PAPER}”, {AUTHORS}")),
        element(
            "main",
            _summary(content, tally),
            _contents(content),
            _claims(content),
            *(_section(one, content) for one in content.sections),
            _runs(content),
        ),
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _summary(content: Content, tally: Tally) -> Html:
    rows = [element("tr", *(element("td", cell) for cell in row)) for row in tally.rows]
    reasons = (
        element("li", element("b", f"{title}. "), " ".join(words))
        for title, words in tally.reasons()
    )
    return element(
        "section",
        element("h2", "Summary"),
        element("p", " ".join(tally.sentences)),
        grid("Claims on accuracy", tally.headings, rows),
        *(_counts(content, kind, title) for kind, title in KINDS.items()),
        element("p", MEANING, class_="small"),
        element("dl", *(element("div", *_pair(*one)) for one in facts(content))),
        element(
            "details",
            element("summary", "Why a scale can or can't show it"),
            element("ul", *reasons, class_="notes"),
        ),
        id="summary",
    )


def _counts(content: Content, kind: Kind, title: str) -> Html:
    counted = Counter(content.state(claim) for _, claim in content.of_kind(kind))
    items = (
        element("li", element("strong", counted[state]), " ", badge(state))
        for state in STATES
        if counted[state]
    )
    return joined(element("p", title, class_="caption"), element("ul", *items, class_="counts"))


def _pair(name: str, value: str) -> tuple[Html, Html]:
    return element("dt", name), element("dd", value)


def facts(content: Content) -> list[tuple[str, str]]:
    """The text of the summary beside the counts."""
    done, all_ = content.runs
    studied = sum(one.page is not None for one in content.sections)
    tuned = "; learning rates of baselines tuned, where that is done" if content.tunes else ""
    said = [
        ("scale", f"{content.scale}: {SCALES.get(content.scale, '')}{tuned}"),
        ("labels", f"{len(content.sections)}, of which {studied} have a study"),
        ("runs", f"{done:,} of {all_:,} done"),
    ]
    for name, values in content.origins.items():
        said.append((name, "; ".join(values)))
    return said


def _contents(content: Content) -> Html:
    items = (
        element(
            "li", element("a", one.entry.name, href=f"#{one.entry.name}", title=one.entry.shows)
        )
        for one in content.sections
    )
    return element("nav", element("ul", *items), aria_label="Tables and figures")


def _claims(content: Content) -> Html:
    choices = [_choice("all", "all", len(content.claims), checked=True)]
    choices += [_choice(CLASS[state], state, content.counts[state]) for state in STATES]
    items = (claim_item(entry, claim, content) for entry, claim in content.claims)
    return element(
        "section",
        element("h2", "Claims"),
        element("fieldset", element("legend", "Show"), *choices),
        element("ul", *items, class_="claims"),
        id="claims",
    )


def _choice(value: str, words: str, count: int, *, checked: bool = False) -> Html:
    box = element("input", type="radio", name="state", id=f"only-{value}", checked=checked)
    return element("label", box, f" {words} ({count})")


def _section(one: Section, content: Content) -> Html:
    runs = content.configurations
    found = one.page or Page()
    claims = (claim_item(one.entry, claim, content) for claim in found.claims)
    return element(
        "section",
        element("h2", one.entry.shows),
        element(
            "p",
            element("code", one.entry.label),
            f" · {one.entry.kind}, {one.entry.part} · {one.progress}",
            class_="small",
        ),
        element("p", element("b", "In the paper: "), one.entry.setting),
        *(table(shown, runs) for shown in found.tables),
        paper_table(one.entry) if not found.tables else None,
        *(figure(picture, content) for picture in found.pictures),
        element("ul", *claims, class_="claims") if found.claims else None,
        _notes(found),
        id=one.entry.name,
    )


def _notes(found: Page) -> Html | None:
    if not found.notes:
        return None
    return element("ul", *(element("li", note) for note in found.notes), class_="notes")


def _runs(content: Content) -> Html:
    return element(
        "section",
        element("h2", "Runs"),
        element(
            "p",
            "Settings that are not named are those that the library has by default. The line "
            "beside a title is the test metric over epochs, one for each seed.",
            class_="small",
        ),
        joined(listed([*content.configurations.values()])),
        id="runs",
    )
