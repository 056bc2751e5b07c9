"""Whatever a checkpoint holds, it is taken up or refused in one line."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from localsgd.errors import UserError
from localsgd.train.engine import checkpoints
from tests.train.engine.test_checkpoints import assembled, saved_at

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    saved_at("both", (5,), str(tmp_path))
    [path] = checkpoints.checkpoints(tmp_path / "at-5")
    return path


def flipped(path: Path, where: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda at: flipped(at / "worker-00002.pt", 0.5), "worker-00002.pt is damaged: its check"),
        (lambda at: cut(at / "worker-00001.pt"), "worker-00001.pt is damaged: its checksum"),
        (lambda at: (at / "worker-00003.pt").unlink(), "lacks worker-00003.pt"),
        (lambda at: cut(at / "common.json"), "common.json is damaged: "),
        (lambda at: (at / "common.json").unlink(), "common.json is damaged: .*No such file"),
        (lambda at: (at / "common.json").write_text("[1]"), "common.json is damaged"),
        (lambda at: edited(at / "common.json", step=6), "common.json is damaged: its checksum"),
    ],
)
def test_damage_is_refused(checkpoint: Path, damage: Callable, says: str) -> None:
    damage(checkpoint)
    with pytest.raises(UserError, match=says) as refused:
        checkpoints.load(assembled("both"), checkpoint)
    assert "remove this checkpoint to go on from the one before" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def edited(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


DELETED = object()
WRONG: tuple[Any, ...] = (None, "x", -1, [], {}, [None], torch.zeros(1), DELETED)
"""Values of the wrong kind, and none."""


def resealed(checkpoint: Path, common: dict[str, Any], worker: dict[str, Any]) -> None:
    """Writes what all share, and the first worker's file, with checksums that fit."""
    torch.save(worker, checkpoint / "worker-00000.pt")
    digest = checkpoints._sha256(checkpoint / "worker-00000.pt")
    files = {**common["sha256"], "worker-00000.pt": digest}
    whole = checkpoints._sealed({**common, "sha256": files})
    (checkpoint / "common.json").write_text(json.dumps(whole))


def with_each_value_wrong(content: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for name, wrong in itertools.product(content, WRONG):
        rest = {key: value for key, value in content.items() if key != name}
        yield name, wrong, rest if wrong is DELETED else {**rest, name: wrong}


def refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except UserError as error:
        return str(error)
    return None


def test_whatever_a_checkpoint_holds_is_taken_or_refused_in_one_line(checkpoint: Path) -> None:
    """With checksums that fit: someone made it so."""
    common = checkpoints._unsealed(checkpoint)
    worker = torch.load(checkpoint / "worker-00000.pt", weights_only=True)
    into = assembled("both")
    whole = into.workers.models[0].state_dict()
    refused = set()

    def tried(name: str, call: Callable[[], object]) -> None:
        reason = refusal(call)
        assert reason is None or len(reason.splitlines()) == 1
        if reason is not None:
            refused.add(name)

    def both(name: str) -> None:
        tried(name, lambda: checkpoints.load(into, checkpoint))
        tried(f"{name} of one", lambda: checkpoints.worker_weights(checkpoint, 0, whole))

    for name, wrong, changed in with_each_value_wrong(common):
        if name != "sha256" and not isinstance(wrong, torch.Tensor):
            resealed(checkpoint, changed, worker)
            both(name)
    for name, wrong, changed in with_each_value_wrong(worker["worker"]):
        if wrong is not DELETED or name != "accumulated":
            resealed(checkpoint, common, {**worker, "worker": changed})
            both(name)
    for name, _, changed in with_each_value_wrong(worker):
        resealed(checkpoint, common, changed)
        both(name)
    assert refused > {"run", "position", "levels", "params", "buffers", "inner", "layouts of one"}
    resealed(checkpoint, common, worker)
    checkpoints.load(into, checkpoint)


ENTRY = {"calls": 1, "bytes": 8, "seconds": 0.5, "arrived": 8}


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("step", (None, "5", -5, 45.5, 6, [1], 10**30)),
        ("syncs", (["x", 1], [None, None], [1], [-1, 1])),
        ("model_syncs", ("x", None, -1)),
        ("inner_state_keys", (5, [5])),
        ("seconds", ("x", None, -1.0, 1e300, [1])),
        ("signals", (5, {"a": 1}, {"observed": [1]})),
        ("signals.known", (5, [1], {"learning_rate": "x"}, {"learning_rate": 0.1})),
        ("signals.coming", (5, [5], [["x"]], [[1.0]])),
        ("signals.decay", (5, {}, {"highest": None})),
        ("signals.decayed", (5, "x")),
        ("ledger", (5, [{}, {}], [ENTRY], [ENTRY, ENTRY | {"calls": "x"}])),
        ("ledger.0.seconds", (None, "x", -1.0)),
        ("ledger.0.arrived", (None, "x", -1)),
        ("position", ({}, 5, None)),
        ("position.lengths", ("x", [0], [1, 2, 3], [None, 2])),
        ("position.left", (["x", 1], [-1, 1], [], [10**12, 1])),
        ("position.depth", ("x", 99, -1)),
        ("position.lockstep", ("x", 99)),
        ("position.memories", ([], [{}], [{}, {"x": "y"}], [{}, 5])),
        ("extra", (5, None, [])),
    ],
)
def test_numbers_of_the_wrong_kind_are_refused(
    checkpoint: Path, place: str, values: tuple[Any, ...]
) -> None:
    """In what all share, with a checksum that fits."""
    path = checkpoint / "common.json"
    before = checkpoints._unsealed(checkpoint)
    into = assembled("both")
    *outer, last = [int(key) if key.isdecimal() else key for key in place.split(".")]
    for value in values:
        common = copy.deepcopy(before)
        inside: Any = common
        for key in outer:
            inside = inside[key]
        inside[last] = value
        path.write_text(json.dumps(checkpoints._sealed(common)))
        with pytest.raises(UserError, match="is damaged, or of another version: ") as refused:
            checkpoints.load(into, checkpoint)
        assert len(str(refused.value).splitlines()) == 1
    path.write_text(json.dumps(checkpoints._sealed(before)))
    checkpoints.load(into, checkpoint)


def test_schedules_may_remember_flags_and_what_is_no_number(checkpoint: Path) -> None:
    common = checkpoints._unsealed(checkpoint)
    worker = torch.load(checkpoint / "worker-00000.pt", weights_only=True)
    memories = [{"on": True, "best": None}, {"best": 1.5, "count": 2}]
    position = {**common["position"], "memories": memories}
    resealed(checkpoint, {**common, "position": position}, worker)
    into = assembled("both")
    checkpoints.load(into, checkpoint)
    assert into.position.memories == memories


@pytest.mark.parametrize("value", [torch.zeros(()), torch.zeros(1), torch.zeros(3, 3)])
def test_rows_of_another_size_are_not_stretched(checkpoint: Path, value: torch.Tensor) -> None:
    common = checkpoints._unsealed(checkpoint)
    worker = torch.load(checkpoint / "worker-00000.pt", weights_only=True)
    worker["worker"]["params"] = value
    resealed(checkpoint, common, worker)
    with pytest.raises(UserError, match=f"{value.numel()} numbers stand for"):
        checkpoints.load(assembled("both"), checkpoint)


def test_every_flipped_byte_of_what_all_share_is_found(checkpoint: Path) -> None:
    """Or says nothing, as the last of 17 digits and a space for a line's end may."""
    path = checkpoint / "common.json"
    whole = path.read_bytes()
    expected = checkpoints._unsealed(checkpoint)
    unnoticed = b""
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        try:
            assert checkpoints._unsealed(checkpoint) == expected
        except UserError:
            continue
        unnoticed += whole[index : index + 1]
    assert len(unnoticed) < 0.01 * len(whole)
    assert all(chr(byte).isdigit() for byte in unnoticed)
