"""`ntkscope run`: reproduce a published result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import ntkscope as ns
from ntkscope.cli._factories import options
from ntkscope.cli._options import DataRoot, Seed
from ntkscope.core.files.printable import printable


def run(
    name: Annotated[str, typer.Argument(help="An experiment; `ntkscope list experiments` names them.")],
    out: Annotated[Path, typer.Option(help="Folder for the record; a run that stopped there is resumed.")],
    scale: Annotated[
        str, typer.Option(help="smoke: the mechanics, in seconds; paper: the published setting.")
    ] = "smoke",
    device: Annotated[str | None, typer.Option(help="cuda where there is one, unless given.")] = None,
    data_root: DataRoot = None,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value: another setting; can be repeated.")
    ] = None,
    gather: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a record whose legs are taken over; can be repeated."),
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(
            help="A leg of the record in --out to compute once more, elsewhere, and compare; can be repeated."
        ),
    ] = None,
    within: Annotated[float, typer.Option(help="Of --again: the relative difference that counts as the same.")] = 0.0,
) -> None:
    """Run an experiment and print the verdicts on its claims.

    With --again, compute legs of the record once more and exit with 1 where they come out otherwise.
    """
    root = None if data_root is None else str(data_root)
    if again:
        compared, lines = ns.EXPERIMENTS[name].again(out, again, within=within, device=device, root=root, progress=True)
        typer.echo(
            "\n".join([*map(printable, lines), f"{len(compared)} results computed again, {len(lines)} differences"])
        )
        raise typer.Exit(1 if lines else 0)
    record = ns.run(
        name,
        scale,
        out=out,
        device=device,
        root=root,
        seed=seed,
        progress=True,
        gather_from=gather or (),
        **options(set_),
    )
    typer.echo("\n".join(verdicts(record)))


def verdicts(record: ns.Record) -> list[str]:
    """Published beside measured and the verdict of each claim, and where the record lies."""
    lines = []
    for claim in record.claims:
        lines += [f"{claim.id}: {'stand-in, too small to judge' if claim.too_small else claim.outcome}"]
        lines += [f"    published  {_short(claim.published)}"]
        lines += [f"    measured   {_short(claim.measured)}"] if claim.measured is not None else []
        lines += [f"    check      {_short(claim.tolerance)}"] if claim.tolerance is not None else []
    small = sum(claim.too_small for claim in record.claims)
    if small:
        lines += [
            f"{small} of {len(record.claims)} are too small to judge here: run again with --scale paper and another --out"
        ]
    return [*map(printable, lines), f"record: {record.folder}"]


def _short(value: Any, limit: int = 160) -> str:
    text = ", ".join(f"{key}: {item}" for key, item in value.items()) if isinstance(value, Mapping) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
