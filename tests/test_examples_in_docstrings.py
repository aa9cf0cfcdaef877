"""Every public name has an example in its docstring; those of the package are run as doctests (`src/conftest.py`)."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from doctest import DocTest, DocTestFinder
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import ntkscope

ROOMS = [import_module(f"ntkscope.{room.name}") for room in pkgutil.iter_modules(ntkscope.__path__) if room.ispkg]
ROOMS = [room for room in [ntkscope, *ROOMS] if hasattr(room, "__all__")]
HEADER = re.compile(r"^ *Examples:\n *>>> ", re.MULTILINE)  # what the reference pages show as examples


@cache
def doctests(module: str) -> list[DocTest]:
    """The examples that are run when those of the package are."""
    return [test for test in DocTestFinder().find(sys.modules[module]) if test.examples]


def public(room: ModuleType) -> Iterator[tuple[str, Any]]:
    """The functions and classes that a room exports, and the functions of the modules it exports."""
    for name in room.__all__:
        entry = getattr(room, name)
        if inspect.ismodule(entry):
            exported = getattr(entry, "__all__", None)
            for key, function in inspect.getmembers(entry, inspect.isfunction):
                if key in exported if exported else key[0] != "_" and function.__module__ == entry.__name__:
                    yield key, function
        elif (inspect.isclass(entry) or inspect.isroutine(entry)) and entry.__module__.startswith("ntkscope"):
            yield name, entry


def missing(name: str, entry: Any) -> str:
    """What is missing of a name's examples; nothing where all is well."""
    names = [f"{entry.__module__}.{each}" for each in (name, entry.__qualname__)]  # an alias has a name of its own
    found = {t.name: t for t in doctests(entry.__module__) if any(f"{t.name}.".startswith(f"{own}.") for own in names)}
    if not found.keys() & set(names):
        return f"{names[0]} has no example"
    return ", ".join(f"{key}: no line 'Examples:'" for key, test in found.items() if not HEADER.search(test.docstring))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_every_public_name_has_examples(room: ModuleType) -> None:
    entries = dict(public(room))
    assert len(entries) > 1
    assert [found for name, entry in entries.items() if (found := missing(name, entry))] == []


def with_header() -> None:
    """Examples under their header.

    Examples:
        >>> 1 + 1
        2
    """


def without_header() -> None:
    """An example without one.

    >>> 1 + 1
    2
    """


def without_example() -> None:
    """None at all."""


def test_what_is_missing_is_named() -> None:
    found = [missing(f.__name__, f) for f in (with_header, without_header, without_example)]
    assert found == [
        "",
        f"{__name__}.without_header: no line 'Examples:'",
        f"{__name__}.without_example has no example",
    ]
