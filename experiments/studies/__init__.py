"""The studies by label: a module of this folder with a `STUDY`, or with `STUDIES`, is found."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from experiments.registry import entries
from experiments.study import Study


@cache
def studies() -> dict[str, Study]:
    """All studies, in the paper's order: one for each label.

    Raises:
        ValueError: a label has two, or none; or a study has no such label.
    """
    found: dict[str, Study] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for study in (*getattr(module, "STUDIES", ()), *_one(module)):
            if study.label in found:
                raise ValueError(f"{study.label} has two studies, one in {info.name}")
            found[study.label] = study
    if strange := found.keys() ^ entries().keys():
        raise ValueError(f"without a study or an entry of paper.toml: {', '.join(sorted(strange))}")
    return {label: found[label] for label in entries()}


def _one(module: object) -> tuple[Study, ...]:
    study = getattr(module, "STUDY", None)
    return () if study is None else (study,)
