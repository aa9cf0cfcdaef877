"""Seconds of an exact trace-NTK by number of inputs and budget: predicted by the planner and, on a CUDA device, measured.

    python -m benchmarks.gpu.grid [--only NAME]… [--predict] [--quick] [--out FILE]

Three networks, exact and in bf16; in memory (the second call of a kept engine) and, where zarr is installed, to a store; inputs
on the device, and on the host, from where blocks are copied. Predictions are for an H200. The law: more memory is never slower
by more than 5 %, and no number of inputs by more than 2 % than the next multiple of 1,024. The command ends with status 1 where
predictions break it. A figure of kernels in memory is drawn beside the record.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from matplotlib.figure import Figure

import ntkscope as ns
from benchmarks import machine
from benchmarks.gpu.cases import CASES, check_names, footprint
from benchmarks.gpu.peers import timed
from benchmarks.gpu.roofline import NAMES
from benchmarks.outcome import plain
from ntkscope.core.errors import MemoryBudgetError
from ntkscope.core.script import run_script
from ntkscope.tangent.kernel.plan import Footprint, cut_for, planned, seconds

PRECISIONS = ("exact", "bf16")
NUMBERS = (512, 1000, 1024, 2047, 2048, 2049, 3072, 5461, 6144, 16_384)
BUDGETS = (*range(12, 32, 4), *range(32, 129, 8), 100)  # GiB
MEASURED = (24, 32, 48, 64, 80, 100, 120)  # GiB
MORE, NEXT, ROUND = 1.05, 1.02, 1024  # times as long with more memory, and as the next multiple of the last
RECORD = Path("benchmarks/results/gpu/grid.json")
PATIENCE = 30.0  # predicted seconds of a cell, up to which it is measured


def predicted(each: Footprint, n: int, memory: int, stored: bool, m: int | None = None) -> float | None:
    """Seconds of the plan that would be chosen; None where the budget is too small."""
    try:
        plan = cut_for(n, m, each, memory, 1).plan if stored else planned(n, m, each, memory, 1, 1)
    except MemoryBudgetError:
        return None
    n, m = (n, m) if stored or m is None else (min(n, m), max(n, m))  # the smaller side stays
    return seconds(n, m, each, plan)


def slower(cells: Mapping[tuple[int, int], float | None]) -> dict[str, float]:
    """By (inputs, budget): at worst, how many times longer a cell takes than one with less memory, and than the next multiple
    of 1,024 inputs.

    >>> slower({(1000, 8): 2.0, (1000, 16): 3.0, (1024, 8): None, (1024, 16): 2.4})
    {'more memory': 1.5, 'next round number': 1.25}
    """
    known = {cell: spent for cell, spent in cells.items() if spent is not None}
    more = [
        spent / known[n, less] for (n, memory), spent in known.items() for k, less in known if k == n and less < memory
    ]
    later = {(n, memory): known.get((-(-n // ROUND) * ROUND, memory)) for n, memory in known}
    return {
        "more memory": max(more, default=1.0),
        "next round number": max((known[cell] / spent for cell, spent in later.items() if spent), default=1.0),
    }


def measured(name: str, precision: str, n: int, memory: int, host: bool, stored: bool, tiny: bool) -> float:
    """Seconds of the second call of a kept engine, or of a new store."""
    device = "cpu" if tiny else "cuda"
    model, x = CASES[name].made(n, "cpu" if host else device, tiny)
    how: dict[str, Any] = {"precision": precision, "memory": memory, "device": device}
    if stored:
        with tempfile.TemporaryDirectory() as folder:
            return timed(lambda: ns.kernel("trntk0", model, x, store=f"{folder}/kernel", **how), device)[0]
    tangent = ns.Tangent(model, **how)
    return min(timed(lambda: tangent.kernel("trntk0", x), device)[0] for _ in range(2))


def drawing(rows: list[dict[str, Any]]) -> Figure:
    """Lines: predicted seconds of kernels in memory by budget, one for each number of inputs; marks: measured."""
    rows = [row for row in rows if row["kept"] == "memory"]
    panels = list(dict.fromkeys((row["network"], row["precision"]) for row in rows))
    down = -(-len(panels) // 2)
    figure = Figure(figsize=(8.4, 3.0 * down), layout="constrained")
    for axes, panel in zip(figure.subplots(down, 2, squeeze=False).ravel(), panels):
        some = [row for row in rows if (row["network"], row["precision"]) == panel]
        for k, n in enumerate(sorted({row["inputs"] for row in some})):
            for place, what, mark in (
                ("device", "predicted", "-"),
                ("device", "measured", "o"),
                ("host", "measured", "x"),
            ):
                line = [r for r in some if r["inputs"] == n and r["place"] == place and r[what] is not None]
                said = f"{n:,}" if mark == "-" else None
                axes.plot([r["GiB"] for r in line], [r[what] for r in line], mark, color=f"C{k % 10}", label=said)
        axes.set(title=", ".join(panel), yscale="log", xlabel="memory, GiB", ylabel="seconds")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, title="inputs")
    return figure


def main(
    only: Annotated[list[str] | None, typer.Option(help="One network; repeatable; three unless given.")] = None,
    predict: Annotated[bool, typer.Option("--predict", help="Measure nothing.")] = False,
    out: Annotated[Path, typer.Option(help="The record; its figure lies beside it.")] = RECORD,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny networks on the CPU: tries the machinery.")] = False,
) -> int:
    check_names(only)
    rows: list[dict[str, Any]] = []
    laws: list[dict[str, Any]] = []
    numbers, budgets = ((6, 8), (1, 2)) if quick else (NUMBERS, sorted(BUDGETS))
    kinds = ["memory", "store"] if predict or importlib.util.find_spec("zarr") else ["memory"]
    for name, precision, kept in product(only or NAMES, PRECISIONS, kinds):
        each, stored = footprint(name, precision, quick), kept == "store"
        cells = {(n, gib): predicted(each, n, gib << 30, stored) for n in numbers for gib in budgets}
        laws.append({"network": name, "precision": precision, "kept": kept, **slower(cells)})
        print(laws[-1], flush=True)
        for ((n, gib), guess), place in product(cells.items(), ("device", "host")):
            row = {**laws[-1], "place": place, "inputs": n, "GiB": gib, "predicted": guess, "measured": None}
            known = torch.cuda.is_available() and gib in MEASURED and guess is not None and guess < PATIENCE
            if not predict and (quick or known):
                row["measured"] = measured(name, precision, n, gib << 30, place == "host", stored, quick)
                print(row, flush=True)
            rows.append(row)
    holds = all(law["more memory"] <= MORE and law["next round number"] <= NEXT for law in laws)
    record = plain({"holds": holds, "laws": laws, "cells": rows, "machine": machine.describe()})
    out.write_text(json.dumps(record, indent=1) + "\n")
    drawing(rows).savefig(out.with_suffix(".svg"))
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.gpu.grid", __doc__))
