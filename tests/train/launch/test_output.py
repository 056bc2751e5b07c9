from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from localsgd.train.launch.output import own_output

SCRIPT = """
import os, sys
from localsgd.train.launch.output import own_output

def library(words):  # as C does it: past sys.stdout
    os.write(1, words)

library(b"before|")
print("ours before", end="|")
try:
    with own_output(drop="dropped" in sys.argv):
        library(b"inside|")
        print("ours inside", end="|")
        if sys.argv[1] == "fails":
            raise ValueError
except ValueError:
    pass
print("ours after", end="|", flush=True)
library(b"after|")
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["ends", "fails"])
def test_output_is_the_programs_alone_inside(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
    )
    assert done.stdout == "before|ours before|ours inside|ours after|after|"
    assert done.stderr == "inside|"


@pytest.mark.timeout(60)
def test_what_libraries_say_can_be_dropped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "ends", "dropped"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "before|ours before|ours inside|ours after|after|"
    assert done.stderr == ""


def test_output_that_is_no_file_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    words = io.StringIO()
    monkeypatch.setattr(sys, "stdout", words)
    where = os.fstat(1)
    with own_output():
        print("ours", end="")
        assert os.path.samestat(os.fstat(1), where)
    assert sys.stdout is words
    assert words.getvalue() == "ours"


@pytest.mark.timeout(60)
def test_a_reader_that_leaves_ends_nothing() -> None:
    script = """
import sys
from localsgd.train.launch.output import lasting, own_output

sys.stdout = lasting(sys.stdout)
print("first", flush=True)
sys.stdin.read()  # until the reader has gone
print("lost", flush=True)
with own_output():
    print("lost", flush=True)
sys.stderr.write("done")
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "first\n"
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == "done"
    assert process.returncode == 0
