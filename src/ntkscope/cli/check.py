"""`ntkscope check`: whether a record's claims hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ntkscope as ns
from ntkscope.cli.run import verdicts
from ntkscope.core.files.printable import printable


def check(folder: Annotated[Path, typer.Argument(help="A folder that a run wrote to.")]) -> None:
    """Print what was published beside what was measured; exit with 1 when a check failed or the run is not done.

    A stand-in, measured in another setting than the published one, fails if its check does not hold there; at the scale
    `smoke`, which tries the mechanics alone, it is too small to judge and does not count.
    """
    record = ns.Record.open(folder)
    typer.echo("\n".join(verdicts(record)))
    missed, failed = (
        [claim.id for claim in record.claims if claim.outcome == outcome]
        for outcome in ("not reproduced", "not reproduced on a stand-in")
    )
    if missed:
        typer.echo(printable(f"not reproduced: {', '.join(missed)}"), err=True)
    if failed:
        typer.echo(printable(f"not reproduced on a stand-in: {', '.join(failed)}"), err=True)
    if record.status != "done":
        why = f", {record.error}" if record.error else ""
        typer.echo(printable(f"the run is not done: {record.status}{why}"), err=True)
    counted = failed if record.config.get("scale") != "smoke" else []
    if missed or counted or record.status != "done":
        raise typer.Exit(1)
