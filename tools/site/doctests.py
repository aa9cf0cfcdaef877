"""Examples inside of docstrings, as code: a prompt at the start of a line would be a quotation to Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

SESSION = re.compile(r"^( *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    r"""The docstring with its sessions as code; those under a heading of their own are left to the parser.

    >>> fenced("Twice x.\n\n>>> twice(1)\n2").splitlines()[2:]
    ['```pycon', '>>> twice(1)', '2', '```']
    """
    if re.search(r"^Examples?:\n", docstring, re.MULTILINE):
        return docstring
    return SESSION.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", docstring)
