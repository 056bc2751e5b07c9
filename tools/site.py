"""Lays out the pages of the documentation site in build/pages, as they lie in the repository.

Every page keeps its place, so that links between pages are the same on the site and in a checkout.
One page of reference for each public module is written from its `__all__`.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
SHOWN = ("docs", "deploy", "examples", "benchmarks", "experiments/results", "LICENSE")
SUFFIXES = {".md", ".png", ".svg", ".py", ".sh", ".yaml", ".toml", ".jsonl", ""}
REFERENCE = {
    "localsgd": "The library: what `import localsgd` gives",
    "localsgd.averaging.outer": "Outer optimizers",
    "localsgd.reduce": "Reducers and compressors",
    "localsgd.wire": "Collectives: how tensors travel",
    "localsgd.inner": "Inner optimizers and gradient tools",
    "localsgd.landscape": "How flat the loss is",
    "localsgd.cost": "What communication costs",
}
"""Public modules, each with the title of its page."""


def tracked() -> list[Path]:
    """The files that the site may show: those of the repository, committed or about to be."""
    kinds = ["--cached", "--others", "--exclude-standard"]
    command = ["git", "ls-files", *kinds, "--", "*.md", *SHOWN]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(line) for line in found.splitlines()]


def lay_out() -> None:
    """Fills build/pages anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in tracked():
        inside = path.parts[0] in ("tests", "src")
        if not inside and path.suffix in SUFFIXES and (ROOT / path).is_file():
            target = PAGES / ("index.md" if path == Path("README.md") else path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target)
    for module, title in REFERENCE.items():
        page = PAGES / "reference" / f"{module}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(reference(module, title))


def reference(module: str, title: str) -> str:
    """A page with all public names of a module, in their order."""
    names = getattr(importlib.import_module(module), "__all__", [])
    members = "\n".join(f"        - {name}" for name in names if not name.startswith("_"))
    return f"# {title}\n\n::: {module}\n    options:\n      members:\n{members}\n"


if __name__ == "__main__":
    lay_out()
