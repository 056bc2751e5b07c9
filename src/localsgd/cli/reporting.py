"""The command `report`, carried out by the experiments of a checkout."""

from __future__ import annotations

import sys

from localsgd.basics.units import plural
from localsgd.cli.options import ReportCommand
from localsgd.cli.reproducing import experiments_module

MODULE = "experiments.report"


def report(command: ReportCommand) -> int:
    """Writes the page, and prints a summary."""
    options = {} if command.records is None else {"records": command.records}
    content = experiments_module(MODULE, command.checkout).write(
        command.scale, command.out, text=command.markdown, tune=command.tune, **options
    )
    done, all_ = content.runs
    counted = ", ".join(f"{count} {state}" for state, count in content.counts.items())
    sys.stdout.write(
        f"{command.out}: {plural(len(content.claims), 'claim')} ({counted}), {done} of {all_} "
        "runs\n"
    )
    return 0
