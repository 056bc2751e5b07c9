from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from localsgd.averaging.build import build_levels
from localsgd.averaging.outer import Outer, block_momentum, sgd
from localsgd.averaging.placement import placement_of
from localsgd.errors import UserError
from localsgd.reduce import OrderedMean
from localsgd.train.config.plan import Plan
from localsgd.train.engine import checkpoints
from localsgd.train.engine.assembly import Assembly, assemble
from localsgd.train.engine.execution import barrier
from tests.distributed import harness
from tests.runs import (
    STEPS,
    Killed,
    digits,
    files_of_at_most,
    killed_at,
    same,
    tiny,
    worker_states,
)

pytestmark = pytest.mark.timeout(300)

ADAM = Outer(partial(torch.optim.Adam, lr=0.01))
CASES: dict[str, tuple[str, tuple[int, ...], tuple[Outer | None, ...]]] = {
    # topology, local steps and outer optimizers, innermost first
    "plain": ("2x2", (2, 2), (None, None)),
    "world": ("4", (3,), (block_momentum(0.5),)),
    "inner": ("2x2", (2, 2), (sgd(0.7, momentum=0.9, nesterov=True), None)),
    "both": ("2x2", (2, 2), (ADAM, block_momentum(0.5))),
    "spanning": ("1x4", (2, 2), (ADAM, sgd(0.5, momentum=0.3))),
    "unequal": ("1+3", (2, 2), (ADAM, sgd(0.5, momentum=0.3))),
    "one shared": ("4", (1,), (None,)),
}


def assembled(case: str) -> Assembly:
    """A run whose levels have outer optimizers, on the workers of this process."""
    topology, local_steps, outers = CASES[case]
    run = tiny(
        model="small-cnn-4" if case in ("plain", "both") else "mlp-4",
        topology=topology,
        local_steps=local_steps,
        method="local" if topology == "4" else "hierarchical",
        average="auto" if case == "one shared" else "models",
        lr_decay_at=(0.4,),
    )
    placement = placement_of(Plan(run, 80).topology)
    assembly = assemble(run, digits(), placement, torch.device("cpu"))
    assembly.levels = build_levels(
        placement,
        assembly.workers.params,
        reducers=[OrderedMean() for _ in outers],
        outers=outers,
        ledger=assembly.ledger,
    )
    return assembly


def all_of(assembly: Assembly) -> dict[str, Any]:
    """Everything that lives in the workers and levels of this process, and the counts."""
    levels = [
        (level.state(), groups) for level, groups, _ in assembly.placement.located(assembly.levels)
    ]
    return {
        "workers": worker_states(assembly),
        "levels": [checkpoints._own_memory(level) for level, _ in levels],
        "groups": [groups for _, groups in levels],
        "position": vars(assembly.position).copy(),
        "calls": [(entry.calls, entry.bytes) for entry in assembly.ledger.levels],
        "syncs": assembly.syncs,
    }


def undisturbed(case: str) -> dict[str, Any]:
    assembly = assembled(case)
    assembly.advance()
    return all_of(assembly)


def saved_at(case: str, steps: tuple[int, ...], folder: str) -> None:
    """Trains and leaves a checkpoint after each of `steps` in a folder of its own."""
    assembly = assembled(case)

    def save() -> None:
        step = assembly.workers.step
        if step in steps:
            checkpoints.save(assembly, Path(folder) / f"at-{step}", barrier, {"seconds": 1.5})

    assembly.advance(save)


def resumed(case: str, steps: tuple[int, ...], folder: str) -> list[dict[str, Any]]:
    """The ends of the runs that go on from those checkpoints."""
    ends = []
    for step in steps:
        assembly = assembled(case)
        [checkpoint] = checkpoints.checkpoints(Path(folder) / f"at-{step}")
        assert checkpoints.load(assembly, checkpoint) == {"seconds": 1.5}
        assembly.advance()
        ends.append(all_of(assembly))
    return ends


def on(processes: int, function: Callable, *arguments: Any) -> list[Any]:
    return (
        harness.run(processes, function, *arguments, seconds=240)
        if processes > 1
        else [function(*arguments)]
    )


@pytest.mark.parametrize("case", CASES)
def test_resumed_at_every_step_to_the_same_bits(case: str, tmp_path: Path) -> None:
    """Mid-round, between rounds of each level, before the first sync and after the last."""
    steps = (1, 2, 3, 4, 6, 7, 9, STEPS)
    saved_at(case, steps, str(tmp_path))
    expected = undisturbed(case)
    for step, end in zip(steps, resumed(case, steps, str(tmp_path)), strict=True):
        for key, value in expected.items():
            assert same(value, end[key]), f"{key} after resuming at step {step}"


@pytest.mark.parametrize(
    ("case", "before", "after"),
    [
        ("both", 1, 2),
        ("both", 4, 1),
        ("world", 2, 4),
        ("spanning", 1, 2),
        ("spanning", 4, 1),
        ("unequal", 1, 4),
        ("unequal", 4, 1),
        ("one shared", 2, 1),
    ],
)
def test_another_split_of_the_workers_resumes_to_the_same_bits(
    case: str, before: int, after: int, tmp_path: Path
) -> None:
    steps = (1, 3, 4, 7)
    on(before, saved_at, case, steps, str(tmp_path))
    expected = undisturbed(case)
    ends = on(after, resumed, case, steps, str(tmp_path))
    assert len(ends) == after
    for hosted in ends:
        for step, end in zip(steps, hosted, strict=True):
            for worker, found in end["workers"].items():
                assert same(expected["workers"][worker], found), f"worker {worker} from {step}"
            # Of blocks that differ, each process counts what its own hands over.
            counts = ("calls",) if case != "unequal" else ()
            for key in ("position", "syncs", *counts):
                assert end[key] == expected[key], f"{key} from {step}"


def squares(assembly: Assembly) -> list[bool]:
    """Whether each worker's second moments are all zero, as they are after a reset."""
    return [
        all(not own["exp_avg_sq"].any() for own in optimizer.state.values())
        for optimizer in assembly.workers.optimizers
    ]


def test_every_second_sync_is_the_same_one_after_a_resume(tmp_path: Path) -> None:
    """Syncs after steps 3, 6, 9 and 12, of which the second and fourth reset."""

    def made() -> Assembly:
        rule = "exp_avg_sq=reset:2"
        run = tiny(model="mlp-4", method="local", optimizer="adamw", inner_state=rule)
        placement = placement_of(Plan(run, 80).topology)
        return assemble(run, digits(), placement, torch.device("cpu"))

    def look(assembly: Assembly, seen: dict[int, bool], cut: int) -> None:
        [zero] = {*squares(assembly)}
        seen[assembly.workers.step] = zero
        if assembly.workers.step == cut:
            checkpoints.save(assembly, tmp_path, barrier, {})

    whole: dict[int, bool] = {}
    first = made()
    first.advance(partial(look, first, whole, 4))
    assert [step for step, zero in whole.items() if zero] == [6, 12]
    resumed: dict[int, bool] = {}
    again = made()
    checkpoints.load(again, checkpoints.checkpoints(tmp_path)[-1])
    again.advance(partial(look, again, resumed, 0))
    assert [step for step, zero in resumed.items() if zero] == [6, 12]


def test_levels_remember_something() -> None:
    """The cases above would be vacuous otherwise."""
    levels = undisturbed("both")["levels"]
    assert levels[0]["anchor"].shape[0] == 2
    assert levels[0]["outer"]["exp_avg"].abs().sum() > 0
    assert levels[1]["outer"]["momentum_buffer"].abs().sum() > 0


def test_only_whole_checkpoints_and_only_the_newest_two(tmp_path: Path) -> None:
    assembly = assembled("plain")
    assembly.advance(lambda: checkpoints.save(assembly, tmp_path, barrier, {}))
    (tmp_path / "step-00000099.partial").mkdir()
    (tmp_path / "step-00000098.discarded").mkdir()
    found = checkpoints.checkpoints(tmp_path)
    assert [path.name for path in found] == ["step-00000011", "step-00000012"]
    names = sorted(path.name for path in found[0].iterdir())
    assert names == ["common.json", *(f"worker-0000{worker}.pt" for worker in range(4))]


@pytest.mark.parametrize("share", [0.1, 0.99])
def test_a_full_disk_leaves_whole_checkpoints(tmp_path: Path, share: float) -> None:
    assembly = assembled("plain")
    checkpoints.save(assembly, tmp_path, barrier, {})
    before = sorted(tmp_path.iterdir())
    room = (before[0] / "worker-00000.pt").stat().st_size * share
    assembly.workers.step = 1
    with files_of_at_most(int(room)), pytest.raises(UserError, match="is the disk full"):
        checkpoints.save(assembly, tmp_path, barrier, {})
    assert sorted(tmp_path.iterdir()) == before


def test_what_was_left_by_the_dead_is_removed(tmp_path: Path) -> None:
    for name in ("step-00000007.partial", "step-00000003.discarded"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "worker-00000.pt").write_text("")
    checkpoints.save(assembled("plain"), tmp_path, barrier, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000000"]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: set[str] = set()
    named: dict[str, set[str]] = {}
    sync, replace = os.fsync, os.replace

    def noted_sync(file: int) -> None:
        sync(file)
        on_disk.add(Path(f"/proc/self/fd/{file}").readlink().name.removesuffix(".partial"))

    def noted_replace(source: Path, target: Path) -> None:
        named[Path(target).name] = set(on_disk)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    checkpoints.save(assembled("plain"), tmp_path, barrier, {})
    [checkpoint] = checkpoints.checkpoints(tmp_path)
    assert named[checkpoint.name] == {path.name for path in checkpoint.iterdir()}


@pytest.mark.parametrize("dying", range(9))
def test_dying_while_saving_leaves_whole_checkpoints(
    dying: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any of the writes and renames, and in the middle of any removal."""
    done = 0

    def dies(action: Callable) -> Callable:
        def instead(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == 1 + dying:
                if action.__name__ == "rmtree" and arguments[0].exists():
                    next(arguments[0].iterdir()).unlink()
                raise Killed
            return action(*arguments, **options)

        return instead

    assembly = assembled("plain")
    with pytest.raises(Killed):
        assembly.advance(partial(saved_then_killed, assembly, tmp_path, monkeypatch, dies))
    monkeypatch.undo()
    found = checkpoints.checkpoints(tmp_path)
    assert len(found) >= 2
    for checkpoint in found:
        again = assembled("plain")
        checkpoints.load(again, checkpoint)
    again.advance()
    assert same(worker_states(again), undisturbed("plain")["workers"])


def saved_then_killed(assembly: Assembly, folder: Path, monkeypatch, dies: Callable) -> None:
    if assembly.workers.step == 5:
        for place_, name in (("torch", "save"), ("os", "replace"), ("shutil", "rmtree")):
            module = getattr(checkpoints, place_)
            monkeypatch.setattr(module, name, dies(getattr(module, name)))
    checkpoints.save(assembly, folder, barrier, {})
    killed_at(6)(assembly.workers.step)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither the folder of checkpoints nor one of them, whole or begun, lies elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "step-00000007").mkdir(parents=True)
    (elsewhere / "step-00000007" / "mine").write_text("")
    folder = tmp_path / "checkpoints"
    folder.symlink_to(elsewhere)
    says = f"{folder} is a link; remove it"
    assembly = assembled("plain")
    with pytest.raises(UserError, match=re.escape(says)):
        checkpoints.save(assembly, folder, barrier, {})
    assert [path.name for path in elsewhere.iterdir()] == ["step-00000007"]
    folder.unlink()
    folder.mkdir()
    (folder / "step-00000000.partial").symlink_to(elsewhere)
    checkpoints.save(assembly, folder, barrier, {})
    assert [path.name for path in folder.iterdir()] == ["step-00000000"]
    (folder / "step-00000007").symlink_to(elsewhere / "step-00000007")
    with pytest.raises(UserError, match=r"step-00000007 is a link; remove it"):
        checkpoints.save(assembly, folder, barrier, {})
    assert len(checkpoints.checkpoints(folder)) == 2  # to be read
    assert (elsewhere / "step-00000007" / "mine").exists()


def test_only_steps_are_checkpoints(tmp_path: Path) -> None:
    for name in ("step-00000012", "step-00000003.partial", "step-x", "step-", "step--1"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000099").write_text("a file")
    found = checkpoints.checkpoints(tmp_path)
    assert [checkpoints.step_of(path) for path in found] == [12]
    for step in (99_999_990, 100_000_006):
        (tmp_path / f"step-{step}").mkdir()
    found = checkpoints.checkpoints(tmp_path)
    assert [checkpoints.step_of(path) for path in found] == [12, 99_999_990, 100_000_006]


@pytest.mark.parametrize("changed", ["world", "inner"])
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, changed: str) -> None:
    saved_at("both", (5,), str(tmp_path))
    [checkpoint] = checkpoints.checkpoints(tmp_path / "at-5")
    with pytest.raises(UserError, match="belongs to another run"):
        checkpoints.load(assembled(changed), checkpoint)


def test_a_checkpoint_outlives_new_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that a later version adds, at its usual value, makes no run another one."""
    import msgspec

    Later = msgspec.defstruct(
        "Later", [("added", int, 3)], bases=(type(tiny()),), frozen=True, kw_only=True
    )
    before = checkpoints._fingerprint(tiny(lr=0.7))
    monkeypatch.setattr(checkpoints, "Run", Later)
    later = Later(**msgspec.structs.asdict(tiny(lr=0.7)))
    assert checkpoints._fingerprint(later) == before
    assert checkpoints._fingerprint(msgspec.structs.replace(later, added=4)) != before
