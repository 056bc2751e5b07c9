"""`reproduce`: handed to the experiments of a checkout, which the library knows by name alone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import localsgd
from localsgd.cli.options import ReproduceCommand
from localsgd.errors import UserError

MODULE = "experiments.reproduce"


def reproduce(command: ReproduceCommand) -> int:
    """Lists the paper's tables and figures, or carries some of them out."""
    experiments = checkout(MODULE)
    places = {
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
        **places,
    )
    return experiments.reproduce(request)


def checkout(module: str) -> ModuleType:
    """A module of the experiments, from the current folder or the checkout that this library lies
    in.
    """
    for folder in (Path.cwd(), Path(localsgd.__file__).parents[2]):
        if (folder / "experiments" / "registry.py").is_file():
            if str(folder) not in sys.path:
                sys.path.append(str(folder))
            return importlib.import_module(module)
    raise UserError(
        "this command needs the folder experiments/ of the repository, which is no part of the "
        "installed package; call it in a checkout"
    )
