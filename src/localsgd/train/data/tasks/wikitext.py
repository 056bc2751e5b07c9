"""WikiText-2 (Merity et al., 2017), and any text in its layout: a word is what spaces part."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.train.data.metric import PERPLEXITY
from localsgd.train.data.task import Card, Defaults
from localsgd.train.data.tasks.data_folders import advice, data_folders
from localsgd.train.data.tasks.download import Progress, Remote, downloaded
from localsgd.train.data.tasks.entry import Entry, Source
from localsgd.train.data.tasks.text import TextTask, count_segments

FOLDER = "wikitext-2"
TRAIN, VALID = "wiki.train.tokens", "wiki.valid.tokens"
ARCHIVE = Remote(
    "https://wikitext.smerity.com/wikitext-2-v1.zip",
    sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    bytes=4_475_746,
)
END, UNKNOWN = "<eos>", "<unk>"
LENGTH = 30
"""T: tokens through which gradients flow back."""
CARD = Card(
    name="wikitext-2",
    title="WikiText-2, next word (segments of 30)",
    classes=33_278,
    input_shape=(LENGTH,),
    train_size=69_620,
    test_size=7_254,
    default_model="lstm",
    # Lin et al. (2020), appendix, for segments, clipping and epochs; the rest is in their code.
    defaults=Defaults(
        epochs=120,
        batch=64,
        learning_rate=2.5,
        lr_batch=24,
        weight_decay=0.0,
        momentum=0.0,
        clip=0.4,
    ),
    source=ARCHIVE.url,
    licence="CC BY-SA 3.0; S. Merity, C. Xiong, J. Bradbury, R. Socher, arXiv:1609.07843, 2016",
    metric=PERPLEXITY,
    sequential=True,
)


def find(data_dir: Path | None) -> Path | None:
    """The nearest folder with a text's files: `wikitext-2` in one of the places, or a place."""
    for place in data_folders(data_dir):
        for folder in (place / FOLDER, place):
            if any((folder / name).is_file() for name in (TRAIN, VALID)):
                return folder
    return None


def fetch(archive: Remote, data_dir: Path | None, progress: Progress | None = None) -> Path:
    """Download and unpack the text into `wikitext-2/` in the first of the places."""
    place = data_folders(data_dir)[0]
    folder = place / FOLDER
    hint = advice(f"the folder {FOLDER} (unpacked from {archive.url})", data_dir)
    with downloaded(archive, place, hint, progress) as path:
        unpacked = path.parent / FOLDER
        try:
            unpacked.mkdir()
            with zipfile.ZipFile(path) as zipped:
                for name in (TRAIN, VALID):  # nothing else an archive may hold is written
                    (unpacked / name).write_bytes(zipped.read(f"{FOLDER}/{name}"))
            os.rename(unpacked, folder)
        except OSError as error:
            if not folder.is_dir():  # else another process was as fast
                raise UserError(f"{folder} cannot be written ({error}); {hint}") from None
    return folder


def load(source: Source) -> TextTask:
    """The training text and, as the test set, the validation text: the one the paper reports."""
    if source.augment:
        raise UserError("a text is never augmented; leave that out")
    folder = find(source.data_dir) or fetch(ARCHIVE, source.data_dir, source.progress)
    return text_task(folder).to(source.device)


def text_task(folder: Path) -> TextTask:
    """The text in `folder`, whatever its size and vocabulary.

    Raises:
        UserError: names the file that is missing, unreadable or too short.
    """
    words: dict[str, int] = {}
    train = _numbered(_read(folder / TRAIN), words)
    known = len(words)
    test = _numbered(_read(folder / VALID), words)
    sizes = [count_segments(len(text), LENGTH) for text in (train, test)]
    for name, text, size in zip((TRAIN, VALID), (train, test), sizes, strict=True):
        if size < 1:
            raise UserError(
                f"{folder / name} has {len(text)} tokens, ends of lines included; "
                f"a segment needs {LENGTH + 1}"
            )
    if len(words) > known:
        test = _without_new(test, words, known, folder)
    card = replace(CARD, classes=known, train_size=sizes[0], test_size=sizes[1])
    return TextTask(card=card, train=train, test=test)


def _read(path: Path) -> list[str]:
    """The words of a file, with `<eos>` for the end of each line."""
    if not path.is_file():
        raise UserError(f"{path} is missing; {path.parent} should hold {TRAIN} and {VALID}")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); expected text in UTF-8") from None
    if not lines[-1]:
        lines.pop()
    return list(chain.from_iterable([*line.split(), END] for line in lines))


def _numbered(text: list[str], words: dict[str, int]) -> Tensor:
    """Words as numbers, new ones in the order in which they come, which `words` then has too."""
    for word in text:
        words.setdefault(word, len(words))
    return torch.from_numpy(np.fromiter(map(words.__getitem__, text), np.int64, len(text)))


def _without_new(test: Tensor, words: dict[str, int], known: int, folder: Path) -> Tensor:
    """Words that the training text lacks, replaced by `<unk>`."""
    unknown = words.get(UNKNOWN, known)
    if unknown >= known:
        new = next(word for word, number in words.items() if number == known)
        raise UserError(
            f"{folder / VALID} has the word {new!r}, which {TRAIN} lacks, and no {UNKNOWN} stands "
            f"for it; let {TRAIN} have {UNKNOWN} in the place of rare words"
        )
    return torch.where(test < known, test, unknown)


ENTRY = Entry(CARD, find, load)
