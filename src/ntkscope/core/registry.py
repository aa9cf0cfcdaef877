"""A registry: a mapping from names to entries that raises on duplicate and unknown names."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TypeVar

from ntkscope.core.checked import checked
from ntkscope.core.errors import DuplicateName, UnknownName

T = TypeVar("T")
V = TypeVar("V")


class Registry(Mapping[str, T]):
    """A read-mostly mapping from names to entries of one kind.

    Names are case-insensitive; the spelling used at registration is the one listed.

    Examples:
        >>> kernels = Registry("kernel")
        >>> @kernels.register("linear")
        ... def linear(x, y):
        ...     return x @ y.T
        >>> list(kernels)
        ['linear']
        >>> kernels["Linear"] is linear
        True
        >>> kernels["liner"]
        Traceback (most recent call last):
        ...
        ntkscope.core.errors.UnknownName: unknown kernel 'liner'; did you mean 'linear'? known: linear
        >>> kernels.add("linear", None)
        Traceback (most recent call last):
        ...
        ntkscope.core.errors.DuplicateName: kernel 'linear' is registered twice: ...
    """

    def __init__(self, kind: str, check: bool = False) -> None:
        self.kind, self.check = kind, check
        self._entries: dict[str, T] = {}
        self._spelling: dict[str, str] = {}
        self._meant: dict[str, list[str]] = {}  # words that are no names, and what who says them may mean

    def register(self, *names: str) -> Callable[[V], V]:
        """Decorator: register the decorated object under each of `names`, its arguments checked if all of them are."""

        def decorate(entry: V) -> V:
            entry = checked(entry) if self.check else entry  # type: ignore[type-var]
            for name in names:
                self.add(name, entry)  # type: ignore[arg-type]
            return entry

        return decorate

    def add(self, name: str, entry: T) -> None:
        key = name.lower()
        if key in self._spelling:
            raise DuplicateName(
                f"{self.kind} {name!r} is registered twice: as {self._entries[self._spelling[key]]!r} and as {entry!r};"
                " give one of them another name"
            )
        self._spelling[key] = name
        self._entries[name] = entry

    def __getitem__(self, name: str) -> T:
        key = self._spelling.get(str(name).lower())
        if key is None:
            raise UnknownName(self._unknown(str(name)))
        return self._entries[key]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._spelling

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}: {', '.join(self)})"

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name.lower(), list(self._spelling), n=1, cutoff=0.5)
        meant = self._meant.get(name.lower().replace("_", "-"), [repr(self._spelling[key]) for key in near])
        hint = f"did you mean {' or '.join(meant)}? " if meant else ""
        return f"unknown {self.kind} {name!r}; {hint}known: {', '.join(self) or '(none)'}"


def import_parts(package: str, paths: Iterable[str]) -> None:
    """Import every file of a package that is not a helper by its name (`_…`), so that each registers what it has."""
    for part in sorted(part.name for part in pkgutil.iter_modules(paths)):
        if not part.startswith("_"):
            import_module(f"{package}.{part}")
