"""`python -m copies [CHANGES [PART OF A NAME]]`: cells that are not equal, one per line, and how many there are of each kind.

CHANGES: how many of the changes that any model takes are drawn for each entry; all of them without it.
"""

from __future__ import annotations

import sys
import time

from copies.law import EQUAL, Cell, cells, tally
from copies.models import CASES


def main() -> None:
    began = time.perf_counter()
    generic = int(sys.argv[1]) if len(sys.argv) > 1 else None
    wanted = [name for name in CASES if len(sys.argv) < 3 or sys.argv[2] in name]
    everything: dict[str, list[Cell]] = {}
    for name in wanted:
        for cell in cells(CASES[name], generic):
            everything.setdefault(cell.entry, []).append(cell)
            if cell.verdict != EQUAL:
                print(f"{cell.verdict:8} {cell.case:34} {cell.entry:20} {cell.change:28} {cell.note}", flush=True)
    for entry, found in everything.items():
        print(f"{entry:20} {len(found):5} cells  {tally(found)}")
    print(
        f"{'all':20} {sum(map(len, everything.values())):5} cells  {tally([c for found in everything.values() for c in found])}"
    )
    print(f"{len(wanted)} models, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
