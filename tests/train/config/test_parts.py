"""What goes on with a run that has parts of other packages."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from localsgd.basics.outside import Origin
from localsgd.errors import UserError
from localsgd.train.config.parts import OUTSIDE, PROGRAM, PYTHON, changed_plugins, going_on
from localsgd.train.config.run import Run


@pytest.mark.parametrize(
    ("plugins", "source", "said"),
    [
        ((), "", "localsgd resume run"),
        (("compression mine: my.parts 0.1",), "my.parts", "localsgd resume run --use my.parts"),
        (("compression mine: my.parts 0.1",), "", "localsgd resume run --use MODULE"),
        (
            ("compression mine: evil; rm 1", "task b: e 1"),
            "",
            "localsgd resume run --use MODULE",
        ),
        ((f"model Net: {PYTHON}",), "", "the program that began it"),
        ((f"compression mine: {PROGRAM} 1",), PROGRAM, "the program that began it"),
        ((f"compression mine: {PROGRAM} 1",), "", "the program that began it"),
    ],
)
def test_a_command_is_whole_and_names_what_this_process_knows(
    plugins: tuple[str, ...], source: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source:
        added = {"mine": (object(), Origin(source, "0.1"))}
        monkeypatch.setattr(OUTSIDE["compression"], "_added", added)
    run = msgspec.structs.replace(Run(), plugins=plugins)
    assert going_on(run, Path("run")) == said


@pytest.mark.parametrize("recorded", [PROGRAM, f"{PROGRAM} 0.1.0"])
def test_a_part_that_a_program_named_is_there_again_in_that_program(recorded: str) -> None:
    plugins = (f"method falling: {recorded}",)
    run = msgspec.structs.replace(Run(method="falling"), plugins=plugins)
    with pytest.raises(UserError, match="method falling was named by a program in Python; go on "):
        changed_plugins(run)
