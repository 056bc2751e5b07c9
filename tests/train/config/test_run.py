from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest

from localsgd.errors import UserError
from localsgd.schedule.rounds import picture
from localsgd.train.config.complete import complete_run
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import LATER, Run, from_json, to_json
from localsgd.train.data.tasks.digits import CARD
from tests.runs import SAMPLES, tiny


def plan(**settings) -> Plan:
    return Plan(tiny(**settings), SAMPLES)


def test_what_is_left_open_comes_from_the_task_and_the_paper() -> None:
    run = complete_run(Run(), CARD)
    assert (run.model, run.topology, run.workers) == ("small-cnn", "8", 8)
    assert (run.local_steps, run.epochs, run.batch) == ((8,), 30.0, 16)
    assert (run.lr, run.lr_batch, run.weight_decay) == (0.05, 16, 1e-4)
    assert run.lr_warmup == 0.5  # 5 of 300 epochs
    assert complete_run(run, CARD) == run


@pytest.mark.parametrize(
    ("settings", "topology", "local_steps"),
    [
        ({"workers": 6}, "6", (8,)),
        ({"topology": "4x2", "method": "hierarchical"}, "4x2", (2, 2)),
        ({"topology": "2+3", "local_steps": (4, 2)}, "2+3", (4, 2)),
        ({"topology": "4x2", "method": "mini-batch"}, "4x2", (1, 1)),
    ],
)
def test_workers_and_local_steps_follow_from_the_topology(settings, topology, local_steps) -> None:
    run = complete_run(Run(**settings), CARD)
    assert (run.topology, run.local_steps) == (topology, local_steps)


def test_budget_is_counted_in_samples() -> None:
    settings = {"workers": 3, "topology": None, "batch": 7, "switch": "first-decay"}
    uneven = plan(**settings, epochs=2.0)
    assert uneven.steps_per_epoch == 80 / 21
    assert uneven.steps == 7  # floor(160 / 21)
    assert [uneven.step_at(epochs) for epochs in (0, 0.5, 1, 1.05, 2)] == [0, 2, 4, 4, 8]
    assert plan(epochs=3.0).steps == 12
    assert plan(epochs=0.3, switch="first-decay").steps == 1  # 1.2


@pytest.mark.parametrize(
    ("switch", "step"),
    [
        ("first-decay", 6),
        ("epoch:0", 0),
        ("epoch:1", 4),
        ("epoch:1.1", 5),
        ("epoch:3", 12),
        ("step:7", 7),
        ("step:12", 12),
        ("fraction:0.3", 4),
        ("fraction:0.5", 6),
        ("fraction:1", 12),
    ],
)
def test_switch(switch: str, step: int) -> None:
    assert plan(switch=switch).switch == step


def test_first_decay_is_the_earliest() -> None:
    late = plan(lr_decay_at=(0.75, 0.25), switch="first-decay")
    assert late.switch == 3
    assert late.learning_rate.decays == (3, 9)


def test_the_step_at_the_switch_is_local() -> None:
    turns = plan(switch="step:4")
    assert picture(turns.schedules, turns.steps) == ".1.1.1.1...1...1.."


@pytest.mark.parametrize(
    ("settings", "drawn"),
    [
        ({"method": "mini-batch"}, ".1.1.1.1.1.1.1.1.1.1.1.1"),
        ({"method": "local"}, "...1...1...1...1"),
        ({"method": "local-warmup", "step_warmup": 1.0}, ".1.1..1...1...1.."),
        ({"method": "hierarchical", "topology": "2x2", "local_steps": (2, 3)}, "..1..1..2" * 2),
        (
            {"method": "hierarchical-post-local", "topology": "2x2", "local_steps": (2, 2)},
            ".2.2.2.2..1..2..1..2",
        ),
    ],
)
def test_methods_as_pictures(settings: dict, drawn: str) -> None:
    turns = plan(**settings)
    assert picture(turns.schedules, turns.steps) == drawn


def test_local_steps_warm_up_over_h_epochs_where_nothing_is_said() -> None:
    run = {"method": "local-warmup", "epochs": 10.0, "local_steps": (4,), "switch": "first-decay"}
    turns = plan(**run)
    told = plan(**run, step_warmup=4.0)
    assert picture(turns.schedules, turns.steps) == picture(told.schedules, told.steps)


def test_the_rate_is_linear_in_the_global_batch_or_not_at_all() -> None:
    scaled = plan(lr=0.5, lr_batch=10, lr_warmup=1.0).learning_rate
    assert (scaled.start, scaled.peak, scaled.warmup_steps) == (0.5, 1.0, 4)
    plain = plan(lr=0.5, lr_batch=10, lr_warmup=1.0, lr_scaling="none").learning_rate
    assert (plain.peak, plain.warmup_steps) == (0.5, 0)
    smaller = plan(lr=0.5, lr_batch=40).learning_rate
    assert (smaller.peak, smaller.warmup_steps) == (0.25, 0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "lokal"}, "unknown method 'lokal'; nearest: local"),
        ({"workers": 7, "topology": "4x2"}, "workers = 7, but topology 4x2 has 8"),
        ({"method": "batch-growth", "inner_state": "all=reset"}, "inner_state says what becomes"),
        ({"method": "cyclic", "topology": "2x4"}, "cyclic is for one level, .*--topology 8"),
        ({"method": "hierarchical"}, "needs blocks, but topology 8 is flat; .*--topology 4x2"),
        ({"topology": "4x2", "local_steps": (2,)}, "1 number for the 2 levels of topology 4x2"),
        ({"workers": 100, "batch": 15}, "too few for 100 workers x batch 15 = 1,500"),
        ({"train_samples": 100, "batch": 16}, "100 training samples: too few for 8 workers"),
        ({"epochs": 0.01}, "less than one step of 128; train for longer"),
        ({"switch": "epoch:31"}, "outside the run of 30 epochs"),
        ({"switch": "step:338"}, r"outside the run of 30 epochs \(336 steps\)"),
        ({"switch": "fraction:1.5"}, "outside the run"),
        ({"switch": "step:-1"}, "'step:-1' is not understood; write first-decay, epoch:E"),
        ({"switch": "epoch:nan"}, "not understood"),
        ({"switch": "later"}, "'later' is not understood"),
        ({"method": "mini-batch", "switch": "later"}, "'later' is not understood"),
        ({"lr_decay_at": ()}, "first-decay needs a decay, but lr_decay_at is empty"),
        ({"lr_warmup": 31.0}, "lr_warmup of 31 epochs outlasts the run of 30"),
        (
            {"method": "local-warmup", "step_warmup": 31.0},
            "step_warmup of 31 epochs outlasts the run of 30, so that H would never be what",
        ),
        ({"method": "local", "average": "gradients"}, "needs H = 1 at the start, .* H = 8"),
        (
            {"lr_schedule": "cyclic", "lr_cycles": 7, "epochs": 0.22, "workers": 2},
            "7 cycles of 2 steps do not fit into the 9 steps of the run; give lr_cycles 5",
        ),
        ({"compression": "sgn"}, "unknown compression 'sgn'; nearest: sign. There are none, sign"),
        ({"compression": "ordered"}, "unknown compression 'ordered'"),
        ({"outer": "slomo"}, "unknown outer optimizer 'slomo'; nearest: slowmo"),
        ({"options": ("top-k.fraction=0.1",)}, "is of no part of this run from another package"),
        ({"options": ("fraction=0.1",)}, "not understood; write NAME.OPTION=VALUE"),
        *(
            (
                {"neighbours": neighbours, **settings},
                f"with neighbours {neighbours} no two .*{what}",
            )
            for neighbours in ("ring", "pairs")
            for settings, what in (
                ({"compression": "ef-sign"}, "compression ef-sign needs one"),
                ({"method": "slowmo"}, "outer slowmo needs one"),
                ({"method": "delayed"}, "delay or fragments needs one"),
                ({"method": "local-adam"}, "inner_state exp_avg=average"),
                ({"method": "batch-growth"}, "method batch-growth needs one"),
                ({"topology": "2+3", "local_steps": (2, 2), "method": "hierarchical"}, "unequal"),
                ({"partition": "fixed", "weighting": "samples"}, "weighting samples needs one"),
            )
        ),
        (
            {"neighbours": "ring", "method": "mini-batch", "average": "gradients"},
            "needs the plain mean of models, .* neighbours ring",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(settings: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        complete_run(Run(**settings), CARD)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["epochs", "lr", "lr_warmup", "weight_decay", "step_warmup"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_numbers_are_finite(name: str, value: float) -> None:
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.convert({name: value}, Run)


def test_json_and_back(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for run in (Run(), tiny(lr=0.1 + 0.2, topology="2x2", local_steps=(2, 3), init="w")):
        path.write_bytes(to_json(run))
        assert from_json(path) == run


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"epochz": 3}', "unknown name 'epochz'; nearest: epochs"),
        ('{"local_steps": [2, 0]}', r": local_steps\[1\]: give a whole number >= 1"),
        ('{"epochs": "3"}', "epochs: give a number, not text"),
        ('{"epochs": ', "it ends too early"),
        ("{epochs: 3}", r"it is no JSON: .*byte 1"),
        ('{"epochs": 1e999}', "epochs: give a number that a float can hold"),
        ('{"precision": "half"}', "precision: unknown value 'half'; there are float32, bfloat16"),
        ("\xff", "malformed|invalid|utf-8"),
        ("[]", "give a mapping of names to values, not a list"),
    ],
)
def test_json_that_is_no_run_is_refused_by_its_place(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=says) as refused:
        from_json(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_json_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory; give a file"):
        from_json(tmp_path / "none.json")


def test_settings_that_came_later_are_written_where_they_say_something() -> None:
    """So that records and folders of earlier runs keep their names."""
    usual = json.loads(to_json(complete_run(Run(), CARD)))
    assert not {*LATER} & usual.keys()
    settings = {"neighbours": "ring", "no_decay": "usual"}
    assert settings.items() <= json.loads(to_json(complete_run(Run(**settings), CARD))).items()
