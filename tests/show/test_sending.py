"""The forecast of what is sent against the ledger of the run."""

from __future__ import annotations

from typing import Any

import pytest

from localsgd.show.sending import sent
from tests.show.records import small_assembly

COMPRESSED: list[dict[str, Any]] = [
    {"compression": name}
    for name in ("sign", "ef-sign", "majority", "int8", "top-k", "bfloat16", "power-sgd")
]
ALIKE: list[dict[str, Any]] = [
    *COMPRESSED,
    {},
    {"reduction": "ordered"},
    {"method": "post-local"},
    {"method": "mini-batch"},
    {"compression": "ef-sign", "compression_way": "two-phase"},
    {"compression": "ef-sign", "compression_way": "gather", "sign_scales": "row"},
    {"compression": "power-sgd", "reduction": "ordered"},
    {"topology": "2x2", "local_steps": (2, 2), "compression": "ef-sign", "method": "hierarchical"},
    {"topology": "2+3", "local_steps": (2, 2), "method": "hierarchical"},
    {"method": "streaming", "compression": "int8"},
    {"method": "streaming", "delay": 0, "fragments": 3},
    {"method": "delayed", "compression": "ef-sign"},
    {"precision": "float64", "compression": "ef-sign"},
    {"method": "sign"},
    {"method": "batch-growth"},
    {"topology": "1"},
    {"neighbours": "ring"},
    {"topology": "5", "neighbours": "pairs"},
    {
        **{"topology": "2x2", "local_steps": (2, 2), "method": "hierarchical"},
        "neighbours": "ring",
    },
]
NEARLY: list[dict[str, Any]] = [
    {"method": "local-adam"},
    {"method": "post-local", "inner_state": "all=average:2"},
]
"""They tell each other sizes too, which are small."""


def bytes_of(settings: dict[str, Any]) -> tuple[list[float], list[int]]:
    usual = {"model": "mlp-32", "topology": "4", "epochs": 1.3, "method": "local"}
    steps = {} if "local_steps" in settings else {"local_steps": (3,)}
    assembly = small_assembly(**{**usual, **steps, **settings})
    foreseen = [level.whole for level in sent(assembly.plan, assembly.workers.layout)]
    assembly.advance()
    return foreseen, [entry.bytes for entry in assembly.ledger.levels]


@pytest.mark.parametrize("settings", ALIKE, ids=str)
def test_what_is_foreseen_is_what_is_counted(settings: dict[str, Any]) -> None:
    foreseen, counted = bytes_of(settings)
    assert foreseen == counted


@pytest.mark.parametrize("settings", NEARLY, ids=str)
def test_within_a_tenth(settings: dict[str, Any]) -> None:
    foreseen, counted = bytes_of(settings)
    assert foreseen == pytest.approx(counted, rel=0.1)
