"""The table of all methods: `python -m experiments.family [--data-dir DIR] [--seeds 3]`.

Runs are kept in `experiments/results/family/runs.jsonl`, one line each; a second call goes on where
the first was stopped, and then only writes the table and the picture.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.progress import Progress, TimeRemainingColumn

from experiments.family import report
from experiments.family.design import ARMS, SEEDS, TABLE_OF_MOMENTA, settings
from experiments.family.runner import Kept, carry_out
from localsgd.basics.console import Console
from localsgd.basics.shards import share
from localsgd.errors import UserError
from localsgd.train.data import tasks
from localsgd.train.engine.assembly import pick_device

RESULTS = Path(__file__).parent.parent / "results" / "family"


def main() -> int:
    parser = argparse.ArgumentParser(prog="experiments.family", description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where Fashion-MNIST lies")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N equal shares")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    try:
        kept = Kept(options.out / "runs.jsonl")
        _carry_out(kept, options.seeds, options.data_dir, options.shard)
        report.write(kept, options.out)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


def _carry_out(kept: Kept, seeds: int, data_dir: Path | None, shard: str) -> None:
    if seeds < 1:
        raise UserError(f"--seeds {seeds} cannot be; give 1 or more")
    every = [(arm, seed) for seed in range(seeds) for arm in ARMS | TABLE_OF_MOMENTA]
    mine = share(every, shard)
    due = [(arm, seed) for arm, seed in mine if kept.find(settings(arm, seed)) is None]
    if not due:
        return
    task = tasks.load("fashion-mnist", data_dir, device=pick_device("auto"))
    columns = [
        *Progress.get_default_columns()[:-1],
        TimeRemainingColumn(elapsed_when_finished=True),
    ]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(due))
        for arm, seed in due:
            progress.update(bar, description=f"{arm}, seed {seed}")
            with tempfile.TemporaryDirectory() as folder:
                kept.add(carry_out(arm, settings(arm, seed), task, Path(folder) / "run"))
            progress.advance(bar)


if __name__ == "__main__":
    sys.exit(main())
