"""`ntkscope list`: what there is to choose from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

import ntkscope as ns
import ntkscope.xray.sections
from ntkscope.xray.registry import SECTIONS, Section
from ntkscope.xray.task import TASKS

PARTS: dict[str, Callable[[], Mapping[str, Any]]] = {
    "datasets": lambda: ns.data.DATASETS,
    "models": lambda: ns.models.MODELS,
    "kernels": lambda: ns.KERNELS,
    "surrogates": lambda: {**ns.surrogates.SURROGATES, **ns.surrogates.INPUT_SURROGATES},
    "measures": lambda: ns.measures.MEASURES,
    "sections": lambda: SECTIONS,
    "experiments": lambda: ns.EXPERIMENTS,
}


def list_parts(
    part: Annotated[str | None, typer.Argument(help=f"One of {', '.join(PARTS)}; all when left out.")] = None,
) -> None:
    """List the data sets, models, kernels, surrogates, measures, sections of an X-ray and experiments there are."""
    known = ns.Registry[Callable[[], Mapping[str, Any]]]("part")
    for name, registry in PARTS.items():
        known.add(name, registry)
    for name in [*PARTS] if part is None else [part]:
        typer.echo("\n".join(lines(name, known[name]())))


def lines(title: str, entries: Mapping[str, Any]) -> list[str]:
    """A title and one line per entry: its name and the first sentence of its docstring.

    >>> lines("sums", {"total": sum})
    ['sums', "  total  Return the sum of a 'start' value (default: 0) plus an iterable of numbers"]
    """
    width = max(map(len, entries), default=0)
    return [title, *(f"  {name:{width}}  {first_line(entry)}".rstrip() for name, entry in entries.items())]


def first_line(entry: Any) -> str:
    """The first line of what documents an entry: its docstring, that of its function, or that of its class."""
    if isinstance(entry, Section):
        tasks = "" if len(entry.tasks) == len(TASKS) else f" ({', '.join(task.name for task in entry.tasks)})"
        return f"{entry.title}{tasks}: {entry.meaning.partition('. ')[0].rstrip('.')}."
    text = inspect.getdoc(getattr(entry, "func", entry)) or ""
    return text.strip().splitlines()[0] if text.strip() else ""
