"""What every task of the trainer promises.

Shapes: B samples of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError

import torch
from torch import Tensor, nn

from localsgd.errors import UserError
from localsgd.testing.comparing import near, refused
from localsgd.train.data import models
from localsgd.train.data.task import Task, as_read

INDICES = torch.tensor([5, 0, 17, 5, 2])
LEAST = 20
"""Samples of a set: the checks read as many."""
Batch = Callable[[Tensor], tuple[Tensor, Tensor]]


def check_task(task: Task, model: nn.Module | None = None) -> None:
    """Asserts that `task` can be trained.

    Batches are what the card says, in order, and may be overwritten; all chance comes from the
    generator; losses are means and scores are sums over samples; a subset is a fixed part.

    Args:
        model: for its inputs, left as it is; the default model of its card if not given.
    """
    assert task.train_size >= LEAST, f"a task has {LEAST} training samples at least"
    assert task.test_size >= LEAST, f"a task has {LEAST} test samples at least"
    for check in CHECKS:
        check(task)
    for check in CHECKS_WITH_MODEL:
        check(task, default_model(task) if model is None else copy.deepcopy(model))


def default_model(task: Task) -> nn.Module:
    return models.build(task.default_model, task, 0)


def _plain(task: Task) -> Batch:
    return lambda indices: task.train_batch(indices, None)


def _sets(task: Task) -> Iterator[tuple[str, int, Batch]]:
    yield "training", task.train_size, _plain(task)
    yield "test", task.test_size, task.test_batch


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _batches_have_the_shapes_of_the_card(task: Task) -> None:
    allowed = [torch.int64] if task.card.sequential else [torch.float32, torch.int64]
    for what, _, batch in _sets(task):
        inputs, targets = batch(INDICES)
        assert inputs.shape == (5, *task.input_shape), (
            f"{what} inputs of 5 samples are {tuple(inputs.shape)}, and the card says "
            f"{task.input_shape} for each"
        )
        assert inputs.dtype in allowed, (
            f"{what} inputs are {inputs.dtype}, not {' or '.join(map(str, allowed))}"
        )
        assert inputs.isfinite().all(), f"{what} inputs have NaN or infinity"
        assert len(targets) == 5, f"{what} targets of 5 samples are {len(targets)}"
        assert targets.dtype == torch.int64, f"{what} targets are {targets.dtype}, not int64"


def _is_text(task: Task) -> bool:
    """Whether a sample has several targets, one for each token."""
    return task.card.sequential or task.train_batch(INDICES, None)[1].dim() > 1


def _every_sample_is_there_and_no_more(task: Task) -> None:
    for what, size, batch in _sets(task):
        batch(torch.tensor([0, size - 1]))
        refused(IndexError, lambda b=batch, n=size: b(torch.tensor([n])), f"{what} sample {size}")


def _targets_cover_the_classes(task: Task) -> None:
    everything = set(range(task.classes))
    for what, size, batch in _sets(task):
        found: set[int] = set()
        for indices in torch.arange(size).split(1000):
            found |= set(batch(indices)[1].flatten().tolist())
        some = _is_text(task) or what == "test"
        fits = found <= everything if some else found == everything
        assert fits, f"{what} targets are not the {task.classes} classes: {sorted(found)[:20]}"


def _labels_are_the_targets_of_training(task: Task) -> None:
    if task.labels is None:
        assert _is_text(task), "labels are None, although each sample has one target"
        return
    assert task.labels.shape == (task.train_size,), f"labels are {tuple(task.labels.shape)}"
    targets = task.train_batch(INDICES, None)[1]
    assert torch.equal(targets.cpu(), task.labels[INDICES].cpu()), "labels are not the targets"


def _a_batch_is_its_samples_in_order(task: Task) -> None:
    for what, _, batch in _sets(task):
        inputs, targets = zip(*(batch(INDICES[i : i + 1]) for i in range(5)), strict=True)
        assert _same(batch(INDICES), (torch.cat(inputs), torch.cat(targets))), (
            f"a {what} batch is not its samples, one after the other"
        )


def _all_chance_comes_from_the_generator(task: Task) -> None:
    state = torch.get_rng_state()
    first = task.train_batch(INDICES, _seeded(1))
    assert torch.equal(torch.get_rng_state(), state), "a batch moves torch's global generator"
    torch.rand(1)
    assert _same(task.train_batch(INDICES, _seeded(1)), first), "equal seeds give other batches"


def _how_much_is_drawn_depends_on_the_size_alone(task: Task) -> None:
    one, other = _seeded(1), _seeded(1)
    task.train_batch(INDICES, one)
    task.train_batch(INDICES + 1, other)
    assert torch.equal(one.get_state(), other.get_state()), "other samples draw other amounts"


def _augmentation_keeps_targets_and_draws_anew(task: Task) -> None:
    plain = task.train_batch(torch.arange(20), None)
    generator = _seeded(1)
    first, second = (task.train_batch(torch.arange(20), generator) for _ in range(2))
    assert torch.equal(first[1], plain[1]), "augmentation changes targets"
    if not torch.equal(first[0], plain[0]):
        assert not torch.equal(first[0], second[0]), "augmentation is the same at every batch"


def _a_batch_may_be_overwritten(task: Task) -> None:
    for what, _, batch in _sets(task):
        inputs, targets = batch(INDICES)
        before = inputs.clone(), targets.clone()
        inputs.zero_()
        targets.zero_()
        assert _same(batch(INDICES), before), f"a {what} batch is the memory of the data itself"


def _a_subset_is_a_fixed_part_of_the_training_set(task: Task) -> None:
    size = min(2 * task.classes, task.train_size // 2)
    part, again, other = task.subset(size), task.subset(size), task.subset(size, seed=1)
    sizes = (part.train_size, part.test_size)
    assert sizes == (size, task.test_size), f"subset({size}) has {sizes} samples"
    assert part.classes == task.classes, "a subset has other classes"
    everything = torch.arange(size)
    batch = part.train_batch(everything, None)
    assert _same(batch, again.train_batch(everything, None)), "a subset differs from call to call"
    assert not _same(batch, other.train_batch(everything, None)), "seeds give the same subset"
    assert _same(part.test_batch(INDICES), task.test_batch(INDICES)), "a subset has other test data"
    refused(IndexError, lambda: part.train_batch(torch.tensor([size]), None), "past a subset")
    refused(UserError, lambda: task.subset(task.train_size + 1), "a subset of more than there is")


def _a_task_is_frozen(task: Task) -> None:
    def change() -> None:
        task.card = None  # type: ignore[misc]

    refused((FrozenInstanceError, AttributeError), change, "changing a task")


CHECKS = (
    _batches_have_the_shapes_of_the_card,
    _every_sample_is_there_and_no_more,
    _targets_cover_the_classes,
    _labels_are_the_targets_of_training,
    _a_batch_is_its_samples_in_order,
    _all_chance_comes_from_the_generator,
    _how_much_is_drawn_depends_on_the_size_alone,
    _augmentation_keeps_targets_and_draws_anew,
    _a_batch_may_be_overwritten,
    _a_subset_is_a_fixed_part_of_the_training_set,
    _a_task_is_frozen,
)


def _the_pieces_of_the_test_set_make_up_the_whole(task: Task, model: nn.Module) -> None:
    model.double().eval()
    few = task.test_size <= 2000
    pieces = torch.arange(task.pieces if few else 3)
    whole = task.judge(model, pieces)
    assert whole.dtype == torch.float64, f"judge() gives {whole.dtype}, not float64"
    assert 0 <= whole[1] <= whole[2], f"{whole[1]:g} of {whole[2]:g} predictions are right"
    if few:
        batches = torch.arange(task.test_size).split(9)
        targets = sum(task.test_batch(some)[1].numel() for some in batches)
        assert whole[2] == targets, f"judge() counts {whole[2]:g} targets of {targets}"
    parts = torch.stack([task.judge(model, some) for some in pieces.tensor_split(3)]).sum(0)
    near(parts, whole, "parts of the test set do not add up to the whole")


def _outputs(task: Task, model: nn.Module) -> tuple[Tensor, Tensor]:
    """Outputs in double precision, and their targets."""
    inputs, targets = task.test_batch(INDICES)
    model.double().eval()
    return model(as_read(inputs, model)), targets


def _the_loss_has_gradients(task: Task, model: nn.Module) -> None:
    model.float().train()
    inputs, targets = task.train_batch(INDICES, _seeded(0))
    loss = task.loss(model(inputs), targets)
    assert loss.shape == (), f"the loss of a batch has the shape {tuple(loss.shape)}"
    assert loss.isfinite(), "the loss of a new model is not finite"
    model.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        found = parameter.grad is not None and bool(parameter.grad.isfinite().all())
        assert found, f"{name} gets no finite gradient from the loss"


def _the_loss_is_a_mean_over_samples(task: Task, model: nn.Module) -> None:
    output, targets = _outputs(task, model)
    singles = [task.loss(output[i : i + 1], targets[i : i + 1]) for i in range(5)]
    mean = torch.stack(singles).mean()
    near(task.loss(output, targets), mean, "the loss is not the mean over samples")


def _correct_is_a_count_over_samples(task: Task, model: nn.Module) -> None:
    output, targets = _outputs(task, model)
    count = task.correct(output, targets)
    assert count.dtype == torch.int64, f"correct() gives {count.dtype}, not int64"
    assert count.shape == (), f"correct() has the shape {tuple(count.shape)}"
    apart = sum(int(task.correct(output[i : i + 1], targets[i : i + 1])) for i in range(5))
    assert int(count) == apart, f"correct() counts {int(count)} together and {apart} one by one"
    perfect = nn.functional.one_hot(targets, task.classes).double()
    assert task.correct(perfect, targets) == targets.numel(), "right predictions do not all count"
    assert task.correct(-perfect, targets) == 0, "wrong predictions count"


CHECKS_WITH_MODEL = (
    _the_pieces_of_the_test_set_make_up_the_whole,
    _the_loss_has_gradients,
    _the_loss_is_a_mean_over_samples,
    _correct_is_a_count_over_samples,
)
