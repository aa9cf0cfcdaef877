"""The rule of `measures.spectra.classify` on eight families of matrices; weightwatcher and powerlaw beside it.

Eight families, ten shapes, twenty seeds: the share named rightly, with permutations. On two seeds, weightwatcher on the same
matrix and our rule without resampling (Tracy–Widom null, tail fitted once) take turns. Exponents are compared with
powerlaw's at our threshold.

About 40 minutes on two cores, nearly all of it permutations; with a GPU a few.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.outcome import Check, Outcome
from benchmarks.peers import THREADS, Peer, PeerUnavailable
from benchmarks.statistics.families import FAMILIES, SHAPES, matrix
from benchmarks.timing import Spread, wall
from ntkscope.core import numpy_generator
from ntkscope.linalg import power_law_tail
from ntkscope.measures.spectra import classify

SEEDS, BESIDE, DRAWS = 20, 2, 199
FIRST = 200  # the rule was chosen on seeds below 100, its level after those from 100 to 119
FASTER, DIGITS = 5.0, 1e-6


def label_of(family: str, shape: tuple[int, int], seed: int, draws: int, device: str = "cpu") -> str:
    """What the rule calls one matrix."""
    return classify(matrix(family, shape, seed).to(device), draws=draws, seed=seed).label


def accuracy(seeds: int, shapes: tuple[tuple[int, int], ...], draws: int) -> list[dict[str, Any]]:
    """One row per family: the share of each label. Permutations on a GPU where there is one, else a process on each core."""
    each = [(shape, seed, draws) for shape in shapes for seed in range(FIRST, FIRST + seeds)]
    names = {family: [(family, *one) for one in each] for family in FAMILIES}
    if torch.cuda.is_available():
        labels = {family: [label_of(*one, "cuda") for one in several] for family, several in names.items()}
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(THREADS, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            waiting = {family: [pool.submit(label_of, *one) for one in several] for family, several in names.items()}
            labels = {family: [one.result() for one in several] for family, several in waiting.items()}
    rows = []
    for family, (expected, _) in FAMILIES.items():
        named = Counter(labels[family])
        right = named[expected] / len(each)
        rows.append({"family": family, "expected": expected, "right": right, "named": dict(named)})
    return rows


def against_weightwatcher(peer: Peer, seeds: int, shapes: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """Seconds of both on the same matrices, taking turns."""
    matrices = {
        f"{family} {shape[0]} x {shape[1]} {seed}": matrix(family, shape, seed)
        for family in FAMILIES
        for shape in shapes
        for seed in range(FIRST, FIRST + seeds)
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "matrices.npz"
        np.savez(file, **{name: one.numpy() for name, one in matrices.items()})  # type: ignore[arg-type]
        versions = peer.ask("load", file=str(file))["versions"]
    first = next(iter(matrices))
    peer.ask("analyze", name=first)
    classify(matrices[first], draws=0)
    ours, theirs, answers = [], [], {}
    for name, one in matrices.items():
        answers[name] = peer.ask("analyze", name=name)
        theirs.append(answers[name]["seconds"])
        ours.append(wall(lambda one=one: classify(one, draws=0))())  # type: ignore[misc]
    ratios = Spread(tuple(t / o for t, o in zip(theirs, ours)))
    return {"versions": versions, "ours": sum(ours), "theirs": sum(theirs), "ratio": ratios, "answers": answers}


def exponents(peer: Peer) -> float:
    """The largest difference from powerlaw's exponent at our threshold, over samples of exponents 1.5 to 4."""
    samples = {
        str(alpha): (1 - numpy_generator(0, "exponents", str(alpha)).random(500)) ** (-1 / (alpha - 1))
        for alpha in (1.5, 2.0, 2.5, 2.9)
    }
    fits = {name: power_law_tail(sample, resamples=0) for name, sample in samples.items()}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.npz"
        np.savez(file, **samples)  # type: ignore[arg-type]
        peer.ask("load", file=str(file))
    found = {name: peer.ask("exponent", name=name, x_min=fit.x_min)["alpha"] for name, fit in fits.items()}
    print("  exponents", {name: (fit.alpha, found[name]) for name, fit in fits.items()}, flush=True)
    return max(abs(fit.alpha - found[name]) for name, fit in fits.items())


def run(quick: bool = False) -> Outcome:
    torch.set_num_threads(THREADS)
    seeds, shapes, beside = (1, SHAPES[:2], 1) if quick else (SEEDS, SHAPES, BESIDE)
    rows = accuracy(seeds, shapes, 0 if quick else DRAWS)
    by_label: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        by_label[row["expected"]].append(row["right"])
    macro = float(np.mean([np.mean(shares) for shares in by_label.values()]))
    families = float(np.mean([row["right"] for row in rows]))
    misnamed = 1 - float(np.mean(by_label["invariant bulk"]))
    checks = [
        Check(
            "classes named rightly, mean over classes",
            "≥ 90 %",
            f"{macro:.1%} (over families {families:.1%})",
            macro >= 0.9,
        ),
        Check("noise that is called something else", "≤ 5 %", f"{misnamed:.1%}", misnamed <= 0.05),
    ]
    details: dict[str, Any] = {}
    notes = [f"{len(shapes)} shapes, {seeds} seeds, {0 if quick else DRAWS} draws"]
    try:
        with Peer("weightwatcher") as peer:
            details = against_weightwatcher(peer, beside, shapes)
            apart = exponents(peer)
        times = details["theirs"] / details["ours"]
        checks += [
            Check(
                "weightwatcher's time over ours without resampling, same matrices",
                f"≥ {FASTER:g}",
                f"{times:.1f} ({details['ratio']} per matrix)",
                times >= FASTER,
            ),
            Check("exponents against powerlaw's at equal x_min", f"≤ {DIGITS:g}", f"{apart:.1e}", apart <= DIGITS),
        ]
        notes.append(f"peers {details['versions']}")
    except PeerUnavailable as error:
        checks.append(Check("weightwatcher, powerlaw", f"≥ {FASTER:g} times faster", str(error), None))
    return Outcome("Spectra named: eight families, weightwatcher and powerlaw beside", rows, checks, notes, details)
