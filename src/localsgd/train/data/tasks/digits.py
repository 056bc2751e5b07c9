"""Handwritten digits, 8 x 8: the images that scikit-learn carries, so nothing to download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from localsgd.errors import UserError
from localsgd.train.data.task import Card, Defaults
from localsgd.train.data.tasks.entry import Entry, Source
from localsgd.train.data.tasks.images import Images, ImageTask, balanced

CARD = Card(
    name="digits",
    title="Handwritten digits, 8x8 grey",
    classes=10,
    input_shape=(1, 8, 8),
    train_size=1437,
    test_size=360,
    default_model="small-cnn",
    defaults=Defaults(epochs=30, batch=16, learning_rate=0.05, lr_batch=16, weight_decay=1e-4),
    source="comes with scikit-learn",
    licence="CC BY 4.0; E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, 1998",
)
SPLIT_SEED = 0


def find(data_dir: Path | None) -> Path | None:
    """The folder of scikit-learn, if it is installed."""
    spec = importlib.util.find_spec("sklearn")
    return Path(spec.origin).parent if spec and spec.origin else None


def load(source: Source) -> ImageTask:
    """The 1,797 images; 36 of each digit, drawn once and for all, are the test set."""
    if source.augment:
        raise UserError("digits are never cropped or flipped: a mirrored 2 is no 2")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError(
            "the task digits needs scikit-learn, which is not installed: "
            "pip install 'localsgd[cli]', or choose another task"
        ) from None
    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    everything = Images(
        torch.from_numpy(pixels.astype(np.uint8)).view(-1, *CARD.input_shape),
        torch.from_numpy(labels.astype(np.int64)),
    )
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    in_test[balanced(everything.labels, CARD.test_size, CARD.classes, SPLIT_SEED)] = True
    train = Images(*(t[~in_test] for t in everything))
    test = Images(*(t[in_test] for t in everything))
    values = train.pixels.double()
    return ImageTask(
        in_mixed_order=True,
        card=CARD,
        train=train.to(source.device),
        test=test.to(source.device),
        mean=(values.mean().item(),),
        std=(values.std(correction=0).item(),),
    )


ENTRY = Entry(CARD, find, load)
