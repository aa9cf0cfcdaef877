"""`ntkscope report`: pages of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ntkscope as ns


def report(
    folder: Annotated[Path, typer.Argument(help="A record, or a folder with records below it.")],
    out: Annotated[str | None, typer.Option(help="Where to write the page of a single record.")] = None,
) -> None:
    """Make a page of a record; of many records, a page each and an index over them."""
    single = out is not None or ns.report.records(folder) == [folder]
    typer.echo(str(ns.report.write_page(folder, out) if single else ns.report.write_index(folder)))
