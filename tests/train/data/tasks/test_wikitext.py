from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from localsgd.errors import UserError
from localsgd.train.data import tasks
from localsgd.train.data.tasks import wikitext
from localsgd.train.data.tasks.download import Remote
from localsgd.train.data.tasks.entry import Source

LINE = "\n = Title = \n the <unk> of\u2009it \u2013 café \n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A text of 12 words to the line, 40 times, and 5 times for validation."""
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    (folder / wikitext.TRAIN).write_text(LINE * 40, encoding="utf-8")
    (folder / wikitext.VALID).write_text(LINE * 5, encoding="utf-8")
    return folder


def test_words_are_numbered_as_they_come_and_lines_end(folder: Path) -> None:
    task = wikitext.text_task(folder)
    # <eos>; = Title = <eos>; the <unk> of it - cafe <eos>
    line = [0, 1, 2, 1, 0, 3, 4, 5, 6, 7, 8, 0]
    assert task.train.tolist() == line * 40
    assert task.test.tolist() == line * 5
    assert (task.classes, task.train_size, task.test_size) == (9, 15, 1)


def test_the_card_has_the_published_numbers() -> None:
    """2,088,628 and 217,646 tokens, 33,278 words; counted in segments of 30."""
    card = wikitext.CARD
    assert (card.train_size, card.test_size) == (2_088_627 // 30, 217_645 // 30)
    assert (card.classes, card.metric.name, card.sequential) == (33_278, "perplexity", True)
    assert (card.defaults.clip, card.defaults.momentum) == (0.4, 0.0)


def test_it_is_found_in_its_folder_or_in_the_place_itself(folder: Path, tmp_path: Path) -> None:
    assert wikitext.find(folder.parent) == folder
    assert wikitext.find(folder) == folder
    assert wikitext.find(tmp_path) is None
    assert tasks.load("wikitext-2", folder.parent).train_size == 15


def test_words_that_the_training_text_lacks_are_unknown(folder: Path) -> None:
    path = folder / wikitext.VALID
    path.write_text(LINE.replace("Title", "Titel") * 5, encoding="utf-8")
    task = wikitext.text_task(folder)
    assert task.test.tolist()[:5] == [0, 1, 4, 1, 0]
    assert task.classes == 9
    train = folder / wikitext.TRAIN
    train.write_text(train.read_text(encoding="utf-8").replace("<unk>", "rare"), encoding="utf-8")
    with pytest.raises(UserError, match=r"valid.tokens has the word 'Titel', .* no <unk> stands"):
        wikitext.text_task(folder)


@pytest.mark.parametrize("name", [wikitext.TRAIN, wikitext.VALID])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is missing; .* should hold wiki.train.tokens and wiki.valid.tokens"),
        (b"", "has 0 tokens, ends of lines included; a segment needs 31"),
        (b"the = of\n" * 7, "has 28 tokens"),
        (b"\xff\xfe" * 40, r"cannot be read .*; expected text in UTF-8"),
    ],
)
def test_what_is_no_text_is_named(
    folder: Path, name: str, content: bytes | None, said: str
) -> None:
    path = folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=said) as error:
        tasks.load("wikitext-2", folder)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_text_is_not_augmented(folder: Path) -> None:
    with pytest.raises(UserError, match="never augmented"):
        tasks.load("wikitext-2", folder, augment=True)


def test_missing_data_is_downloaded_and_unpacked(
    web, answer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name in (wikitext.TRAIN, wikitext.VALID, "wiki.test.tokens"):
            path = folder / name
            zipped.writestr(f"wikitext-2/{name}", path.read_bytes() if path.exists() else b"")
        zipped.writestr("../escaped", b"")
    body = buffer.getvalue()
    web.answers["/w.zip"] = answer(body)
    remote = Remote(f"{web.address}/w.zip", hashlib.sha256(body).hexdigest(), len(body))
    monkeypatch.setattr(wikitext, "ARCHIVE", remote)
    place = tmp_path / "elsewhere"
    task = wikitext.load(Source(place))
    assert task.train.tolist() == wikitext.text_task(folder).train.tolist()
    assert [p.name for p in place.iterdir()] == ["wikitext-2"]
    found = sorted(p.name for p in (place / "wikitext-2").iterdir())
    assert found == [wikitext.TRAIN, wikitext.VALID]
    assert not list(tmp_path.rglob("escaped"))
    wikitext.load(Source(place))
    assert web.asked == ["/w.zip"]
