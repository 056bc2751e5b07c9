"""Runs from Python: objects in place of names, results, interruption."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from localsgd.cli.main import _call, _parse
from localsgd.errors import UserError
from localsgd.optimizer import averaged_file
from localsgd.reduce import Sign
from localsgd.schedule import post_local
from localsgd.train import Interrupted, Observer, Result, Run, add, load, task_of
from localsgd.train.data.tasks.tensors import TensorTask
from localsgd.train.engine.assembly import Assembly
from localsgd.train.engine.run_folder import Folder
from localsgd.train.launch import launch
from localsgd.train.runs import run as runs
from localsgd.train.runs.result import weights_in
from tests.runs import same

PROGRAM = Path(__file__).with_name("program.py")
"""Trains twice, as one of several processes, and leaves its results."""


def halves() -> TensorTask:
    """60 points of the plane, by the sign of their first coordinate."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=draw)
    y = (x[:, 0] > 0).long()
    return task_of("halves", (x[:40], y[:40]), (x[40:], y[40:]))


class Net(nn.Module):
    """Weights that no initialisation of the package would give."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 4)
        self.norm = nn.LayerNorm(4)
        self.last = nn.Linear(4, 2)
        nn.init.constant_(self.first.bias, 7.0)
        nn.init.constant_(self.last.bias, -3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))


class Looking(Observer):
    """Keeps what trains, and calls `at_step` after every step."""

    def __init__(self, at_step: Callable[[int], None] = lambda step: None) -> None:
        self.at_step = at_step
        self.start: dict[str, Tensor] = {}

    def started(self, assembly: Assembly) -> None:
        self.assembly = assembly
        state = assembly.workers.models[-1].state_dict()
        self.start = {name: value.clone() for name, value in state.items()}

    def stepped(self, assembly: Assembly) -> None:
        self.at_step(assembly.workers.step)


def run(**settings: Any) -> Run:
    """8 steps of 2 workers."""
    usual = {"method": "local", "workers": 2, "local_steps": 3, "batch": 5, "epochs": 2, "seed": 3}
    return Run(**{"task": halves(), "model": Net, **usual, **settings})


def trained(out: Path | None = None, *observers: Observer, **settings: Any) -> Result:
    return run(**settings).train(out, observers, progress=False)


def seeded(make: Callable[[], nn.Module], seed: int = 3) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return make().state_dict()


@pytest.mark.parametrize("model", [Net, lambda: Net(), lambda task: Net(), "module"])
def test_own_initial_weights_are_left_alone(model: Any) -> None:
    looking = Looking()
    torch.manual_seed(3)
    trained(None, looking, model=Net() if model == "module" else model)
    assert same(looking.start, dict(seeded(Net)))


@pytest.mark.usefixtures("own_names")
def test_a_model_of_another_package_starts_with_its_own_weights_too() -> None:
    add("models", "somebodys", lambda task: Net())
    looking = Looking()
    trained(None, looking, model="somebodys")
    assert same(looking.start, dict(seeded(Net)))
    with pytest.raises(UserError, match="is a name of localsgd"):
        add("models", "resnet26", Net)
    with pytest.raises(UserError, match="unknown kind of part 'model'; nearest: models"):
        add("model", "mine", Net)


def test_weight_decay_spares_what_people_expect_unless_told() -> None:
    matrices = {"first.weight", "last.weight"}
    cases: list[tuple[Any, set[str]]] = [
        (None, matrices),
        ("batch-norm", {name for name, _ in Net().named_parameters()}),
        (lambda model: {"last.weight"}, {n for n, _ in Net().named_parameters()} - {"last.weight"}),
    ]
    for rule, expected in cases:
        looking = Looking()
        trained(None, looking, no_decay=rule, weight_decay=0.1, epochs=0.5)
        workers = looking.assembly.workers
        decayed = {slot.name for slot in workers.layout.slots[: workers._decayed]}
        assert decayed == expected


def test_a_result_has_curves_ledger_and_models(tmp_path: Path) -> None:
    result = trained(tmp_path / "run")
    assert result.curve("train_loss")[0] == [1.0, 2.0]
    assert result.curve()[1][-1] == result.score
    assert result.path == tmp_path / "run"
    # 8 steps, H = 3: syncs after 3 and 6, and a last one. 6 tensors in a row of 96 float32.
    assert result.ledger.levels[0].calls == 3
    assert result.ledger.bytes == 3 * 96 * 4
    assert same(load_file(tmp_path / "run" / "model.safetensors"), result.weights)
    assert result.model is not None
    x, y = halves().test
    assert float((result.model(x).argmax(1) == y).float().mean()) == pytest.approx(result.score)
    assert sorted(result.local_weights) == [0, 1]
    assert same(dict(result.local_weights[1]), result.weights)
    loaded = load(tmp_path / "run")
    assert same(loaded.weights, result.weights)
    assert loaded.model is None
    assert list(loaded.rows) == list(result.rows)
    with pytest.raises(UserError, match="unknown curve 'los'"):
        result.curve("los")


def test_a_stopped_run_goes_on_with_the_same_bits_with_and_without_a_folder(
    tmp_path: Path,
) -> None:
    whole = trained(tmp_path / "whole")

    def stop(step: int) -> None:
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    for out in (tmp_path / "stopped", None):
        stopped = run()
        with pytest.raises(Interrupted, match=r"the same train\(\) goes on"):
            stopped.train(out, [Looking(stop)], progress=False)
        again = Looking()
        result = (run() if out else stopped).train(out, [again], progress=False)
        assert same(result.weights, whole.weights)
        assert not same(again.start, dict(seeded(Net)))
        assert list(map(comparable, result.rows)) == list(map(comparable, whole.rows))


def comparable(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in ("step", "train_loss", "test_accuracy", "syncs")}


def test_a_run_that_has_ended_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(tmp_path / "run")

    def opened(*given: Any, **options: Any) -> Any:
        raise AssertionError("it trains again")

    monkeypatch.setattr(runs, "opened", opened)
    again = trained(tmp_path / "run")
    assert same(again.weights, first.weights)
    assert again.model is not None
    assert same(dict(again.model.state_dict()), first.weights)


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "run", epochs=0.5)
    with pytest.raises(UserError, match=r"other settings \(epochs, lr_warmup, seed\)"):
        trained(tmp_path / "run", epochs=0.75, seed=4)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(UserError, match=r"exists already; give another place with out=$"):
        trained(tmp_path / "mine")


def test_the_command_line_does_not_go_on_without_the_objects(tmp_path: Path) -> None:
    trained(tmp_path / "run", epochs=0.5)
    for command in (["resume", tmp_path / "run"], ["run", "--config", tmp_path / "run/run.json"]):
        with pytest.raises(UserError, match="task halves was an object in Python; go on from"):
            _call(_parse([str(word) for word in command]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learning_rate": 1.0}, "unknown setting 'learning_rate'; there are task, "),
        ({"plugins": ("x",)}, "unknown setting 'plugins'"),
        ({"lr": "much"}, "lr: give a number, not text"),
        ({"local_steps": "six"}, "local_steps is 'six'; give a whole number"),
        ({"compression": "sgn"}, "unknown compression 'sgn'; nearest: sign"),
        ({"compression": "sgn"}, "or by --use MODULE"),
        ({"model": 7}, "model 7 is none"),
        ({"task": 3}, "task 3 is none; give a name, or a Task"),
        ({"model": lambda one, two: Net()}, "needs 2 arguments"),
        ({"model": lambda: 3}, "the model is made as a value of type int"),
        (
            {"method": object},
            'localsgd.train.add("schedules", "mine", it), and write method="mine"',
        ),
        ({"schedule": post_local(4)}, 'and write method="mine"'),
        ({"local_steps": post_local(4)}, 'and write method="mine"'),
        ({"compression": Sign()}, 'add("compressors", "mine", lambda: it), and write compression'),
        ({"reducer": Sign()}, 'add("compressors", "mine", lambda: it), and write compression'),
        ({"outer": torch.optim.SGD}, 'add("outers", "mine", lambda: it), and write outer="mine"'),
        ({"reducer": "ef-sign"}, "there is no setting reducer; write compression='ef-sign'"),
        ({"options": ("sign.k=1",)}, "is of no part of this run from another package"),
    ],
)
def test_mistakes_are_said_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        trained(**settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_observer_must_be_one() -> None:
    with pytest.raises(UserError, match=r"observer 3 is none; give a localsgd\.train\.Observer"):
        trained(None, 3)  # type: ignore[arg-type]


def test_arrays_are_no_samples() -> None:
    arrays = torch.randn(20, 3).numpy(), torch.arange(20).numpy()
    with pytest.raises(UserError, match="the train data is neither two tensors nor a data set"):
        task_of("a", arrays, arrays)  # type: ignore[arg-type]


def test_a_loaded_result_fills_a_model(tmp_path: Path) -> None:
    given = Net().train()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    result = trained(out=tmp_path / "run", precision="float64")
    assert load(tmp_path / "run").model is None
    for model in (given, Net):
        found = load(tmp_path / "run", model).model
        assert found is not None
        assert found is not given
        assert not found.training
        assert same(found.state_dict(), result.weights)
        assert next(found.parameters()).dtype == torch.float64
    assert same(given.state_dict(), before)
    with pytest.raises(UserError, match="holds the weights of another model, Net: Missing key"):
        load(tmp_path / "run", nn.Linear(3, 3))
    wider = Net()
    wider.first, wider.last = nn.Linear(3, 4), nn.Linear(4, 9)
    with pytest.raises(UserError, match=r"Net: size mismatch for first.weight: [^:]*\.$"):
        load(tmp_path / "run", wider)
    for local in (result.local_weights, load(tmp_path / "run").local_weights):
        with pytest.raises(KeyError, match="no worker 77 here; there are 0, 1"):
            local[77]


def test_a_setting_is_listed_once() -> None:
    with pytest.raises(UserError) as caught:
        trained(nothing=1)
    assert str(caught.value).count("no_decay") == 1


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ((torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64)), "3 inputs and 2 classes"),
        ((torch.zeros(3, 2), torch.zeros(3)), "whole numbers from 0"),
        ((torch.zeros(3, 2), torch.tensor([0, -1, 1])), "whole numbers from 0"),
    ],
)
def test_data_without_classes_is_refused(train: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        task_of("mine", train, train)


def test_a_data_set_is_read_sample_by_sample() -> None:
    pairs = [(torch.tensor([float(i), 0.0]), i % 3) for i in range(6)]
    task = task_of("mine", pairs, pairs)
    x, y = task.train_batch(torch.tensor([4, 1]), None)
    assert (x[:, 0].tolist(), y.tolist(), task.classes) == ([4.0, 1.0], [1, 1], 3)
    assert task.subset(2).train_size == len(task.subset(2).train[0]) == 2


def test_two_processes_train_what_one_does(tmp_path: Path) -> None:
    """Two runs, one after another, in the same processes."""
    results = [trained(local_steps=steps, reduction="ordered") for steps in (1, 3)]
    alone = [result.weights["first.weight"] for result in results]
    assert launch([str(PROGRAM), str(tmp_path)], 2, program=[]) == 0
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert torch.equal(found["weights"][0], alone[0])
        assert torch.equal(found["weights"][1], alone[1])
        assert found["workers"] == [rank]
        assert found["steps"] == [[row["step"] for row in result.rows] for result in results]


def test_the_module_names_what_it_has() -> None:
    import localsgd.train

    for name in localsgd.train.__all__:
        assert getattr(localsgd.train, name) is not None
    with pytest.raises(AttributeError):
        _ = localsgd.train.nothing
    assert "localsgd.train.runs.run" in sys.modules


class Tied(nn.Module):
    """Its own buffers differ between workers: batch norm, a frozen tensor, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.norm = nn.BatchNorm1d(2)
        self.again = nn.Linear(2, 2)
        self.again.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("unsaved", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.norm(self.first(x))) * self.frozen


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_loaded_run_has_the_workers_own_weights(precision: str, tmp_path: Path) -> None:
    run = Run(
        task=halves(),
        model=Tied,
        workers=5,
        method="local",
        local_steps=2,
        batch=4,
        epochs=2,
        precision=precision,
    )
    result = run.train(tmp_path / "run", progress=False)
    loaded = load(tmp_path / "run").local_weights
    assert list(loaded) == sorted(result.local_weights) == [0, 1, 2, 3, 4]
    for worker, weights in result.local_weights.items():
        assert loaded[worker].keys() == weights.keys()
        assert all(torch.equal(loaded[worker][name], value) for name, value in weights.items())
    assert not torch.equal(loaded[0]["norm.running_mean"], loaded[1]["norm.running_mean"])
    with pytest.raises(KeyError):
        loaded[5]
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(UserError, match="keep its checkpoints/"):
        loaded[0]


@pytest.mark.timeout(60)
def test_weights_that_are_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    os.mkfifo(weights)
    with pytest.raises(UserError, match="is a pipe or a device"):
        weights_in(Folder(tmp_path))
    with pytest.raises(UserError, match="is no regular file"):
        averaged_file.read(weights)


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoint_every": 0},
        {"checkpoint_every": 1.5},
        {"heartbeat_seconds": 0.0},
        {"timeout_minutes": -1.0},
    ],
)
def test_limits_are_checked_where_they_are_given(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(UserError, match=name):
        runs.Limits(**wrong)


@pytest.mark.usefixtures("own_names")
def test_a_schedule_sees_how_far_the_run_is_from_the_first_step_on() -> None:
    add("schedules", "half", lambda progress: 8 if progress.fraction >= 0.5 else 1)
    result = Run(halves(), nn.Linear(2, 2), method="half", workers=2, batch=5, epochs=2.0)
    assert result.train(progress=False).summary["steps"] == 8


def test_channels_last_is_refused_for_what_is_no_image() -> None:
    run = Run(halves(), nn.Linear(2, 2), channels_last=True, workers=2, batch=5, epochs=1.0)
    with pytest.raises(UserError, match=r"is for images, but .* gives inputs of shape \(2,\)"):
        run.train(progress=False)


def test_a_curve_has_the_evaluations_that_have_it(tmp_path: Path) -> None:
    run = Run(halves(), nn.Linear(2, 2), workers=2, batch=5, epochs=3.0)
    result = run.train(tmp_path / "run", progress=False)
    (first, *others) = result.rows
    rows = [{key: value for key, value in first.items() if key != "test_loss"}, *others]
    epochs, values = replace(result, rows=rows).curve("test_loss")
    assert epochs == [row["epoch"] for row in others]
    assert values == [row["test_loss"] for row in others]
