"""Reference pages: every public name of every room, what it is, and the pages that use it."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from tools.site.doctests import fenced

import ntkscope as ns

ROOMS = (
    *sorted(set(dir(ns)) & {name for name in ns.__all__ if isinstance(getattr(ns, name), ModuleType)}),
    "core",
    "xray",
)


def room(name: str) -> ModuleType:
    return import_module(f"ntkscope.{name}")


def public(name: str) -> list[str]:
    """The public names of a room."""
    return sorted(getattr(room(name), "__all__", ("EXPERIMENTS", "run")), key=str.lower)


def summary(value: Any) -> str:
    """The first sentence of what a thing says of itself, in one line."""
    if not (isinstance(value, ModuleType) or callable(value)):
        return f"Registry: {', '.join(f'`{key}`' for key in value)}." if isinstance(value, Mapping) else ""
    if value is Any:
        return ""
    first = (inspect.getdoc(value) or "").split("\n\n")[0]
    sentence = re.split(r"(?<=[.:])\s", " ".join(first.split()), maxsplit=1)[0]
    return sentence.replace("|", "∣").rstrip(":")  # a plain one would end a cell


def uses(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The pages that name `ns.room.name` or `ns.name`, by that name."""
    pages: dict[str, list[str]] = {}
    for page, text in texts.items():
        for name in set(re.findall(r"\b(?:ns|ntkscope)\.(\w+(?:\.\w+)?)", text)):
            pages.setdefault(name, []).append(page)
    return pages


def titled(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else ""


def page(name: str, texts: Mapping[str, str]) -> str:
    """The reference page of a room."""
    rows = [f"| [`{each}`](#ntkscope.{name}.{each}) | {summary(getattr(room(name), each))} |" for each in public(name)]
    parts = [
        f"# ntkscope.{name}",
        inspect.getdoc(room(name)) or "",
        "\n".join(["| name | what it is |", "| --- | --- |", *rows]),
    ]
    used = uses(texts)
    for each in public(name):
        parts.append(entry(name, each))
        pages = sorted({*used.get(f"{name}.{each}", ()), *(used.get(each, ()) if each in ns.__all__ else ())})
        if pages:
            links = ", ".join(f"[{titled(texts[page]) or page}]({relative(page)})" for page in pages)
            parts.append(f"Used in: {links}.\n{{: .used }}")
    return "\n\n".join(parts) + "\n"


def entry(name: str, each: str) -> str:
    """What stands on the page of a room about one of its names."""
    value, path = getattr(room(name), each), f"ntkscope.{name}.{each}"
    if isinstance(value, ModuleType):
        return f"::: {path}"
    if (
        (not inspect.isclass(value) and not inspect.isfunction(value))
        or "<locals>" in value.__qualname__
        or value is Any
    ):
        return f"## <code>{each}</code> {{: #{path} }}\n\n{described(value)}"
    if path not in sys.modules:
        return f"::: {path}"
    return f'<a id="{path}"></a>\n\n::: {value.__module__}.{value.__qualname__}'  # a file of the room has the same name


def described(value: Any) -> str:
    """What a thing that no source file defines by its name says of itself."""
    if not inspect.isfunction(value):
        return summary(value) or "A type alias."
    return f"```python\n{value.__name__}{inspect.signature(value)}\n```\n\n{fenced(inspect.getdoc(value) or '')}"


def relative(page: str) -> str:
    return os.path.relpath(page, "reference")


def index() -> str:
    """The first page of the reference: what `ns.` has."""
    rows = [f"| [`{each}`]({each}.md) | {summary(room(each))} |" for each in ROOMS]
    names = [each for each in ns.__all__ if not isinstance(getattr(ns, each), ModuleType)]
    homes = {each: next(home for home in ROOMS if each in public(home)) for each in names}
    short = [
        f"| [`ns.{each}`]({home}.md#ntkscope.{home}.{each}) | {summary(getattr(ns, each))} |"
        for each, home in homes.items()
    ]
    head = "# Reference\n\nEvery public name. `import ntkscope as ns` loads a room when it is first used."
    tables = [
        "\n".join([f"| {title} | what it is |", "| --- | --- |", *lines])
        for title, lines in (("name", short), ("room", rows))
    ]
    return "\n\n".join([head, "## Names at hand", tables[0], "## Rooms", tables[1]]) + "\n"


def pages(texts: Mapping[str, str]) -> dict[str, str]:
    """All reference pages by their place; `texts` are the other pages."""
    made = {str(PurePosixPath("reference", f"{name}.md")): page(name, texts) for name in ROOMS}
    return {"reference/index.md": index(), **made}
