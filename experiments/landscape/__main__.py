"""`python -m experiments.landscape`: runs what is missing, draws the figures, writes the page.

Interrupt it at will: whole seeds are kept, and a second call goes on where the first stopped.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from experiments.landscape import figures, report
from experiments.landscape.design import SETTINGS
from experiments.landscape.study import load, read, study
from localsgd.errors import UserError

RESULTS = Path(__file__).parents[1] / "results" / "landscape"


@dataclass(frozen=True)
class Options:
    """Flatness of the models of mini-batch and post-local SGD.

    Args:
        settings: which; all if none is named.
        seeds: stop after so many; all that the design has if not given.
        only_report: run nothing; figures and page from what there is.
        data_dir: where data lies; otherwise LOCALSGD_DATA and ~/.cache/localsgd.
        out: folder for records, figures and the page.
    """

    settings: tuple[str, ...] = tuple(SETTINGS)
    seeds: int | None = None
    only_report: bool = False
    data_dir: Path | None = None
    out: Path = RESULTS


def main(options: Options) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    results = {name: read(options.out / f"{name}.jsonl") for name in SETTINGS}
    for name in options.settings:
        if name not in SETTINGS:
            raise UserError(f"there is no setting {name!r}; take one of {', '.join(SETTINGS)}")
        path = options.out / f"{name}.jsonl"
        if not options.only_report:
            setting = SETTINGS[name]
            task = load(setting, options.data_dir)
            results[name] = study(setting, task, path, print, options.seeds)
        figures.draw_all(name, results[name], options.out)
    (options.out / "README.md").write_text(report.page(results))


if __name__ == "__main__":
    torch.set_num_threads(1)  # a step is too small for threads to pay
    try:
        main(tyro.cli(Options))
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
