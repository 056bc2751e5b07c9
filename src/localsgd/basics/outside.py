"""Parts from outside the package, by name: of installed packages, and of modules that a user names.

An installed package declares its parts as entry points:

    [project.entry-points."localsgd.compressors"]
    two-bit = "my_package.two_bit:TwoBit"

Its module is imported once such a name is used or listed, and not before. Names of this package
can't be taken by others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from localsgd.errors import UserError, unknown_name


@dataclass(frozen=True)
class Origin:
    """Where a part comes from: the name of a package or module, and its version."""

    source: str
    version: str

    def __str__(self) -> str:
        return f"{self.source} {self.version}".strip()


@dataclass
class Outside:
    """The parts of one kind.

    Args:
        kind: a noun for messages, such as "compressor".
        group: of entry points; without `localsgd.` it is the key in a module's `LOCALSGD`.
        own: the names of this package's parts of that kind.
        check: raises `UserError` for what is no such part.
    """

    kind: str
    group: str
    own: Callable[[], Collection[str]]
    check: Callable[[str, Any], None] = lambda name, part: None
    _added: dict[str, tuple[Any, Origin]] = field(default_factory=dict)
    _loaded: dict[str, Any] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """All names, without importing anything."""
        return tuple(dict.fromkeys([*self._added, *self._installed()]))

    def __contains__(self, name: str) -> bool:
        return name in self._added or name in self._installed()

    def __getitem__(self, name: str) -> Any:
        """The part of that name.

        Raises:
            UserError: there is none; its package can't be imported; two packages have it.
        """
        if name in self._added:
            return self._added[name][0]
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def unknown(self, name: str, called: str = "", known: Collection[str] = ()) -> UserError:
        """The error for a name that neither this package nor another one has.

        Args:
            name: as it was given.
            called: the kind, if a user knows it by another noun.
            known: the names to list, if not all of this kind.
        """
        known = known or tuple(dict.fromkeys([*self.own(), *self.names()]))
        return UserError(
            f"{unknown_name(called or self.kind, name, known)}. One of another package is there if "
            "that package is installed and declares it, or by --use MODULE"
        )

    def add(self, name: str, part: Any, origin: Origin) -> None:
        """Gives a part its name. The same part may be added again."""
        if name in self.own():
            raise UserError(
                f"{origin} calls a {self.kind} {name!r}, which is a name of localsgd; give it "
                "another one"
            )
        self.check(f"the {self.kind} {name} of {origin}", part)
        there = self._added.get(name)
        if there is not None and there[0] is not part and there[1].source != origin.source:
            raise UserError(
                f"{there[1]} and {origin} both have a {self.kind} {name!r}; use one of them"
            )
        self._added[name] = part, origin

    def origin(self, name: str) -> Origin | None:
        """Where the part comes from; None for one of this package, or of nobody."""
        if name in self._added:
            return self._added[name][1]
        found = self._installed().get(name)
        return _origin(found[0]) if found else None

    def added(self, name: str) -> bool:
        """Whether the part is there because a module was named, or a program gave it a name."""
        return name in self._added

    def _installed(self) -> dict[str, list[EntryPoint]]:
        own = self.own()
        found: dict[str, list[EntryPoint]] = {}
        for point in _all_installed().select(group=self.group):
            if point.name not in own:
                found.setdefault(point.name, []).append(point)
        return found

    def _load(self, name: str) -> Any:
        points = self._installed().get(name)
        if not points:
            raise self.unknown(name)
        origins = sorted({str(_origin(point)) for point in points})
        if len({point.value for point in points}) > 1:
            raise UserError(
                f"{' and '.join(origins)} both have a {self.kind} {name!r}; uninstall one of them"
            )
        try:
            part = points[0].load()
        except Exception as error:  # whatever a module of someone else raises
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"the {self.kind} {name} of {origins[0]} can't be imported ({reason}); mend or "
                "uninstall that package"
            ) from error
        self.check(f"the {self.kind} {name} of {origins[0]}", part)
        return part


@cache
def _all_installed() -> Any:
    """Looked up once: it opens a file of every installed package."""
    return entry_points()


def _origin(point: EntryPoint) -> Origin:
    if point.dist is None:
        return Origin(point.value.partition(":")[0], "")
    return Origin(point.dist.name, point.dist.version)
