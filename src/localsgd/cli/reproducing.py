"""The command `reproduce`, carried out by the experiments of a checkout.

The library imports them by name, since they are no part of the installed package.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import localsgd
from localsgd.basics.files import expanded
from localsgd.cli.options import ReproduceCommand
from localsgd.errors import UserError

MODULE = "experiments.reproduce"


def reproduce(command: ReproduceCommand) -> int:
    """Lists the paper's tables and figures, or reproduces some of them."""
    experiments = experiments_module(MODULE, command.checkout)
    folders = {
        name: value
        for name, value in (("out", command.out), ("work", command.work))
        if value is not None
    }
    request = experiments.Request(
        names=command.names,
        everything=command.all,
        listing=command.list,
        show=command.show,
        scale=command.scale,
        seeds=command.seeds,
        tune=command.tune,
        shard=command.shard,
        processes=command.processes,
        data_dir=command.data_dir,
        **folders,
    )
    return experiments.reproduce(request)


def experiments_module(module: str, checkout: Path | None) -> ModuleType:
    """A module of the experiments in `checkout`, or else in the checkout this library lies in.

    Code in the current folder is never run: nobody has asked for it.
    """
    folder = expanded(checkout or Path(localsgd.__file__).parents[2]).resolve()
    if not (folder / "experiments" / "registry.py").is_file():
        raise UserError(
            f"{folder} has no experiments/, which is no part of the installed package; give a "
            "checkout of the repository with --checkout"
        )
    if sys.path[0] != str(folder):
        sys.path.insert(0, str(folder))  # it stays, for processes that are spawned
    return importlib.import_module(module)
