from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.train import Run, task_of
from localsgd.train.config.plan import Plan
from localsgd.train.data.models.small_cnn import small_cnn
from localsgd.train.engine import evaluation
from localsgd.train.engine.assembly import Assembly, assemble
from localsgd.train.engine.evaluation import averaged_model, local_score, score
from localsgd.wire import InProcess
from tests.distributed import harness
from tests.runs import SAMPLES, digits, prepared, same, tiny, worker_states

pytestmark = pytest.mark.timeout(300)


def apart(**settings: Any) -> Assembly:
    """Four workers in float64 that have parted ways for two steps of a round of three."""
    run = tiny(method="local", precision="float64", **settings)
    placement = placement_of(Plan(run, SAMPLES).topology)
    assembly = assemble(run, digits(), placement, torch.device("cpu"))
    for step in range(2):
        assembly.workers.backward()
        assembly.workers.apply(0.1 / (1 + step))
    return assembly


def stacked(assembly: Assembly, name: str) -> Tensor:
    """One tensor of all workers' models `[K, ...]`."""
    return torch.stack([model.state_dict()[name] for model in assembly.workers.models])


def norms(model: nn.Module) -> list[str]:
    return [name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)]


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("policy", ["mean", "recalibrated", "own"])
def test_weights_are_the_mean_and_workers_stay_as_they_are(policy: str) -> None:
    assembly = apart(batch_norm=policy)
    before, random = worker_states(assembly), torch.get_rng_state()
    model = averaged_model(assembly)
    score(model, assembly)
    local_score(assembly)
    assert same(worker_states(assembly), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(worker.training for worker in assembly.workers.models)
    assert not model.training
    for name, parameter in model.named_parameters():
        workers = stacked(assembly, name)
        assert not torch.equal(workers[0], workers[1])
        close(parameter.detach(), workers.mean(0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # memory of its own
    assert same(worker_states(assembly), before)


def test_parts_that_a_worker_has_frozen_stay_so() -> None:
    """Batch norm in eval mode would else follow the batches from the first evaluation on."""
    assembly = apart()
    frozen = [part for part in assembly.workers.models[1].modules() if has_statistics(part)]
    for part in frozen:
        part.eval()
    local_score(assembly)
    modes = [part.training for part in assembly.workers.models[1].modules()]
    assert modes.count(False) == len(frozen) > 0


def has_statistics(part: nn.Module) -> bool:
    return isinstance(part, nn.BatchNorm2d)


def test_statistics_are_re_estimated_on_batches_that_are_like_the_whole() -> None:
    """Of data that is stored by class, too: within a class features vary less than over all."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(1200).mul(4).div(1200, rounding_mode="floor")
    x = 0.1 * torch.randn(1200, 4, generator=draw) + 3 * F.one_hot(y, 4)
    task = task_of("stored by class", (x, y), (x[:8], y[:8]))
    order = task.mixed(1200)
    assert torch.equal(order.sort().values, torch.arange(1200))
    assert torch.equal(order[:7], task.mixed(7))
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
    run = {"workers": 2, "batch": 20, "epochs": 0.1, "batch_norm": "recalibrated"}
    result = Run(task, model, method="local", local_steps=2, **run).train(progress=False)
    variance = result.weights["0.running_var"]
    torch.testing.assert_close(variance, x.var(0), rtol=0.1, atol=0.0)


def test_a_mean_row_is_made_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 scalars; the last one is shorter, and no multiple of the number of workers."""
    monkeypatch.setattr(evaluation, "CHUNK", 8)
    params = torch.stack([torch.arange(19.0), 3 * torch.arange(19.0), torch.full((19,), 2.0)])
    before = params.clone()
    found = evaluation.mean_row(params, InProcess(3))
    expected = [(4 * place + 2) / 3 for place in range(19)]
    assert found.tolist() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(params, before)


def test_a_row_above_a_chunk_of_the_usual_size() -> None:
    rows = torch.arange(2**20 + 5).repeat(2, 1) + torch.tensor([[1], [3]])
    found = evaluation.mean_row(rows.double(), InProcess(2))
    assert torch.equal(found, torch.arange(2.0, 2**20 + 7, dtype=torch.float64))


class Noisy(nn.Module):
    """Dropout before batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.drop(x))


def test_recalibration_drops_nothing_out() -> None:
    """The statistics are those of the images, whatever stands before batch norm."""
    assembly = assemble(tiny(), digits(), placement_of(Topology((4,))), torch.device("cpu"))
    model = Noisy().double()
    evaluation.recalibrate(model, assembly)
    images = digits().train_batch(torch.arange(SAMPLES), None)[0].double()
    close(model.norm.running_mean, images.mean((0, 2, 3)))
    close(model.norm.running_var, images.var((0, 2, 3)))
    assert not any(part.training for part in model.modules())


def test_mean_statistics_have_the_variance_between_workers() -> None:
    assembly = apart(batch_norm="mean")
    model = averaged_model(assembly)
    found = model.state_dict()
    for norm in norms(model):
        means = stacked(assembly, f"{norm}.running_mean")
        variances = stacked(assembly, f"{norm}.running_var")
        close(found[f"{norm}.running_mean"], means.mean(0))
        between = means.var(0, correction=0)
        assert between.max() > 1e-6
        close(found[f"{norm}.running_var"], variances.mean(0) + between)


def test_own_statistics_are_worker_0s() -> None:
    assembly = apart(batch_norm="own")
    found = averaged_model(assembly).state_dict()
    for name, buffer in assembly.workers.models[0].named_buffers():
        assert torch.equal(found[name], buffer)


def test_recalibrated_statistics_are_those_of_the_training_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean over two batches of 40 of what each layer sees, by hand."""
    monkeypatch.setattr(evaluation, "BATCH", 40)
    assembly = apart(batch_norm="recalibrated")
    found = averaged_model(assembly)
    by_hand = copy.deepcopy(found).train()
    seen: dict[str, list[Tensor]] = {norm: [] for norm in norms(found)}
    for norm in seen:
        by_hand.get_submodule(norm).register_forward_pre_hook(
            lambda _, inputs, norm=norm: seen[norm].append(inputs[0].detach())
        )
    for part in torch.arange(SAMPLES).split(40):
        by_hand(digits().train_batch(part, None)[0].double())
    for norm, inputs in seen.items():
        means = torch.stack([x.mean((0, 2, 3)) for x in inputs])
        variances = torch.stack([x.var((0, 2, 3)) for x in inputs])
        close(found.state_dict()[f"{norm}.running_mean"], means.mean(0))
        close(found.state_dict()[f"{norm}.running_var"], variances.mean(0))
        assert found.get_submodule(norm).momentum == 0.1


def test_recalibration_reads_images_as_training_does() -> None:
    """Augmented, with draws of its own that are the same every time."""
    assembly = apart(batch_norm="recalibrated")
    plain = averaged_model(assembly)
    drawn: list[Tensor] = []
    real = assembly.task.train_batch

    def noisy(indices: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        x, y = real(indices, None)
        if generator is not None:
            drawn.append(torch.randn(x.shape, generator=generator))
            x = x + drawn[-1]
        return x, y

    object.__setattr__(assembly.task, "train_batch", noisy)
    try:
        first, second = averaged_model(assembly), averaged_model(assembly)
    finally:
        object.__delattr__(assembly.task, "train_batch")
    assert len(drawn) == 2
    assert torch.equal(*drawn)
    for norm in norms(first):
        found = [model.state_dict()[f"{norm}.running_var"] for model in (first, second, plain)]
        assert torch.equal(found[0], found[1])
        assert not torch.equal(found[0], found[2])


def test_recalibration_takes_the_first_10_000_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BATCH", 30)
    monkeypatch.setattr(evaluation, "RECALIBRATION", 70)
    assembly = apart(batch_norm="recalibrated")
    seen = []
    real = assembly.task.train_batch

    def watched(indices: Tensor, generator: object) -> tuple[Tensor, Tensor]:
        seen.extend(indices.tolist())
        return real(indices, None)

    object.__setattr__(assembly.task, "train_batch", watched)
    try:
        averaged_model(assembly)
    finally:
        object.__delattr__(assembly.task, "train_batch")
    assert seen == list(range(60))  # whole batches alone


def test_scores_by_hand() -> None:
    assembly = apart()
    x, y = digits().test_batch(torch.arange(360))
    model = averaged_model(assembly)
    found = score(model, assembly)
    with torch.no_grad():
        output = model(x.double())
    assert found.loss == pytest.approx(F.cross_entropy(output, y).item(), abs=1e-12)
    assert found.accuracy == (output.argmax(1) == y).sum().item() / 360
    losses, correct = [], 0
    for worker in assembly.workers.models:
        with torch.no_grad():
            output = copy.deepcopy(worker).eval()(x.double())
        losses.append(F.cross_entropy(output, y).item())
        correct += (output.argmax(1) == y).sum().item()
    own = local_score(assembly)
    assert own.loss == pytest.approx(sum(losses) / 4, abs=1e-12)
    assert own.accuracy == correct / 1440


def everything(policy: str) -> tuple[dict[str, Tensor], list[float]]:
    assembly = apart(batch_norm=policy)
    model = averaged_model(assembly)
    found, own = score(model, assembly), local_score(assembly)
    return model.state_dict(), [found.loss, found.accuracy, own.loss, own.accuracy]


@pytest.mark.parametrize("policy", ["mean", "recalibrated", "own"])
def test_two_processes_find_what_one_does(policy: str) -> None:
    state, scores = everything(policy)
    for found, numbers in harness.run(2, everything, policy, seconds=240):
        assert same(found, state)
        assert numbers[1] == scores[1]
        assert numbers[3] == scores[3]
        assert numbers == pytest.approx(scores, abs=1e-12)


def test_the_final_model_needs_no_library(tmp_path: Path) -> None:
    """Its file and scikit-learn's images give the accuracy that the run wrote down."""
    execution = prepared(tiny(method="local"), tmp_path)
    summary = execution.train()
    block = [nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    block += [nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)]
    block += [nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1, bias=False)]
    block += [nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    plain = nn.Sequential(*block, nn.Linear(16, 10))
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert [type(part) for part in plain] == [type(part) for part in small_cnn(1, 10, 4)]

    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.uint8).view(-1, 1, 8, 8)
    task = digits()
    test = [int((images == image).flatten(1).all(1).nonzero()[0]) for image in task.test.pixels]
    mean, deviation = task.mean[0], task.std[0]
    with torch.no_grad():
        output = plain.eval()((images[test].float() - mean) / deviation)
    right = output.argmax(1) == torch.tensor(labels)[test]
    assert right.float().mean().item() == pytest.approx(summary["test_accuracy"], abs=1e-6)


def test_bfloat16_is_autocast(tmp_path: Path) -> None:
    """In training and in evaluation; weights and what is saved stay in float32."""
    plain = prepared(tiny(), tmp_path / "plain")
    plain.train()
    mixed = prepared(tiny(precision="bfloat16"), tmp_path / "mixed")
    found = mixed.train()
    assert mixed.assembly.workers.params.dtype == torch.float32
    assert not torch.equal(mixed.assembly.workers.params, plain.assembly.workers.params)
    assert 0 < found["test_loss"] < 10
    state = load_file(tmp_path / "mixed" / "model.safetensors")
    assert {value.dtype for value in state.values()} == {torch.float32, torch.int64}
