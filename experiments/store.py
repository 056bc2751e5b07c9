"""Finished jobs, kept as JSON lines by what they depend on, and shared by all studies.

    results/reproduce/SCALE/KIND-TASK.jsonl, and -2, -3, ... once that is full:
        {"key": ..., "code": 1, "by": "0.1.0+COMMIT", "made": {"date": ...}, "record": ...}

`made` is what the numbers may depend on beside the job, and what they cost: date, seconds, commit
and whether the code differed from it, processor and its instruction sets, threads, torch's build.

Several processes may append to one file. A last line that was cut short is passed over and its job
done again.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from experiments.study import Job, Record, Scale
from localsgd.errors import UserError, short
from localsgd.train.engine.machine import code, machine
from localsgd.version import __version__

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "reproduce"
FULL = 900_000
"""Bytes above which a file gets no more records, so that each stays under a megabyte."""
CODE = 1
"""The version of the numbers: raised if the same job would give different ones than before."""


class Store:
    """The records of one scale.

    Args:
        scale: of them.
        folder: holds a folder for each scale.

    Raises:
        UserError: a file is of another version of the code, or no such file.
    """

    def __init__(self, scale: Scale, folder: Path = RESULTS) -> None:
        self.scale = scale
        self.folder = folder / scale.name
        self._records: dict[str, Record] = {}
        self._read: dict[Path, int] = {}
        self._made: dict[str, set[str]] = {}
        self.refresh()

    @property
    def origins(self) -> dict[str, list[str]]:
        """Dates, machines and code of the records, each in order, as far as they are known."""
        return {name: sorted(values) for name, values in self._made.items()}

    def of(self, job: Job) -> Record | None:
        """The record of a job, or of another with the same key; `None` if it is not done."""
        return self._records.get(canonical(job.key))

    def refresh(self) -> None:
        """Reads records that others have added since."""
        for path in sorted(self.folder.glob("*.jsonl")):
            start = self._read.get(path, 0)
            if path.stat().st_size > start:
                with path.open("rb") as file:
                    file.seek(start)
                    content = file.read()
                whole = content.rfind(b"\n") + 1
                self._read[path] = start + whole
                for line in _lines(content[:whole]):
                    self._take(line, path)

    def add(self, job: Job, record: Mapping[str, Any], seconds: float | None = None) -> None:
        """Keeps the record of a job, whole; to be called by the process that did the job.

        Args:
            job: what was done.
            record: what came of it.
            seconds: how long it took; not kept if not given.
        """
        path = self._place(shelf(job))
        line = {
            "key": job.key,
            "code": CODE,
            "by": source(),
            "made": origin(seconds),
            "record": record,
        }
        content = json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"
        self.folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_bytes()[-1:] not in (b"", b"\n"):
            content = "\n" + content  # after a line that was cut short
        with path.open("ab") as file:
            file.write(content.encode())
        self._records[canonical(job.key)] = json.loads(content)["record"]

    def _place(self, name: str) -> Path:
        """The first of the shelf's files that has room."""
        paths = (
            self.folder / f"{name}{f'-{number}' if number > 1 else ''}.jsonl"
            for number in itertools.count(1)
        )
        return next(path for path in paths if not path.exists() or path.stat().st_size < FULL)

    def _take(self, line: Mapping[str, Any], path: Path) -> None:
        if line["code"] != CODE:
            found = short(line["code"])
            raise UserError(
                f"{path} has records of version {found} of the experiments, which are now at "
                f"{CODE} and give other numbers; move the file away and run again, or name another "
                "place with --out"
            )
        if not _is_sound(line):
            raise UserError(
                f"{path} has a damaged record, of {canonical(line['key'])[:80]}; take its line out "
                "and run that work again"
            )
        self._records.setdefault(canonical(line["key"]), line["record"])
        for name, value in told(line.get("made", {})).items():
            self._made.setdefault(name, set()).add(value)


def source() -> str:
    """The version of the package, with the commit that is checked out if there is one."""
    commit = code(HERE)["commit"]
    return __version__ if commit is None else f"{__version__}+{commit[:10]}"


def shelf(job: Job) -> str:
    """The name of the file that keeps a job's record."""
    names = (str(job.key[name]) for name in ("kind", "task") if name in job.key)
    return re.sub(r"[^a-z0-9-]", "-", "-".join(names) or "work")


def canonical(key: Mapping[str, Any]) -> str:
    """A key as text; equal keys give equal texts."""
    return json.dumps(key, sort_keys=True, separators=(",", ":"))


def origin(seconds: float | None = None) -> dict[str, Any]:
    """The origin of a record as JSON: date, code and machine of this process."""
    took = {} if seconds is None else {"seconds": round(seconds, 2)}
    return {"date": datetime.now(UTC).date().isoformat(), **took, **code(HERE), **machine()}


def told(made: Mapping[str, Any]) -> dict[str, str]:
    """An origin in words; unknown parts are left out."""
    said = {name: str(made[name]) for name in ("date", "torch") if name in made}
    if "cpu" in made:
        sets = ", ".join(made["instructions"]) or "no known instruction sets"
        gpu = [made["gpu"]] if "gpu" in made else []
        parts = [*gpu, made["cpu"], f"{made['cores']} cores", f"threads: {made['threads']}", sets]
        said["machine"] = ", ".join([*parts, made["system"]])
        said["torch's build"] = made["torch_build"]
    elif "machine" in made:
        said["machine"] = f"{made['machine']}; the processor was not kept"
    if made.get("commit"):
        said["commit"] = made["commit"][:10] + (" with changes" if made["dirty"] else "")
    return said


def _lines(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and found.keys() >= {"key", "code", "record"}:
            yield found


NUMBERS = (
    "test_accuracy",
    "test_loss",
    "test_perplexity",
    "train_accuracy",
    "train_loss",
    "seconds",
    "steps",
    "scalars",
)
"""Fields of a record that are numbers, or `None`, if they are there."""
TOGETHER = {
    "cpu": {"instructions", "cores", "threads", "system", "torch_build"},
    "commit": {"dirty"},
}
"""Fields that an origin has if it has the first."""


class Made(msgspec.Struct):
    """Fields of an origin, if they are there."""

    date: str = ""
    torch: str = ""
    system: str = ""
    cpu: str = ""
    cores: int | None = None
    instructions: list[str] = []
    threads: int = 0
    torch_build: str = ""
    gpu: str = ""
    machine: str = ""
    commit: str | None = None
    dirty: bool | None = None


def _is_sound(line: Mapping[str, Any]) -> bool:
    """Whether a line can be what `Store.add` wrote: nothing else vouches for a file."""
    key, record, made = line["key"], line["record"], line.get("made", {})
    if not all(isinstance(part, dict) for part in (key, record, made)):
        return False
    try:
        msgspec.convert(made, Made)
    except (msgspec.ValidationError, OverflowError):
        return False
    if any(name in made and not made.keys() >= others for name, others in TOGETHER.items()):
        return False
    if not all(_is_number(record.get(name)) for name in NUMBERS):
        return False
    if key.get("kind") != "train":
        return True
    counts = all(_is_list(record.get(name), 1) for name in ("syncs", "bytes"))
    rows = record.get("curve")
    return counts and _is_list(rows, 0, _is_row)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_row(value: object) -> bool:
    return _is_list(value, 3)


def _is_list(value: object, least: int, of: Callable[[object], bool] = _is_number) -> bool:
    return isinstance(value, list) and len(value) >= least and all(map(of, value))
