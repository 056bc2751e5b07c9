"""`localsgd.train.data.tasks` itself: names, load, describe."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from localsgd.errors import UserError
from localsgd.train.data import tasks


def test_names() -> None:
    assert tasks.task_names()[:4] == ("digits", "fashion-mnist", "cifar10", "cifar100")


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("cifar", "cifar10"), ("fashion_mnist", "fashion-mnist"), ("digit", "digits")],
)
def test_an_unknown_task_is_answered_with_the_nearest(given: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"unknown task '{given}'; nearest: {nearest}"):
        tasks.load(given)


def test_missing_data_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for name, folder in (("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")):
        with pytest.raises(UserError, match=f"put the folder {folder}") as error:
            tasks.load(name, tmp_path / "data")
        assert f"into {tmp_path / 'data'}" in str(error.value)
    assert not (tmp_path / "data").exists()


def test_describe_tells_what_is_there_and_makes_nothing(cifar_folder: Path) -> None:
    before = sorted(cifar_folder.parent.rglob("*"))
    rows = {row.card.name: row for row in tasks.describe(cifar_folder.parent)}
    assert tuple(rows) == tasks.task_names()
    assert rows["cifar10"].found == cifar_folder
    assert rows["cifar100"].found is None
    assert rows["digits"].found is not None
    assert sorted(cifar_folder.parent.rglob("*")) == before
    for row in rows.values():
        assert row.card.title
        assert row.card.source
        assert row.card.licence
