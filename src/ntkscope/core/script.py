"""A function as the command line of `python -m something`: its parameters are the options, what it returns the exit status."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import typer


def run_script(function: Callable[..., int], arguments: Sequence[str] | None, program: str, about: str | None) -> int:
    """What `function` returns for `arguments` (those of the process unless given).

    Wrong arguments are a message and exit with 2, `--help` exits with 0; `program` and `about` are what it shows.

    >>> def greet(name: str, *, times: int = 1) -> int:
    ...     print(f"hello {name}, " * times + "bye")
    ...     return 3
    >>> run_script(greet, ["Ada", "--times", "2"], "python -m greet", "Says hello.")
    hello Ada, hello Ada, bye
    3
    """
    returned: list[int] = []

    @functools.wraps(function)
    def command(**given: Any) -> None:
        returned.append(function(**given))

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(help=about)(command)
    try:
        app(args=None if arguments is None else [*arguments], prog_name=program)
    except SystemExit:
        if not returned:  # --help, or arguments that were refused
            raise
    return returned[0]
