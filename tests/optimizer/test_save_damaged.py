"""What `load` finds of the wrong kind: one line on all ranks, and nothing is changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import localsgd
from localsgd import LocalSGD, UserError
from localsgd.saving.store import Saved, write
from localsgd.saving.tree import as_tensor, as_text
from tests.distributed.harness import run

pytestmark = pytest.mark.timeout(120)


def made() -> tuple[nn.Module, LocalSGD]:
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = LocalSGD(inner, model, local_steps=2, outer="diloco", start="broadcast")
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.randn(4, 2)) ** 3).sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saves") / "whole"
    localsgd.save(folder, *made(), epoch=1)
    return folder


def forged(whole: Path, folder: Path, name: str, part: Any) -> None:
    """Writes a save with another part: a text, a tensor, or a change of what the text says."""
    saved = Saved(whole)
    tensors = saved.read(list(saved.names))
    key = name if name == "about" else f"worker-00000/{name}.json"
    if callable(part):
        tree = json.loads(as_text(tensors[key]))
        part(tree)
        part = json.dumps(tree)
    tensors[key] = part if isinstance(part, torch.Tensor) else as_tensor(part)
    write(folder, tensors, None, {})


def state_of(model: nn.Module, optimizer: LocalSGD) -> str:
    return str((model.state_dict(), optimizer.state_dict(), torch.get_rng_state().tolist()))


def refused(folder: Path) -> str:
    model, optimizer = made()
    before = state_of(model, optimizer)
    with pytest.raises(UserError) as caught:
        localsgd.load(folder, model, optimizer)
    assert state_of(model, optimizer) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def within(*path: str | int, value: Any) -> Callable[[Any], None]:
    """Puts a value where a path of keys and places leads, through the text's containers."""

    def change(tree: Any) -> None:
        parent, last = None, None
        for key in path:
            [(kind, content)] = tree.items()
            if kind in ("list", "tuple"):
                parent, last = content, key
            else:
                [parent] = [pair for pair in content if pair[0] == key]
                last = 1
            tree = parent[last]
        parent[last] = value

    return change


ABOUT = {"format": 1, "workers": 1, "steps": 3}
BROKEN = ["{", "5", "[]", "{}", "null", "[1]", '"x"', '{"a": [], "b": []}', '{"evil": []}']
BROKEN += ['{"list": [5]}', '{"list": 5}', '{"dict": [5]}', '{"dict": [[[], 5]]}', '{"dict": []}']
BROKEN += ['{"tensor": "nothere"}', '{"tensor": []}', '{"array": "about"}', "[" * 100_000]
NO_TEXTS = [torch.empty(0).byte(), torch.ones(3), torch.full((4,), 255).byte()]
OTHER = "worker-00000/model/state/0.bias"


@pytest.mark.parametrize("part", ["about", "model", "optimizers", "objects", "values", "random"])
def test_texts_of_the_wrong_kind(whole: Path, tmp_path: Path, part: str) -> None:
    for number, text in enumerate([*BROKEN, *NO_TEXTS]):
        if text == '{"dict": []}' and part in ("objects", "values"):
            continue  # as it may be
        forged(whole, tmp_path / str(number), part, text)
        refused(tmp_path / str(number))


CHANGES: list[tuple[str, Any]] = [
    ("about", json.dumps({**ABOUT, "workers": "x"})),
    ("about", json.dumps({**ABOUT, "workers": 10**9})),
    ("about", json.dumps({**ABOUT, "workers": -1})),
    ("about", json.dumps({**ABOUT, "positions": 0})),
    ("model", within("state", value=5)),
    ("model", within("state", "0.bias", value=5)),
    ("model", within("state", "0.bias", value={"array": OTHER})),
    ("model", within("versions", value=5)),
    ("model", within("versions", "1", value=5)),
    ("model", within("versions", "1", "version", value="x")),
    ("random", within("cpu", value={"tensor": OTHER})),
    ("random", within("cpu", value=None)),
    *(
        ("optimizers", within(0, *path, value=value))
        for path, value in [
            (["state"], 5),
            (["state", 0], 5),
            (["param_groups"], 5),
            (["param_groups", 0], 5),
            (["param_groups", 0, "params"], 5),
            (["param_groups", 0, "params", 0], {"list": []}),
            (["local_sgd"], 5),
            (["local_sgd", "steps"], "x"),
            (["local_sgd", "steps"], 1.5),
            (["local_sgd", "finished_at"], None),
            (["local_sgd", "syncs"], 5),
            (["local_sgd", "position"], 5),
            (["local_sgd", "position", "left"], {"list": ["x"]}),
            (["local_sgd", "position", "lengths"], {"list": [1, 2]}),
            (["local_sgd", "made_with"], 5),
            (["local_sgd", "ledger"], 5),
            (["local_sgd", "ledger", 0], {"dict": [["x", 1]]}),
            (["local_sgd", "signals"], 5),
            (["local_sgd", "signals", "decay"], {"dict": [["x", 1]]}),
            (["local_sgd", "told"], 5),
            (["local_sgd", "levels"], 5),
            (["local_sgd", "levels", 0], {"list": []}),
            (["local_sgd", "levels", 0, 0], {"dict": []}),
            (["local_sgd", "levels", 0, 0, "anchor"], 5),
            (["local_sgd", "levels", 0, 0, "anchor"], {"tensor": OTHER}),
            (["local_sgd", "levels", 0, 0, "outer"], 5),
        ]
    ),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_values_of_the_wrong_kind(whole: Path, tmp_path: Path, number: int) -> None:
    forged(whole, tmp_path / "save", *CHANGES[number])
    refused(tmp_path / "save")


def test_what_was_not_changed_is_loaded(whole: Path, tmp_path: Path) -> None:
    forged(whole, tmp_path / "save", "model", within("versions", "1", "version", value=2))
    assert localsgd.load(tmp_path / "save", *made()) == {"epoch": 1}


@pytest.mark.timeout(20)
def test_the_averaged_model_is_no_pipe(whole: Path, tmp_path: Path) -> None:
    forged(whole, tmp_path / "save", "about", json.dumps({**ABOUT, "workers": 2}))
    saved = Saved(tmp_path / "save")
    tensors = saved.read(list(saved.names))
    for name in list(tensors):
        if name.endswith("optimizers.json"):
            text = as_text(tensors[name]).replace("worker-00000", "worker-00001")
            tensors[name.replace("00000", "00001")] = as_tensor(text)
        elif "/optimizers/" in name:
            tensors[name.replace("00000", "00001")] = tensors[name]
    write(tmp_path / "two", tensors, None, {"model.safetensors": lambda path: path.touch()})
    (tmp_path / "two" / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "two" / "model.safetensors")
    assert "model.safetensors is no regular file" in refused(tmp_path / "two")


def test_a_link_to_a_folder_stays(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "ck").symlink_to("disk")
    for epoch in (1, 2):
        localsgd.save(tmp_path / "ck", *made(), epoch=epoch)
        assert (tmp_path / "ck").is_symlink()
        assert localsgd.load(tmp_path / "ck", *made()) == {"epoch": epoch}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ck", "disk"]


class Stubborn:
    """Fails on rank 1."""

    def state_dict(self) -> dict[str, Any]:
        if dist.get_rank():
            raise RuntimeError("not now")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


def told_to_all(folder: str) -> list[str]:
    said: list[str] = []

    def fails(call: Callable[[], Any]) -> None:
        with pytest.raises((UserError, RuntimeError)) as caught:
            call()
        said.append(str(caught.value))
        dist.barrier()

    rank, at = dist.get_rank(), Path(folder)
    model, optimizer = made()
    if not rank:
        (at / "ck.incomplete").mkdir()
        (at / "ck.incomplete" / "thesis.txt").write_text("mine")
    dist.barrier()
    fails(lambda: localsgd.save(at / "ck", model, optimizer))
    assert (at / "ck.incomplete" / "thesis.txt").read_text() == "mine"
    fails(lambda: localsgd.save(at / "other", model, optimizer, stubborn=Stubborn()))
    localsgd.save(at / "whole", model, optimizer)
    saved = Saved(at / "whole")
    tensors = saved.read(list(saved.names)) if not rank else {}
    if not rank:
        tensors["worker-00001/random.json"] = as_tensor("5")
    write(at / "forged", tensors, dist.group.WORLD, {})
    before = state_of(model, optimizer)
    fails(lambda: localsgd.load(at / "forged", model, optimizer))
    assert state_of(model, optimizer) == before
    return said


def test_all_ranks_are_told(tmp_path: Path) -> None:
    first, second = run(2, told_to_all, str(tmp_path))
    assert first[0] == second[0]
    assert "ck.incomplete holds thesis.txt, which is not of a save" in first[0]
    assert first[1] == "rank 1: save() failed: RuntimeError('not now')"
    assert second[1] == "not now"
    assert first[2] == second[2]
    assert "its part random is of type int, and not a mapping" in first[2]
