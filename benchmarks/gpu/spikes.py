"""How often `spike_test` errs: false alarms on pure noise, and directions found, on a CUDA device (or a CPU, in hours).

False alarms at 5 % and 1 % of the default null (permuted entries, 199 draws), ten shapes and four laws, 1,000 matrices each;
then directions of 2, 1.5 and 0.7 times the threshold in Gaussian noise. Draws of a matrix stop once ten of them exceed its
value: neither level can then be reached, so decisions are those of all 199 draws. Every cell is written when it is done, and
a run that was stopped continues with the next.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from jaxtyping import Float, Int
from scipy.stats import binom
from torch import Tensor

from benchmarks import machine
from benchmarks.outcome import Check, Outcome, table, write
from benchmarks.statistics.families import NOISE, SHAPES, Shape, noise
from ntkscope.core import derive_seed
from ntkscope.core.script import run_script
from ntkscope.linalg.random_matrices.spiked import spike_threshold
from ntkscope.linalg.sketches.sketch import random_words
from ntkscope.linalg.spectra.largest import largest_singular_values

DRAWS, STAGES = 199, (20, 40, 80, 199)
LEVELS = (0.05, 0.01)
CERTAIN = 10  # exceedances after which p > 5 %
OUTSIDE, BAND = 3, 0.99


def exceedances(
    matrices: Float[Tensor, "r m n"], key: int, entries: int, certain: int = CERTAIN, stages: tuple[int, ...] = STAGES
) -> Int[Tensor, " r"]:
    """How many of the draws of each matrix exceed its largest singular value; counting stops once `certain` do."""
    centred = matrices - matrices.mean((1, 2), keepdim=True)
    flat = centred.flatten(1)
    places = torch.arange(flat.shape[1], device=flat.device)
    values = torch.cat([largest_singular_values(part) for part in centred.split(max(1, entries // flat.shape[1]))])
    counts, before = torch.zeros(len(flat), dtype=torch.int64, device=flat.device), 0
    for until in stages:
        active = (counts < certain).nonzero().flatten()
        pairs = torch.cartesian_prod(active, torch.arange(before, until, device=flat.device))
        for chunk in pairs.split(max(1, entries // flat.shape[1])):
            which, draw = chunk[:, 0], chunk[:, 1]
            order = random_words(key, which * DRAWS + draw, places).argsort(1)
            drawn = flat[which].gather(1, order).view(-1, *matrices.shape[1:])
            counts.index_add_(0, which, (largest_singular_values(drawn) >= values[which]).long())
        before = until
    return counts


def significant(counts: Tensor, level: float, draws: int = DRAWS) -> int:
    """How many have p = (1 + #)/(1 + draws) ≤ level."""
    return sum((1 + count) / (1 + draws) <= level for count in counts.tolist())


def planted(shape: Shape, times: float, count: int, random: torch.Generator) -> Tensor:
    """Gaussian noise with a direction of `times` the threshold in each matrix."""
    u, v = (noise("gaussian", (count, side), random) for side in shape)
    u, v = u / u.norm(dim=1, keepdim=True), v / v.norm(dim=1, keepdim=True)
    strength = times * spike_threshold(shape)
    return noise("gaussian", (count, *shape), random) + strength * u[:, :, None] * v[:, None, :]


def cells(quick: bool) -> list[tuple[str, Shape, str, float, int]]:
    """Kind, shape, law, strength in thresholds, matrices."""
    shapes, many, some, few = (SHAPES[:2], 100, 40, 40) if quick else (SHAPES, 1000, 500, 200)
    null = [("null", shape, law, 0.0, many) for shape in shapes for law in NOISE]
    below = [("below", shape, "gaussian", 0.7, some) for shape in shapes]
    above = [("above", shape, "gaussian", 2.0, few) for shape in shapes]
    nearer = [("above", shape, "gaussian", 1.5, few) for shape in shapes if min(shape) >= 200]
    return [*null, *below, *above, *nearer]


def measure(kind: str, shape: Shape, law: str, times: float, count: int, device: str) -> dict[str, Any]:
    seed = derive_seed(0, "gpu spikes", kind, law, *shape, int(10 * times))
    random = torch.Generator(device).manual_seed(seed)
    matrices = planted(shape, times, count, random) if times else noise(law, (count, *shape), random)
    start = time.perf_counter()
    counts = exceedances(matrices, derive_seed(seed, "draws"), 1 << (27 if device == "cuda" else 21))
    found = {f"at {level:.0%}": significant(counts, level) for level in LEVELS}
    return {
        "kind": kind,
        "shape": f"{shape[0]} × {shape[1]}",
        "side": min(shape),
        "law": law,
        "times": times,
        "matrices": count,
        **found,
        "seconds": time.perf_counter() - start,
    }


def band(level: float, count: int) -> tuple[int, int]:
    """The numbers of false alarms between which 99 % of fair tests lie."""
    low, high = binom.interval(BAND, count, level)
    return int(low), int(high)


def outcome(rows: list[dict[str, Any]], device: str) -> Outcome:
    null = [row for row in rows if row["kind"] == "null"]
    judged = [(row, level, row[f"at {level:.0%}"], band(level, row["matrices"])) for row in null for level in LEVELS]
    out = [
        f"{row['shape']} {row['law']} at {level:.0%}: {n}"
        for row, level, n, (low, high) in judged
        if not low <= n <= high
    ]
    above = [(row["at 5%"] / row["matrices"], row) for row in rows if row["kind"] == "above"]
    below = {
        level: sum(row[f"at {level:.0%}"] for row in rows if row["kind"] == "below")
        / max(1, sum(row["matrices"] for row in rows if row["kind"] == "below"))
        for level in LEVELS
    }
    highest = max((row["at 5%"] / row["matrices"] for row in rows if row["kind"] == "below"), default=0.0)
    least, where = min(above, key=lambda pair: pair[0]) if above else (float("nan"), {"shape": "", "times": 0})
    checks = [
        Check(
            f"cells (of {len(judged)}) whose false alarms are outside their 99 % binomial band",
            f"≤ {OUTSIDE}",
            f"{len(out)}{': ' + '; '.join(out) if out else ''}",
            len(out) <= OUTSIDE,
        ),
        Check(
            "directions found at 5 %: 2 × the threshold, 1.5 × from side 200 on",
            "≥ 95 % for every shape",
            f"least {least:.1%} ({where['shape']}, {where['times']:g} ×)",
            least >= 0.95 if above else None,
        ),
        Check(
            "directions of 0.7 × the threshold called spikes",
            "≤ level + 2 points",
            f"{below[0.05]:.1%} at 5 % (highest shape {highest:.1%}), {below[0.01]:.1%} at 1 %",
            all(share <= level + 0.02 for level, share in below.items()),
        ),
    ]
    return Outcome(f"Calibration of spike_test, permuted entries, {DRAWS} draws, {device}", rows, checks)


def run(quick: bool = False, device: str = "cpu", kept: Path | None = None) -> Outcome:
    """All cells; those found in `kept` are taken from there, and new ones are added to it."""
    done: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    rows = []
    for cell in cells(quick):
        name = " ".join(map(str, (*cell, device)))
        if name not in done:
            done[name] = measure(*cell, device)
            print(done[name], flush=True)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                fresh = kept.with_suffix(".new")
                fresh.write_text(json.dumps(done, indent=1))
                fresh.replace(kept)
        rows.append(done[name])
    return outcome(rows, torch.cuda.get_device_name() if device == "cuda" else "cpu")


def main(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    quick: Annotated[
        bool, typer.Option("--quick", help="Two small shapes, 100 matrices: tries the machinery.")
    ] = False,
    out: Annotated[Path, typer.Option(help="File for the record; cells go beside it as they come.")] = Path(
        "benchmarks/results/gpu/gpu_spikes.json"
    ),
) -> int:
    start = time.perf_counter()
    found = run(quick, device, out.parent / "cells" / out.name)
    path = write(out.stem, found, machine.describe(), time.perf_counter() - start, out.parent)
    print(
        table(found.rows), *(f"{c.what}: {c.target}, {c.measured}: {c.verdict}" for c in found.checks), path, sep="\n"
    )
    return 1 if any(check.holds is False for check in found.checks) else 0


if __name__ == "__main__":
    raise SystemExit(run_script(main, None, "python -m benchmarks.gpu.spikes", __doc__))
