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


def test_who_is_not_installed_is_left_out_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.network import contestants, scenes, table

    ran: list[str] = []

    def run(chosen: list[scenes.Scene], *_: object) -> scenes.Results:
        ran.extend(name for scene in chosen for name in scenes.present(scene))
        return {}

    monkeypatch.setattr(contestants.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(table, "run", run)
    monkeypatch.setattr(table, "publish", lambda *_: True)
    named = ["--rates", "100mbit", "--record", "some", "--only", "ddp", "torchft", "torchft-diloco"]
    assert table.main(named) == 0
    assert ran == ["none", "ddp"]
    said = "torchft's LocalSGD, H = 16, torchft's DiLoCo, H = 16"
    assert capsys.readouterr().out == f"not installed, and left out: {said}\n"


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
