from __future__ import annotations

from typing import Any

import pytest

from localsgd.train.config.complete import complete_run
from localsgd.train.config.methods import METHODS
from localsgd.train.config.run import Run
from localsgd.train.config.unused import ACTS, unused_settings
from localsgd.train.data.tasks.digits import CARD

GIVEN: dict[str, Any] = {
    "switch": "step:5",
    "step_warmup": 2,
    "step_warmup_shape": "constant",
    "adapt_every": 3,
    "qsr_alpha": 0.2,
    "waiting": 0.1,
    "outer_lr": 0.5,
    "outer_momentum": 0.5,
    "compression_way": "gather",
    "sign_scales": "row",
    "top_k_fraction": 0.1,
    "power_sgd_rank": 3,
    "correction": 0.5,
    "lr_decay": 0.2,
    "lr_cycles": 2,
    "lr_floor": 0.1,
    "trust": 0.01,
    "noise_decay": 0.5,
    "nesterov": False,
    "weighting": "samples",
}
ACTING: dict[str, dict[str, Any]] = {
    "switch": {"method": "post-local"},
    "step_warmup": {"method": "local-warmup"},
    "step_warmup_shape": {"method": "local-warmup"},
    "adapt_every": {"method": "adacomm"},
    "qsr_alpha": {"method": "qsr"},
    "waiting": {"method": "waiting"},
    "outer_lr": {"outer": "sgd"},
    "outer_momentum": {"outer": "sgd"},
    "compression_way": {"compression": "sign"},
    "sign_scales": {"compression": "majority"},
    "top_k_fraction": {"compression": "top-k"},
    "power_sgd_rank": {"compression": "power-sgd"},
    "correction": {"delay": 1},
    "lr_decay": {"lr_schedule": "steps"},
    "lr_cycles": {"lr_schedule": "cyclic"},
    "lr_floor": {"lr_schedule": "cosine"},
    "trust": {"optimizer": "lars"},
    "noise_decay": {"noise": 0.1},
    "nesterov": {"optimizer": "sgd"},
    "weighting": {"partition": "fixed"},
}


def idle_of(**settings: Any) -> list[str]:
    return unused_settings(complete_run(Run(**settings), CARD))


@pytest.mark.parametrize("method", METHODS)
def test_what_nobody_gave_is_not_idle(method: str) -> None:
    topology = "4x2" if METHODS[method].several_levels else "8"
    assert idle_of(method=method, topology=topology) == []


@pytest.mark.parametrize("name", ACTS)
def test_a_setting_that_nothing_reads_is_named(name: str) -> None:
    schedule = "cosine" if name == "lr_decay" else "steps"
    optimizer = "adamw" if name == "nesterov" else "sgd"
    given = {"lr_schedule": schedule, "optimizer": optimizer, name: GIVEN[name]}
    assert idle_of(method="local", **given) == [name]


@pytest.mark.parametrize(
    ("name", "idle", "acting"),
    [
        ("momentum", {"optimizer": "adamw"}, {"optimizer": "sgd"}),
        ("lr_decay_at", {"lr_schedule": "cosine"}, {"lr_schedule": "steps"}),
        ("lr_warmup", {"lr_scaling": "none"}, {"lr_scaling": "linear"}),
        ("lr_batch", {"lr_scaling": "none"}, {"lr_scaling": "sqrt"}),
    ],
)
def test_what_every_run_has_is_named_if_it_is_varied(
    name: str, idle: dict[str, Any], acting: dict[str, Any]
) -> None:
    runs = [complete_run(Run(method="local", **settings), CARD) for settings in (idle, acting)]
    assert [unused_settings(run, {name}) for run in runs] == [[name], []]
    assert [unused_settings(run) for run in runs] == [[], []]


@pytest.mark.parametrize("name", ACTS)
def test_a_setting_that_something_reads_is_not(name: str) -> None:
    given = {"method": "local", name: GIVEN[name]} | ACTING[name]
    assert name not in idle_of(**given)


@pytest.mark.parametrize("compression", ["majority", "power-sgd"])
def test_a_way_over_the_wire_of_what_has_only_one(compression: str) -> None:
    given = {"method": "local", "compression": compression, "compression_way": "gather"}
    assert idle_of(**given) == ["compression_way"]


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        ({"optimizer": "lars", "nesterov": False}, ["nesterov"]),
        ({"optimizer": "larc", "nesterov": False}, ["nesterov"]),
        ({"momentum": 0.0, "nesterov": False}, ["nesterov"]),
        ({"weighting": "fednova"}, ["weighting"]),
        ({"weighting": "fednova", "slowdown": (1.0,) * 7 + (2.0,)}, []),
        ({"weighting": "samples", "slowdown": (1.0,) * 7 + (2.0,)}, ["weighting"]),
    ],
)
def test_more_than_one_thing_decides(settings: dict[str, Any], idle: list[str]) -> None:
    assert idle_of(method="local", **settings) == idle


def test_local_steps_of_mini_batch_sgd() -> None:
    assert idle_of(method="mini-batch", local_steps=(4,)) == ["local_steps"]
    assert idle_of(method="mini-batch", local_steps=(1,)) == []
    assert idle_of(method="local", local_steps=(4,)) == []
