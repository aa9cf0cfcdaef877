"""`ntkscope run`: reproduce a published result."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any

import typer

import ntkscope as ns
from ntkscope.core.printable import printable


def run(
    name: Annotated[str, typer.Argument(help="An experiment; `ntkscope list experiments` names them.")],
    out: Annotated[Path, typer.Option(help="Folder for the record; a run that stopped there is gone on with.")],
    scale: Annotated[
        str, typer.Option(help="smoke: the mechanics, in seconds; paper: the published setting.")
    ] = "smoke",
    device: Annotated[str | None, typer.Option(help="cuda where there is one, unless given.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where the data lie; $NTKSCOPE_DATA unless given.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value: another setting; can be repeated.")
    ] = None,
) -> None:
    """Run an experiment and print the verdicts on its claims."""
    overrides = dict(setting(text) for text in set_ or [])
    root = None if data_root is None else str(data_root)
    record = ns.run(name, scale, out=out, device=device, root=root, seed=seed, progress=True, **overrides)
    typer.echo("\n".join(verdicts(record)))


def setting(text: str) -> tuple[str, Any]:
    """`key=value` as a name and a Python value; what is no literal is a text.

    >>> setting("seeds=3"), setting("model=resnet18"), setting("kernels=('ck','em')")
    (('seeds', 3), ('model', 'resnet18'), ('kernels', ('ck', 'em')))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise typer.BadParameter(f"--set {text!r} came; expected key=value, such as --set seeds=3")
    try:
        return key.strip(), ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key.strip(), value


def verdicts(record: ns.Record) -> list[str]:
    """One line a claim, and where the record lies."""
    width = max((len(claim.id) for claim in record.claims), default=0)
    lines = [f"{claim.id:{width}}  {claim.verdict:16}  {_short(claim.measured)}" for claim in record.claims]
    return [*map(printable, lines), f"record: {record.folder}"]


def _short(value: Any, limit: int = 100) -> str:
    text = str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
