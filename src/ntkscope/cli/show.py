"""`ntkscope show`: print a record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ntkscope as ns


def show(folder: Annotated[Path, typer.Argument(help="A folder that a run wrote to.")]) -> None:
    """Print the record in a folder: what ran, how far it came, what it found."""
    typer.echo(str(ns.Record.open(folder)))
