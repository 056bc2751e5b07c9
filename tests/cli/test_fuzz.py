"""Command lines drawn by a seed: each ends in a finished run, or in one line."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from localsgd.train.config.methods import METHODS
from localsgd.train.config.run import Run
from tests.cli.conftest import Command

BASE = (
    "--task=digits",
    "--model=mlp-4",
    "--train-samples=80",
    "--batch=5",
    "--epochs=0.5",
    "--quiet",
)
COUNT = int(os.environ.get("LOCALSGD_COMMAND_LINES", "8"))
"""How many command lines are drawn: 200 where there is time."""
NUMBERS = ("0", "-1", "1", "2", "3", "0.5", "1e-9", "1e9", "nan", "-inf", "9" * 30, "1_0", "")
WORDS = (
    "",
    "none",
    "x",
    "é",
    "a=b",
    "/dev/null",
    "..",
    "2x2",
    "4",
    "1+3",
    "step:2",
    "auto",
    "\0"[:0],
)
LATER = ("compile", "device", "task", "model", "train_samples", "batch", "epochs")
"""Settings that would take long, or make the run a long one."""


def words_of(kind: object, draw: random.Random) -> list[str]:
    """Values for a setting of some type, not always of that type."""
    kinds = [kind, *get_args(kind)]
    choices = [value for one in kinds if get_origin(one) is Literal for value in get_args(one)]
    choices += [value for one in kinds for part in get_args(one) if get_origin(part) is Literal
                for value in get_args(part)]  # fmt: skip
    pool: Sequence[object] = choices if choices and draw.random() < 0.8 else NUMBERS
    if "str" in str(kind) and not choices:
        pool = WORDS
    count = draw.choice((1, 1, 2, 3)) if "tuple" in str(kind) else 1
    return [str(draw.choice(pool)) for _ in range(count)]


def command_line(seed: int) -> list[str]:
    """One to four settings of a small run."""
    draw = random.Random(seed)
    kinds = {name: kind for name, kind in get_type_hints(Run).items() if name not in LATER}
    words = ["run", *BASE]
    for name in draw.sample(sorted(kinds), draw.randint(1, 4)):
        option = "--" + name.replace("_", "-")
        if name == "method":
            words.append(f"{option}={draw.choice(sorted(METHODS))}")
        elif kinds[name] is bool or kinds[name] == bool | None:
            words.append(draw.choice((option, option.replace("--", "--no-", 1))))
        else:
            first, *others = words_of(kinds[name], draw)
            words += [f"{option}={first}"] if not others else [option, first, *others]
    return words


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_command_line(command: Command, tmp_path: Path, seed: int) -> None:
    out, words = tmp_path / "out", command_line(seed)
    ended = command(*words, f"--out={out}")
    told = ended.err.count("\n") == 1 and ended.err.startswith("localsgd: ")
    finished = ended.status == 0 and ended.err == ""
    assert finished or (ended.status in (2, 4) and told), (words, ended)
    assert not finished or (out / "summary.json").is_file()
