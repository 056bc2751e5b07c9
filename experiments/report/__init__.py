"""The report: everything that the studies have to say at a scale, as one HTML page or as Markdown.

- `content`: studies, pages and runs behind them, in the paper's order.
- `tally`: what became of the paper's claims on accuracy, at every scale.
- `text`: all of it as Markdown; `page`: that as HTML.
- `images`: figures as data; `sparkline`: curves of runs in the height of a line.
"""

from __future__ import annotations

from pathlib import Path

from experiments.report import page
from experiments.report.content import Content
from experiments.report.tally import Tally
from experiments.report.text import Text
from experiments.scales import scale_of
from experiments.store import RESULTS, Store
from experiments.study import ScaleName
from localsgd.errors import UserError
from localsgd.train.engine.run_folder import check_file, write_whole


def write(
    scale: ScaleName,
    out: Path,
    *,
    text: Path | None = None,
    records: Path = RESULTS,
    tune: bool = False,
) -> Content:
    """Writes the page, and the Markdown with its figures where wanted; what it is made of.

    Args:
        scale: whose records are reported.
        out: the HTML page.
        text: the Markdown page; its figures go into a folder beside it.
        records: where records are kept.
        tune: whether baselines are shown with tuned learning rates, once those are known.

    Raises:
        UserError: there is no such folder of records, or a place cannot be written.
    """
    if not records.is_dir():
        raise UserError(
            f"{records} is no folder of records; give one with --records, as `localsgd reproduce` "
            "makes it"
        )
    for path, option in ((out, "--out"), (text, "--markdown")):
        if path is not None:
            check_file(path, option)
    content = Content.of(Store(scale_of(scale, tunes=tune), records))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        tally = Tally.of(content, records)
        whole = Text(content, tally, "images", runs=True)
        write_whole(out, page.page(whole).encode())
        if text is not None:
            _write_docs(content, tally, text)
    except OSError as error:
        raise UserError(
            f"{error.filename or out} cannot be written: {error.strerror}; name another place"
        ) from None
    return content


def _write_docs(content: Content, tally: Tally, path: Path) -> None:
    """The Markdown without runs, and its figures into `images/NAME/` beside it; older ones go."""
    folder = path.parent / "images" / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.svg"), *folder.glob("*.png")):
        old.unlink()
    tuned = " --tune" if content.tunes else ""
    text = Text(content, tally, f"images/{path.stem}", runs=False)
    made_by = (
        f"Made by `localsgd report --scale {content.scale}{tuned} --markdown {path.name}` from the "
        "records in `experiments/results/reproduce/`; see [how to reproduce](reproduce.md), also "
        "for [the rule of verdicts](reproduce.md#verdicts)."
    )
    said = text.written(made_by)
    for address, image in text.images.items():
        (path.parent / address).write_bytes(image.content)
    write_whole(path, said.encode())
