"""The program on the page on workers that come and go runs."""

from __future__ import annotations

import contextlib
import io
import os
import re
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'localsgd[torchft]'")

from tests.integrations.fleet import CONTEXT, SECONDS, fleet

PAGE = Path(__file__).parents[2] / "docs" / "fault-tolerance.md"


def follow(program: str, lighthouse: str, pipe: Connection) -> None:
    os.environ |= {"TORCHFT_LIGHTHOUSE": lighthouse}
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(program, {"__name__": "__main__"})
    pipe.send(told.getvalue())
    os._exit(0)


@pytest.mark.parametrize("own", [False, True], ids=["its manager", "a manager of one's own"])
def test_the_program_of_the_page_runs(own: bool) -> None:
    program, manager = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    if own:
        assert program.count("Managed()") == 1
        program = manager + program.replace("Managed()", "Managed(manager, workers=4)")
    here, there = CONTEXT.Pipe()
    with fleet(at_least=1, join=1.0) as workers:
        arguments = (program, f"http://127.0.0.1:{workers.port}", there)
        process = CONTEXT.Process(target=follow, args=arguments, daemon=True)
        process.start()
        there.close()
        assert here.poll(SECONDS)
        told = here.recv()
        process.join()
    assert re.fullmatch(r"24 1 \['.*'\]\n", told), told
