"""Divides samples among workers, if they are not reshuffled every epoch.

Shapes: N training samples · K workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from localsgd.basics.files import read_text
from localsgd.basics.seeds import generator_for
from localsgd.basics.units import plural, whole_number
from localsgd.errors import UserError, unknown_name

LINE_BYTES = 64
"""Most bytes per line of a column's file, on average."""
KINDS = ("reshuffled", "fixed", "by-label", "dirichlet", "column")


@dataclass(frozen=True)
class Partition:
    """A division of the training set among workers.

    `reshuffled`: all of it anew every epoch (Lin et al. 2020, A.4.1), so that nobody owns anything.
    `fixed`: at random, once. `by-label`: sorted by label and cut into K stretches, which gives each
    worker one or few classes. `dirichlet:α`: each class divided among workers in proportions drawn
    from Dirichlet(α, ..., α) (Yurochkin et al. 2019): each class at one worker as α → 0, where some
    workers may have no samples; alike as α → ∞.
    `column:PATH`: a text file with the number of a worker, 0 to K - 1, for every sample.

    But for the first, what a worker owns stays with it for the whole run, and sizes may differ.

    Args:
        kind: one of these.
        value: α, or the path.
    """

    kind: str
    value: str = ""

    @staticmethod
    def parse(text: str) -> Partition:
        kind, _, value = text.partition(":")
        if kind not in KINDS:
            raise unknown_name("partition", kind, KINDS)
        if (kind in ("dirichlet", "column")) != bool(value):
            raise UserError(
                f"partition {text!r} is not understood; write reshuffled, fixed, by-label, "
                "dirichlet:ALPHA or column:PATH"
            )
        if kind == "dirichlet":
            try:
                alpha = float(value)
            except ValueError:
                alpha = math.nan
            if not (math.isfinite(alpha) and alpha > 0):
                raise UserError(f"dirichlet:{value} is invalid; give an alpha > 0, such as 0.1")
        return Partition(kind, value)

    @property
    def owned(self) -> bool:
        """Whether samples stay with a worker."""
        return self.kind != "reshuffled"

    def parts(self, labels: Tensor, workers: int, seed: int) -> tuple[Tensor, ...]:
        """The samples of each of K workers, from all N `labels`."""
        labels = labels.cpu()
        count = len(labels)
        draw = generator_for(seed, "partition")
        if self.kind == "fixed":
            return torch.randperm(count, generator=draw).tensor_split(workers)
        if self.kind == "by-label":
            # Within a label at random, so that stretches of it are alike.
            shuffled = torch.randperm(count, generator=draw)
            return shuffled[torch.argsort(labels[shuffled], stable=True)].tensor_split(workers)
        if self.kind == "dirichlet":
            return _dirichlet(labels, workers, float(self.value), draw)
        return _column(self.value, count, workers)


def _dirichlet(
    labels: Tensor, workers: int, alpha: float, draw: torch.Generator
) -> tuple[Tensor, ...]:
    owned: list[list[Tensor]] = [[] for _ in range(workers)]
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=draw)]
        gammas = torch._standard_gamma(torch.full((workers,), alpha, dtype=torch.float64), draw)
        gammas = gammas + 1e-300  # α near 0 may draw nothing but zeros
        ends = ((gammas / gammas.sum()).cumsum(0) * len(members)).round().long()
        for own, stretch in zip(owned, members.tensor_split(ends[:-1]), strict=True):
            own.append(stretch)
    return tuple(torch.cat(own) for own in owned)


def _column(path: str, samples: int, workers: int) -> tuple[Tensor, ...]:
    try:
        text = read_text(Path(path), most=LINE_BYTES * (samples + 1))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a file with one worker per line") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != samples:
        raise UserError(
            f"{path} has {plural(len(lines), 'line')} for {plural(samples, 'training sample')}"
        )
    try:
        owners = torch.tensor([whole_number(line) for line in lines])
    except ValueError as error:
        raise UserError(f"{path}: {error}; every line must be the number of a worker") from None
    if not 0 <= int(owners.min()) <= int(owners.max()) < workers:
        raise UserError(
            f"{path} names workers {int(owners.min())} to {int(owners.max())}, but there are 0 to "
            f"{workers - 1}"
        )
    return tuple((owners == worker).nonzero().flatten() for worker in range(workers))
