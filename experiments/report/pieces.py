"""Parts of the HTML page: claims, tables, figures, and links to the runs behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.registry import Entry
from experiments.report.content import PENDING, Configuration, Content, anchor_of
from experiments.report.markup import Html, element, joined
from experiments.study import Cell, Claim, Job, Picture, Table

CLASS = {
    "reproduced": "yes",
    "not reproduced": "no",
    "not decidable at this scale": "open",
    "consistent": "fits",
    "not consistent": "misfits",
    PENDING: "later",
}
Runs = Mapping[str, Configuration]


def badge(state: str) -> Html:
    return element("span", state, class_=f"badge {CLASS[state]}")


def claim_item(entry: Entry, claim: Claim, content: Content) -> Html:
    """One claim in a list."""
    state = content.state(claim)
    return element(
        "li",
        element("p", badge(state), " ", claim.sentence, class_="sentence"),
        element(
            "p",
            element("a", entry.name, href=f"#{entry.name}"),
            f" · {claim.place} · {claim.evidence} ",
            links(claim.jobs, content.configurations),
            class_="small",
        ),
        class_=f"claim {CLASS[state]}",
    )


def table(shown: Table, runs: Runs) -> Html:
    """A table that scrolls in itself if the screen is narrow; its last column links to runs."""
    linked = any(shown.jobs)
    headings = [*shown.headings, *(["runs"] if linked else [])]
    body = []
    for index, row in enumerate(shown.rows):
        cells = [_cell(one) for one in row]
        if linked:
            jobs = shown.jobs[index] if index < len(shown.jobs) else ()
            cells.append(element("td", links(jobs, runs)))
        body.append(element("tr", *cells))
    return grid(shown.title, headings, body)


def grid(title: str, headings: Sequence[str], body: Sequence[Html]) -> Html:
    """A table of rows in HTML."""
    head = element("tr", *(element("th", one, scope="col") for one in headings))
    filled = element("table", element("thead", head), element("tbody", *body), aria_label=title)
    # The title stands beside what scrolls, so that it is read in full on a phone.
    return joined(
        element("p", title, class_="caption"),
        element("div", filled, class_="scroll", role="region", tabindex="0", aria_label=title),
    )


def _cell(cell: Cell) -> Html:
    if cell is None:
        return element("td", element("span", "…", class_="todo", title=PENDING))
    number = not isinstance(cell, str) or cell[:1] in "+-−0123456789"
    return element("td", text_of(cell), class_="number" if cell != "" and number else None)


def text_of(cell: Cell) -> str:
    """A cell's text."""
    if cell is None:
        return "…"
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)


def figure(picture: Picture, content: Content) -> Html:
    """An embedded figure, or a note if it has no runs yet."""
    image = content.image(picture)
    if image is None:
        return element("p", element("span", PENDING, class_="todo"), f": {picture.title}")
    return element(
        "figure",
        element(
            "div",
            element("img", src=image.address, alt=picture.title, loading="lazy"),
            class_="scroll",
        ),
        element("figcaption", picture.title, " ", links(picture.jobs, content.configurations)),
    )


def links(jobs: Sequence[Job], runs: Runs) -> Html:
    """Links to the runs behind a number, one for each configuration, with how many are done."""
    anchors = dict.fromkeys(anchor_of(job) for job in jobs)
    found = [runs[anchor] for anchor in anchors if anchor in runs]
    if len(found) > MANY:
        done, all_ = sum(len(one.done) for one in found), sum(len(one.runs) for one in found)
        inside = joined(*(joined(_link(one), " ") for one in found))
        return element("details", element("summary", f"{done} of {all_} runs"), inside, class_="in")
    return joined(*(joined(_link(one), " ") for one in found))


MANY = 4


def _link(one: Configuration) -> Html:
    done, all_ = len(one.done), len(one.runs)
    words = f"{done}" if done == all_ else f"{done}/{all_}"
    return element("a", words, href=f"#{one.anchor}", title=one.title, class_="run")


def paper_table(entry: Entry) -> Html | None:
    """The paper's own numbers, if it gives any."""
    if not entry.rows:
        return None
    rows = [element("tr", *(_cell(one) for one in row)) for row in entry.rows]
    return grid("In the paper", [name.replace("_", " ") for name in entry.columns], rows)
