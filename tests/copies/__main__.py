"""`python -m copies [PART OF A NAME]`: every cell of the law, those that are not equal one per line, and how many there are of each."""

from __future__ import annotations

import sys
import time

import torch

from copies.law import ENTRIES, EQUAL, KEPT, Cell, changes_of, kept, kernels, linearized, tally
from copies.models import CASES


def main() -> None:
    began = time.perf_counter()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    everything: dict[str, list[Cell]] = {}
    for name, case in CASES.items():
        if wanted not in name:
            continue
        cells = [kernels(case, entry) for entry in ENTRIES if entry != "device=cuda" or torch.cuda.is_available()]
        cells += linearized(case, changes_of(case))
        for entry in KEPT:
            cells += kept(case, entry, changes_of(case))
        for cell in cells:
            everything.setdefault(cell.entry, []).append(cell)
            if cell.verdict != EQUAL:
                print(f"{cell.verdict:8} {cell.case:34} {cell.entry:20} {cell.change:28} {cell.note}", flush=True)
    for entry, cells in everything.items():
        print(f"{entry:20} {len(cells):5} cells  {tally(cells)}")
    print(
        f"{'all':20} {sum(map(len, everything.values())):5} cells  {tally([c for cs in everything.values() for c in cs])}"
    )
    print(f"{len(CASES)} models, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
