"""Plants mistakes in a copy of the package, one after the other, and says which no test notices.

    python -m tests.mutants [--minutes 60] [--only WORD ...] [--check]

Results are kept in `build/mutants.json` and made anew only where the changed file or the tests
have changed since, so a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch._dynamo
import torch.distributed  # noqa: F401  Imported once for all children, who need both.

from tests.mutants.cases import MUTANTS
from tests.mutants.mutant import Gone, Mutant, Sources, test_file

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "experiments", "benchmarks", "pyproject.toml")
RESULTS = ROOT / "build" / "mutants.json"
PATIENCE = 5
"""A test that takes so many times as long as without the mistake, and a minute, has noticed it."""


class Bench:
    """A copy of the tree in which tests run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "results")
                shutil.copytree(source, folder / name, ignore=ignored)
            elif source.exists():
                shutil.copy(source, folder / name)
        self._seconds: dict[str, float] = {}

    def check(self, end: str) -> None:
        """Refuses tests that fail without any mistake."""
        if end not in self._seconds:
            started = time.monotonic()
            if (code := self._code(end, 600.0)) != 0:
                raise SystemExit(f"{end} fails without a mistake (code {code})")
            self._seconds[end] = time.monotonic() - started

    def notices(self, end: str) -> bool:
        """Whether these tests fail, or hang."""
        code = self._code(end, 60.0 + PATIENCE * self._seconds[end])
        if code in (4, 5):
            raise SystemExit(f"pytest can't run {end} (code {code})")
        return code != 0

    def _code(self, end: str, limit: float) -> int | None:
        """What pytest returns; None where it takes longer than `limit` seconds."""
        path, words = test_file(self.root / "tests", end)
        child = os.fork()
        if child == 0:
            os._exit(self._tested(path, words))
        deadline = time.monotonic() + limit
        ended, status = 0, 0
        while not ended and time.monotonic() < deadline:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it has started
        if not ended:
            os.waitpid(child, 0)
            return None
        return os.waitstatus_to_exitcode(status)

    def _tested(self, path: Path, words: list[str]) -> int:
        """Runs one test file, in a child that finds package and tests in the copy."""
        os.setsid()
        os.chdir(self.root)
        silent = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silent, stream)
        for name in [n for n in sys.modules if n.partition(".")[0] in ("tests", "localsgd")]:
            del sys.modules[name]
        elsewhere = [entry for entry in sys.path if not Path(entry or ".").is_relative_to(ROOT)]
        libraries = [entry for entry in sys.path if "site-packages" in entry]
        sys.path[:] = [str(self.root / "src"), str(self.root), *elsewhere, *libraries]
        chosen = ["-k", " or ".join(words)] if words else []
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *chosen, str(path)]))


def key_of(mutant: Mutant, sources: Sources) -> str:
    """Another one where the changed file or its tests are."""
    path, changed = sources.mutated(mutant)
    tests = [test_file(ROOT / "tests", end)[0].read_text() for end in mutant.tests]
    text = json.dumps([str(mutant), sources.text(path), changed, *tests])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def verdict(mutant: Mutant, bench: Bench, sources: Sources) -> str:
    """`caught by` whom, or `survived`."""
    path, changed = sources.mutated(mutant)
    there = bench.root / "src" / path.relative_to(ROOT / "src")
    for end in mutant.tests:
        bench.check(end)
        there.write_text(changed)
        try:
            if bench.notices(end):
                return f"caught by {end}"
        finally:
            there.write_text(sources.text(path))
    return "survived"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="begin no mutant after these")
    parser.add_argument("--only", nargs="+", default=[], help="words, of which a mutant has one")
    parser.add_argument("--check", action="store_true", help="only whether all can be planted")
    asked = parser.parse_args()
    chosen = [m for m in MUTANTS if not asked.only or any(word in str(m) for word in asked.only)]
    sources = Sources(ROOT / "src" / "localsgd")
    keys = {mutant: _key_or_end(mutant, sources) for mutant in chosen}
    if asked.check:
        print(f"all {len(chosen)} can be planted")
        return
    known: dict[str, str] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    deadline = time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory(prefix="localsgd-mutants-") as folder:
        bench = Bench(Path(folder))
        for mutant, key in keys.items():
            if key not in known and time.monotonic() < deadline:
                known[key] = verdict(mutant, bench, sources)
                RESULTS.parent.mkdir(exist_ok=True)
                RESULTS.write_text(json.dumps(known, indent=1))
            print(f"{known.get(key, 'not tried'):40} {mutant}", flush=True)
    tried = [known[key] for key in keys.values() if key in known]
    caught = sum(result != "survived" for result in tried)
    print(f"{caught} of {len(tried)} caught, {len(chosen) - len(tried)} not tried")
    sys.exit(caught < len(chosen))


def _key_or_end(mutant: Mutant, sources: Sources) -> str:
    try:
        return key_of(mutant, sources)
    except Gone as gone:
        raise SystemExit(str(gone)) from None


if __name__ == "__main__":
    main()
