from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments import store
from experiments.scales import SCALES
from experiments.store import Store, told
from localsgd.errors import UserError
from tests.experiments.jobs import Square

SMOKE = SCALES["smoke"]


def test_jobs_of_equal_keys_share_a_record(tmp_path: Path) -> None:
    kept = Store(SMOKE, tmp_path)
    assert kept.of(Square(3)) is None
    kept.add(Square(3), {"square": 9})
    assert kept.of(Square(3, note="for another study")) == {"square": 9}
    assert kept.of(Square(4)) is None
    assert Store(SMOKE, tmp_path).of(Square(3)) == {"square": 9}
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == ["square-numbers.jsonl"]


def test_a_line_cut_short_is_passed_over_and_the_next_one_whole(tmp_path: Path) -> None:
    Store(SMOKE, tmp_path).add(Square(3), {"square": 9})
    Store(SMOKE, tmp_path).add(Square(4), {"square": 16})
    (path,) = tmp_path.rglob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-10])
    kept = Store(SMOKE, tmp_path)
    assert kept.of(Square(3)) is not None
    assert kept.of(Square(4)) is None
    kept.add(Square(4), {"square": 16})
    kept.add(Square(5), {"square": 25})
    again = Store(SMOKE, tmp_path)
    assert [again.of(Square(n)) for n in (3, 4, 5)] == [{"square": n**2} for n in (3, 4, 5)]


def test_what_another_process_adds_is_seen(tmp_path: Path) -> None:
    mine, theirs = Store(SMOKE, tmp_path), Store(SMOKE, tmp_path)
    theirs.add(Square(3), {"square": 9})
    assert mine.of(Square(3)) is None
    mine.refresh()
    assert mine.of(Square(3)) == {"square": 9}


def test_a_full_file_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Store(SMOKE, tmp_path)
    kept.add(Square(1), {"square": 1})
    (first,) = tmp_path.rglob("*.jsonl")
    monkeypatch.setattr(store, "FULL", first.stat().st_size + 1)
    for n in (2, 3, 4):
        kept.add(Square(n), {"square": n**2})
    sizes = {path.name: path.read_bytes().count(b"\n") for path in tmp_path.rglob("*.jsonl")}
    assert sizes == {"square-numbers.jsonl": 2, "square-numbers-2.jsonl": 2}
    assert [Store(SMOKE, tmp_path).of(Square(n)) for n in (1, 4)] == [{"square": 1}, {"square": 16}]


def test_records_of_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(SMOKE, tmp_path).add(Square(3), {"square": 9})
    monkeypatch.setattr(store, "CODE", store.CODE + 1)
    with pytest.raises(UserError, match=r"square-numbers.jsonl has records of version 1 .* move"):
        Store(SMOKE, tmp_path)


def test_what_is_no_number_is_never_written(tmp_path: Path) -> None:
    kept = Store(SMOKE, tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        kept.add(Square(3), {"square": float("nan")})
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_record_says_where_it_comes_from(tmp_path: Path) -> None:
    kept = Store(SMOKE, tmp_path)
    kept.add(Square(3), {"square": 9}, seconds=1.234)
    (path,) = tmp_path.rglob("*.jsonl")
    made = json.loads(path.read_text())["made"]
    assert made["seconds"] == 1.23
    assert made["threads"] == torch.get_num_threads()
    assert {"date", "commit", "dirty", "cpu", "instructions", "torch", "torch_build"} <= made.keys()
    origins = Store(SMOKE, tmp_path).origins
    assert made["cpu"] in origins["machine"][0]
    assert origins["torch"] == [torch.__version__]


def test_origins_of_older_records_are_told_as_far_as_they_go() -> None:
    made = {"date": "2026-01-01", "machine": "2 cores", "torch": "2"}
    assert told(made)["machine"] == "2 cores; the processor was not kept"
    changed = {"commit": "a" * 40, "dirty": True}
    assert told(changed) == {"commit": "aaaaaaaaaa with changes"}
    assert told({"commit": None, "dirty": None}) == {}


MADE = {
    "cpu": "one",
    "cores": 2,
    "instructions": ["avx2"],
    "threads": 1,
    "system": "Linux",
    "torch_build": "MKL",
    "commit": None,
    "dirty": None,
}
RUN = {"syncs": [1], "bytes": [4], "curve": [[1.0, 0.5, None]], "test_accuracy": 0.5}
DAMAGED = {
    "a record that is none": {"record": 5},
    "no counts": {"record": {}},
    "no curve": {"record": {**RUN, "curve": None}},
    "words for a number": {"record": {**RUN, "test_accuracy": "<script>"}},
    "an origin that is none": {"made": 3},
    "half of an origin": {"made": {"cpu": "one"}},
    "an origin without a system": {"made": {k: v for k, v in MADE.items() if k != "system"}},
    "instructions that are numbers": {"made": {**MADE, "instructions": [1]}},
    "a commit alone": {"made": {"commit": "abc"}},
    "a commit that is a number": {"made": {"commit": 5, "dirty": False}},
    "a date that is a list": {"made": {"date": [1]}},
    "a key that is none": {"key": 4},
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_record_is_refused_by_its_file(what: str, tmp_path: Path) -> None:
    line = {"key": {"kind": "train", "task": "digits"}, "code": store.CODE, "record": RUN}
    path = tmp_path / "smoke" / "train-digits.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(line) + "\n" + "[" * 100_000 + "\n")
    assert Store(SMOKE, tmp_path).origins == {}  # the sound line, and one that is no record
    path.write_text(json.dumps({**line, "made": MADE}) + "\n")
    assert Store(SMOKE, tmp_path).origins["torch's build"] == ["MKL"]
    path.write_text(json.dumps({**line, **DAMAGED[what]}) + "\n")
    with pytest.raises(UserError, match="has a damaged record") as caught:
        Store(SMOKE, tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
