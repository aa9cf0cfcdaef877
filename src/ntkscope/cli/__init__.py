"""The command line: one verb per thing a person does, one file per verb, one line in `VERBS`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import ntkscope as ns
from ntkscope.cli.check import check
from ntkscope.cli.compare import compare
from ntkscope.cli.demo import demo
from ntkscope.cli.kernel import kernel
from ntkscope.cli.list import list_parts
from ntkscope.cli.report import report
from ntkscope.cli.run import run
from ntkscope.cli.show import show
from ntkscope.cli.xray import xray
from ntkscope.core.interrupts import terminable
from ntkscope.core.printable import printable

VERBS: dict[str, Callable[..., Any]] = {
    "check": check,
    "compare": compare,
    "demo": demo,
    "kernel": kernel,
    "list": list_parts,
    "report": report,
    "run": run,
    "show": show,
    "xray": xray,
}

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _name, _verb in VERBS.items():
    app.command(_name)(_verb)


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(ns.__version__)
        raise typer.Exit
    return wanted


@app.callback()
def _ntkscope(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Which kernel machine is a trained network, how far to trust that view, and where it breaks."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error ntkscope raises on purpose is a message and exit code 2, not a traceback.

    SIGTERM ends what runs as Ctrl-C does: records say *interrupted*; the exit code is 143.
    """
    try:
        with terminable():
            app(args=None if arguments is None else [*arguments], prog_name="ntkscope")
    except SystemExit:  # caught first, so that leaving does not import the rooms
        raise
    except ns.NtkscopeError as error:
        typer.echo(f"ntkscope: {printable(str(error))}", err=True)
        sys.exit(2)
