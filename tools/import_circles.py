"""Modules that import each other, directly or through others. Run: python tools/import_circles.py [PACKAGE]

Imports inside functions count, those under TYPE_CHECKING do not. Exit status 1 when there is a circle.
"""

from __future__ import annotations

import sys

import grimp  # comes with import-linter
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def circles(package: str = "ntkscope") -> list[dict[str, list[str]]]:
    """For each circle, its modules and which others of the circle each of them imports."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    names = sorted(graph.modules)
    number = {name: i for i, name in enumerate(names)}
    edges = [(number[name], number[other]) for name in names for other in graph.find_modules_directly_imported_by(name)]
    rows, columns = zip(*edges)
    _, label = connected_components(
        coo_array(([True] * len(edges), (rows, columns)), shape=(len(names),) * 2), connection="strong"
    )
    together: dict[int, list[str]] = {}
    for name, component in zip(names, label):
        together.setdefault(int(component), []).append(name)
    return [
        {name: sorted(graph.find_modules_directly_imported_by(name) & set(members)) for name in members}
        for members in together.values()
        if len(members) > 1
    ]


def main(package: str = "ntkscope") -> int:
    found = circles(package)
    for circle in found:
        print("\n".join(f"{name} imports {', '.join(others)}" for name, others in circle.items()), end="\n\n")
    print(f"{len(found)} import circles")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
