"""Functions with more parameters than a reader keeps in mind. Run: python tools/long_signatures.py [MOST] [FOLDER]"""

from __future__ import annotations

import ast
import sys
from pathlib import Path


def count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Named parameters, `self` and `cls` not counted, nor `*args` and `**kwargs`."""
    parameters = [*function.args.posonlyargs, *function.args.args]
    bound = bool(parameters) and parameters[0].arg in ("self", "cls")
    return len(parameters) - bound + len(function.args.kwonlyargs)


def main(most: str = "8", folder: str = "src") -> None:
    found = [
        (count(node), f"{path}:{node.lineno}", node.name)
        for path in sorted(Path(folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and count(node) > int(most)
    ]
    for number, place, name in sorted(found, key=lambda row: (-row[0], row[1])):
        print(f"{number:3}  {name}  {place}")
    print(f"{len(found)} functions have more than {most} parameters")


if __name__ == "__main__":
    main(*sys.argv[1:])
