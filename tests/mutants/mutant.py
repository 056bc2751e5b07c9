"""A small wrong change to one function, found by the syntax of what it replaces.

The text to replace is compared as a syntax tree, so neither line breaks nor the place of the
function in the package matter, and it must be there exactly once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Gone(Exception):
    """A mutant or a test file that can't be found, or is found twice."""


@dataclass(frozen=True)
class Mutant:
    """A mistake, and where it should be noticed.

    Args:
        where: the function, as `Class.method` or `function`, in any file of the package.
        before: an expression or a statement of it.
        after: what stands in its place.
        tests: ends of paths of test files, of which one must fail; `test_file.py::one,two` is of
            the tests with one of these words in their names.
    """

    where: str
    before: str
    after: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}: {self.before}  ->  {self.after or 'nothing'}"


class Sources:
    """The package's source files and the functions in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts = {path: path.read_text() for path in sorted(root.rglob("*.py"))}

    def text(self, path: Path) -> str:
        return self._texts[path]

    @cached_property
    def _functions(self) -> dict[str, list[tuple[Path, Function]]]:
        found: dict[str, list[tuple[Path, Function]]] = {}
        for path, text in self._texts.items():
            for name, function in _functions(ast.parse(text), ""):
                found.setdefault(name, []).append((path, function))
        return found

    def mutated(self, mutant: Mutant) -> tuple[Path, str]:
        """The file that the mutant changes, and its text afterwards.

        Raises:
            Gone: what it replaces is not there, or there more than once.
        """
        wanted = _parsed(mutant.before)
        found = [
            (path, node)
            for path, function in self._functions.get(mutant.where, [])
            for node in ast.walk(function)
            if type(node) is type(wanted) and ast.dump(node) == ast.dump(wanted)
        ]
        if len(found) != 1:
            raise Gone(f"found {len(found)} times instead of once: {mutant}")
        [(path, node)] = found
        after = f"({mutant.after})" if isinstance(wanted, ast.expr) else mutant.after or "pass"
        changed = _replaced(self._texts[path], node, after)
        ast.parse(changed)
        return path, changed


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if isinstance(child, Function):
                yield name, child
            yield from _functions(child, f"{name}.")


def _parsed(text: str) -> ast.expr | ast.stmt:
    [statement] = ast.parse(text).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _replaced(text: str, node: ast.AST, after: str) -> str:
    """`text` with `after` where `node` is; columns count bytes, as `ast` does."""
    lines = text.encode().splitlines(keepends=True)
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    head = b"".join(lines[:first]) + lines[first][: node.col_offset]  # type: ignore[attr-defined]
    tail = lines[last][node.end_col_offset :] + b"".join(lines[last + 1 :])  # type: ignore[attr-defined]
    return (head + after.encode() + tail).decode()


def test_file(root: Path, tests: str) -> tuple[Path, list[str]]:
    """The one test file below `root` whose path ends so, and the words that choose tests of it."""
    end, _, words = tests.partition("::")
    found = [path for path in root.rglob(Path(end).name) if f"/{path}".endswith(f"/{end}")]
    if len(found) != 1:
        raise Gone(f"there are {len(found)} test files {end} instead of one")
    return found[0], [word for word in words.split(",") if word]
