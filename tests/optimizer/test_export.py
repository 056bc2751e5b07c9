"""Parts of a model in files of their own."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from localsgd import LocalSGD, compact


def saved_bytes(value: Any) -> int:
    file = io.BytesIO()
    torch.save(value, file)
    return file.tell()


def test_a_part_of_a_model_is_saved_without_the_rest() -> None:
    model = nn.Sequential(nn.Linear(500, 500), nn.BatchNorm1d(500), nn.Linear(2, 2))
    LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=2)
    state = model[2].state_dict()
    assert saved_bytes(state) > 1_000_000
    found = compact(state)
    assert saved_bytes(found) < 10_000
    assert type(found) is OrderedDict
    assert found._metadata == state._metadata
    assert list(found) == list(state)
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_what_has_memory_of_its_own_and_what_is_no_tensor_stays() -> None:
    row = torch.arange(10.0)
    own = torch.ones(2)
    sparse = torch.eye(2).to_sparse()
    found = compact({"own": [own, sparse, 3], "twice": (row[:2], row[:2]), "text": "x"})
    assert found["own"][0] is own
    assert found["own"][1] is sparse
    assert found["own"][2] == 3
    assert found["twice"][0] is found["twice"][1]
    assert found["twice"][0].untyped_storage().nbytes() == 8
    assert found["text"] == "x"
