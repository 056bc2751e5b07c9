"""Lays out the pages of the documentation site in build/pages, and checks what is built of them.

python tools/site.py            # before the site is built
python tools/site.py check      # afterwards

Every page keeps its place, so that links between pages are the same on the site and in a checkout.
One page of reference for each public module is written from its `__all__`.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import FunctionType
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
SHOWN = ("docs", "deploy", "examples", "benchmarks", "experiments/results", "LICENSE", "*.cff")
SUFFIXES = {".md", ".png", ".svg", ".py", ".sh", ".sbatch", ".yaml", ".toml", ".jsonl", ".cff", ""}
REFERENCE = {
    "localsgd": "The library: what `import localsgd` gives",
    "localsgd.schedule": "Schedules: when to average",
    "localsgd.averaging": "Levels and topologies: who averages with whom",
    "localsgd.averaging.outer": "Outer optimizers",
    "localsgd.reduce": "Reducers and compressors",
    "localsgd.wire": "Collectives: how tensors travel",
    "localsgd.testing": "Conformance checks for parts of your own",
    "localsgd.inner": "Inner optimizers and gradient tools",
    "localsgd.landscape": "How flat the loss is",
    "localsgd.cost": "What communication costs",
    "localsgd.results": "Results of runs, for programs of your own",
    "localsgd.logs": "Loggers, and observers of your own",
    "localsgd.train": "Runs from Python",
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
    here = importlib.import_module(module)
    own = [name for name, value in vars(here).items() if defined_in(module, value)]
    names = [name for name in getattr(here, "__all__", own) if not name.startswith("_")]
    members = "\n".join(f"        - {name}" for name in names)
    return f"# {title}\n\n::: {module}\n    options:\n      members:\n{members}\n"


def defined_in(module: str, value: object) -> bool:
    """Whether a module's value is a class or function of its own."""
    return isinstance(value, type | FunctionType) and value.__module__ == module


class Links(HTMLParser):
    """What a page leads to and what it loads.

    Attributes:
        leads: addresses of links.
        loads: addresses of style sheets, scripts and pictures.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.leads.append(given["href"] or "")
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loads.append(given.get("href") or "")
        elif tag in ("script", "img") and given.get("src"):
            self.loads.append(given["src"] or "")


def faults() -> Iterator[str]:
    """What is wrong with the site in build/site, in words."""
    for page in sorted(SITE.rglob("*.html")):
        if page.name == "404.html":  # Its links start at the server's root.
            continue
        links = Links(page.read_text())
        name = page.relative_to(SITE)
        yield from (f"{name} loads {url}" for url in links.loads if urlsplit(url).netloc)
        for url in (*links.leads, *links.loads):
            parts = urlsplit(url)
            if not (parts.scheme or parts.netloc or target(page, parts.path).exists()):
                yield f"{name} leads to {url}, which is not there"
    for sheet in SITE.rglob("*.css"):
        for url in re.findall(r"url\(['\"]?(https?:[^)]*)", sheet.read_text()):
            yield f"{sheet.relative_to(SITE)} loads {url}"
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    shown = set(listed(settings["nav"]))
    there = {str(path.relative_to(PAGES)) for path in PAGES.rglob("*.md")}
    pages = {name for name in there if not name.startswith("experiments/")}
    yield from (
        f"{name} is not in the navigation of zensical.toml" for name in sorted(pages - shown)
    )
    yield from (f"{name} of zensical.toml is not there" for name in sorted(shown - there))


def target(page: Path, path: str) -> Path:
    """The file that a relative address on a page means."""
    found = page.parent / unquote(path) if path else page
    return found / "index.html" if path.endswith("/") else found


def listed(nav: object) -> Iterator[str]:
    """All pages of a navigation, however deep."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list | dict):
        for item in nav if isinstance(nav, list) else nav.values():
            yield from listed(item)


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        found = list(faults())
        print("\n".join(found) or "all links lead somewhere; nothing is loaded from elsewhere")
        sys.exit(bool(found))
    lay_out()
