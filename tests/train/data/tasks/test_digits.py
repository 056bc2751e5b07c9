from __future__ import annotations

import builtins
import hashlib
import sys
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from localsgd.errors import UserError
from localsgd.train.data.tasks import digits
from localsgd.train.data.tasks.entry import Source


def test_every_image_is_in_one_part() -> None:
    task = digits.load(Source(None))
    pixels, labels = load_digits(return_X_y=True)
    everything = sorted(bytes([*map(int, x), int(y)]) for x, y in zip(pixels, labels, strict=True))
    parts = [
        bytes([*x.flatten().tolist(), y])
        for part in (task.train, task.test)
        for x, y in zip(part.pixels, part.labels.tolist(), strict=True)
    ]
    assert sorted(parts) == everything
    assert len(everything) == 1797


def test_the_test_set_has_36_of_each_digit_and_never_changes() -> None:
    test = digits.load(Source(None)).test
    assert torch.bincount(test.labels).tolist() == [36] * 10
    digest = hashlib.sha256(test.pixels.numpy().tobytes() + test.labels.numpy().tobytes())
    assert digest.hexdigest()[:16] == "dbc7af74908c4dba"


def test_training_inputs_have_mean_0_and_deviation_1() -> None:
    task = digits.load(Source(None))
    inputs, _ = task.train_batch(torch.arange(task.train_size), None)
    np.testing.assert_allclose(inputs.double().mean().item(), 0, atol=1e-6)
    np.testing.assert_allclose(inputs.double().std(correction=0).item(), 1, atol=1e-6)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ModuleNotFoundError("No module named 'sklearn'")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"localsgd\[cli\]"):
        digits.load(Source(None))


def test_digits_are_not_mirrored() -> None:
    with pytest.raises(UserError, match="mirrored"):
        digits.load(Source(None, augment=True))
