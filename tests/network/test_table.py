"""Which contestants the table runs."""

from __future__ import annotations

import pytest

# PyTorch's own averagers compile what it deprecates, when they are imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def test_only_named_contestants_run_and_the_bound_with_them() -> None:
    from benchmarks.network.scenes import scenes

    slow, fast = scenes(["100mbit", "10gbit"], racks=True, only=["h16", "ddp", "h16"])
    assert slow.names == fast.names == ("none", "h16", "ddp")
    assert slow.racks == fast.racks == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nobody", "--record", "some"], "no contestant is called 'nobody'"),
        (["--only", "ddp"], "--record NAME"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str, capsys) -> None:
    from benchmarks.network import table

    assert table.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
