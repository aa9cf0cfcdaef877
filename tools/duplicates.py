"""Stretches of equal lines in two places. Run: python tools/duplicates.py [LINES] [FOLDER]

Indentation, blank lines, comments, imports and docstrings do not count. A stretch of LINES or more is one pair, however long.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def left_out(tree: ast.Module) -> Iterator[int]:
    """The numbers of lines that belong to imports and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from range(node.lineno, (node.end_lineno or 0) + 1)


def code(path: Path) -> list[tuple[int, str]]:
    """Lines of code with their numbers."""
    text = path.read_text(encoding="utf-8")
    others = {*left_out(ast.parse(text))}
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if number not in others)
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def pairs(files: dict[Path, list[tuple[int, str]]], length: int) -> list[tuple[int, str, str]]:
    """Each pair of places where a stretch begins: how many lines it has, and both places; longest first."""
    starts = defaultdict(list)
    for path, lines in files.items():
        for i in range(len(lines) - length + 1):
            starts[tuple(line for _, line in lines[i : i + length])].append((path, i))
    found = []
    for places in starts.values():
        for (one, i), (other, j) in combinations(places, 2):
            a, b = files[one], files[other]
            if i and j and a[i - 1][1] == b[j - 1][1]:
                continue  # inside a longer stretch
            most = min(len(a) - i, len(b) - j, j - i if one == other else len(a))
            same = next((k for k in range(most) if a[i + k][1] != b[j + k][1]), most)
            if same >= length:
                found.append((same, f"{one}:{a[i][0]}", f"{other}:{b[j][0]}"))
    return sorted(found, key=lambda pair: (-pair[0], pair[1:]))


def main(length: str = "6", folder: str = "src") -> None:
    found = pairs({path: code(path) for path in sorted(Path(folder).rglob("*.py"))}, int(length))
    for lines, one, other in found:
        print(f"{lines:3}  {one}  {other}")
    print(f"{len(found)} pairs of {length} equal lines or more")


if __name__ == "__main__":
    main(*sys.argv[1:])
