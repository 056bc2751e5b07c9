"""Cards of tasks that are made up."""

from __future__ import annotations

from typing import Any

from localsgd.train.data.task import Card, Defaults


def card_of_images(classes: int, shape: tuple[int, int, int], **changed: Any) -> Card:
    """Of six images to train on and six to test on, unless something else is said."""
    settings = {"train_size": 6, "test_size": 6, "default_model": "mlp", **changed}
    return Card(
        name="made-up",
        title="Made-up images",
        classes=classes,
        input_shape=shape,
        defaults=Defaults(epochs=1, batch=2, learning_rate=0.1, lr_batch=2, weight_decay=0.0),
        source="nowhere",
        licence="none",
        **settings,
    )
