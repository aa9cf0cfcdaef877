"""The command line: one verb per thing a person does, one file per verb, one line in `VERBS`.

Verbs are imported when they are run: `ntkscope --help` and `--version` do not wait for PyTorch.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import Annotated, Any

import typer

import ntkscope as ns

IMPORTED = time.perf_counter()
BEGAN: ContextVar[float | None] = ContextVar("BEGAN", default=None)  # when the command was started

# The file of this folder that has a verb's function, and the first line of that function's docstring.
VERBS: dict[str, tuple[str, str]] = {
    "check": (
        "check:check",
        "Print what was published beside what was measured; exit with 1 when a check failed or the run is not done.",
    ),
    "compare": (
        "compare:compare",
        "Compare two X-rays: accuracy, kernels, surrogates, explanations, doubtful labels; makes one page.",
    ),
    "demo": ("demo:demo", "Train a small CNN on scikit-learn's digits, X-ray it, and make the page."),
    "kernel": (
        "kernel:kernel",
        "Compute a kernel into a folder of tiles; stopped or killed, the same command computes only what is missing.",
    ),
    "list": (
        "list:list_parts",
        "List the data sets, models, kernels, surrogates, measures, sections of an X-ray and experiments there are.",
    ),
    "report": ("report:report", "Make a page of a record; of many records, a page each and an index over them."),
    "run": ("run:run", "Run an experiment and print the verdicts on its claims."),
    "show": ("show:show", "Print the record in a folder: what ran, how far it came, what it found."),
    "xray": (
        "xray:xray",
        "X-ray a trained network: which kernel machine it is, how far to trust that, what speaks for each prediction.",
    ),
}

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
MARKUP = app.rich_markup_mode


def verb(name: str) -> Callable[..., Any]:
    """The function of a verb, imported now.

    >>> verb("list").__name__
    'list_parts'
    """
    file, _, function = VERBS[name][0].partition(":")
    found: Callable[..., Any] = getattr(import_module(f"ntkscope.cli.{file}"), function)
    return found


def _not_imported() -> None:
    """Stands for a verb in the list that `--help` prints; `main` puts the verb itself in its place before it is run."""
    raise AssertionError("the verb was not imported")


for _name, (_, _line) in VERBS.items():
    app.command(_name, help=_line, short_help=_line)(_not_imported)


def _bring(name: str) -> None:
    """Put a verb in the place of what stands for it; a second command of that name would slow down every later call."""
    command = next(command for command in app.registered_commands if command.name == name)
    command.callback, command.help = verb(name), None  # its docstring is its help


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
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # threads that spin while they wait cost tenfold on a busy machine
    atexit.register(gc.freeze)  # else looking for garbage in all of PyTorch makes leaving take a second
    words = sys.argv[1:] if arguments is None else [*arguments]
    name = next((word for word in words if not word.startswith("-")), None)
    try:
        app.rich_markup_mode = None if name is None else MARKUP  # drawing boxes takes half of the time of --help
        if name in VERBS:
            _bring(name)
        if name is None or "--help" in words:  # which, as --version, needs nothing else
            app(args=words, prog_name="ntkscope")
            return
        with import_module("ntkscope.core.machine.interrupts").terminable():
            BEGAN.set(IMPORTED if arguments is None else time.perf_counter())
            app(args=words, prog_name="ntkscope")
    except SystemExit:  # caught first, so that leaving does not import the rooms
        raise
    except (ns.NtkscopeError, OSError) as error:
        printable = import_module("ntkscope.core.files.printable").printable
        typer.echo(f"ntkscope: {printable(str(error))}", err=True)
        sys.exit(2)
