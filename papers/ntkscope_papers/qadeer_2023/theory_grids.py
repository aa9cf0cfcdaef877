"""Norms and losses on nested grids: the conjugate-kernel paper's lemmas on random functions, and functions that break them.

Every check draws its instances from a named stream of the seed and returns plain numbers; errata appear as pairs, the printed
form beside the corrected one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy.special import i0

from ntkscope.core import numpy_generator
from ntkscope_papers.qadeer_2023.grids import logistic_boundary, trapezoid_weights
from ntkscope_papers.qadeer_2023.logistic_bounds import (
    corner_lipschitz,
    corner_maximum,
    labels_match,
    signed_scores,
    summed_cross_entropy,
)
from ntkscope_papers.qadeer_2023.regression_bounds import lipschitz_constant, monotone_between, trapezoid_norm

TAUS = (2, 3, 5)
LENGTHS = (2, 50, 100, 200)
GRID, TAU = (11, 7), (2, 3)  # of the logistic tests
PRINTED, SAFE = float(TAU[0] * TAU[1]), float((2 * TAU[0] + 1) * (2 * TAU[1] + 1))


def weighted_norms(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 31, 32: weights that sum to b - a, and both forms of the norm."""
    random = numpy_generator(seed, "weighted norms")
    sums, forms = 0.0, 0.0
    for _ in range(trials):
        low, length, nodes = random.normal(), random.uniform(0.1, 10), int(random.integers(1, 300))
        weights = trapezoid_weights((low, low + length), nodes).numpy()
        g = random.normal(size=nodes + 1)
        direct = math.sqrt(float((weights * g**2).sum()))
        sums = max(sums, abs(float(weights.sum()) / length - 1))
        forms = max(forms, abs(direct / trapezoid_norm(g, length) - 1))
    return {"weights sum to b - a": sums, "two forms": forms}


def trapezoid_order(trials: int, seed: int) -> dict[str, Any]:
    """Errors of the norm of exp(3x) and of the periodic exp(sin 2πx) against their L² norms."""
    counts = [25, 50, 100, 200, 400]
    exact = math.sqrt((math.exp(6) - math.exp(-6)) / 6)
    smooth = [abs(trapezoid_norm(np.exp(3 * np.linspace(-1, 1, n + 1))) - exact) for n in counts]
    slope = float(np.polyfit(np.log(counts), np.log(smooth), 1)[0])
    whole = math.sqrt(2 * float(i0(2.0)))  # ∫ exp(2 sin 2πx) over two periods
    few = [4, 8, 12, 16, 20]

    def periodic(n: int) -> float:
        return abs(trapezoid_norm(np.exp(np.sin(2 * np.pi * np.linspace(-1, 1, n + 1)))) - whole)

    return {
        "N": counts,
        "exp(3x)": smooth,
        "order": -slope,
        "N, periodic": few,
        "exp(sin 2πx)": [periodic(n) for n in few],
        "exp(sin 2πx), N = 200": periodic(200),
    }


def coarse_by_fine(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 33 on random functions and on a spike; and how far the step printed as an equality is from one."""
    random = numpy_generator(seed, "coarse by fine")
    worst, unequal = 0.0, 0.0
    for _ in range(trials):
        tau, cells = int(random.choice(TAUS)), int(random.integers(1, 20))
        g = random.normal(size=tau * cells + 1)
        fine = trapezoid_norm(g)
        worst = max(worst, trapezoid_norm(g[::tau]) / fine / math.sqrt(tau))
        windows = np.lib.stride_tricks.sliding_window_view(g, tau + 1)[::tau]
        middle = (2 / cells) / 2 * float((windows**2).sum())  # what the printed step calls (M/N) ‖g‖₁²
        unequal = max(unequal, abs(middle / (tau * fine**2) - 1))
    attained = {}
    for tau in TAUS:
        spike = np.zeros(6 * tau + 1)
        spike[3 * tau] = 1
        attained[str(tau)] = trapezoid_norm(spike[::tau]) / trapezoid_norm(spike)
    return {"worst over √τ": worst, "attained by a spike": attained, "printed equality off by": unequal}


def monotone(random: np.random.Generator, tau: int, cells: int) -> np.ndarray:
    """Monotone between neighbouring training nodes, otherwise random."""
    nodes = random.normal(size=cells + 1) * random.choice([0.0, 1.0], size=cells + 1)
    shares = np.concatenate([np.zeros((cells, 1)), np.sort(random.random((cells, tau - 1)) ** 3, 1)], 1)
    g: np.ndarray = np.append((nodes[:-1, None] + shares * np.diff(nodes)[:, None]).ravel(), nodes[-1])
    return g


def monotone_functions(trials: int, seed: int) -> dict[str, Any]:
    """Lemma 4.1 and Eq. 36 on piecewise monotone functions, the plateau that attains the sharp constant, the proof's slip."""
    random = numpy_generator(seed, "monotone")
    above, below, checked = 0.0, 0.0, 0
    for _ in range(trials):
        tau, cells = int(random.choice(TAUS)), int(random.integers(1, 20))
        g = monotone(random, tau, cells)
        coarse, fine = trapezoid_norm(g[::tau]), trapezoid_norm(g)
        if coarse == 0 or not monotone_between(g, tau):
            continue
        checked += 1
        above = max(above, fine / coarse / math.sqrt(2 - 1 / tau))
        below = max(below, coarse / fine / math.sqrt(tau))
    attained, second_line = {}, {}
    for tau in TAUS:
        plateau = np.zeros(6 * tau + 1)
        plateau[2 * tau + 1 : 4 * tau] = 1
        attained[str(tau)] = trapezoid_norm(plateau) / trapezoid_norm(plateau[::tau])
        cells = 6  # the proof's second line for g = 1, with Δy/2 where Δy is due, over ‖g‖₁² = 2
        second_line[str(tau)] = (2 / (cells * tau)) / 2 * (2 * cells + cells * (tau - 1)) / 2
    return {
        "checked": checked,
        "worst over the sharp constant": above,
        "worst over √τ from below": below,
        "attained by a plateau": attained,
        "sharp": {str(tau): math.sqrt(2 - 1 / tau) for tau in TAUS},
        "proof's second line over the norm, g = 1": second_line,
    }


def _lemma_4_2(g: np.ndarray, tau: int, length: float) -> tuple[float, float, float]:
    """‖g‖₁² over the right side of Lemma 4.2, printed and corrected; and ‖g‖₁²."""
    cells, steep = (len(g) - 1) // tau, lipschitz_constant(g, length)
    left, own = trapezoid_norm(g, length) ** 2, trapezoid_norm(g[::tau], length) ** 2
    printed = 4 * (own + 2 * length**2 * steep**2 / cells**2)
    corrected = 4 * (own + length**3 * steep**2 / cells**2)
    return left / printed, left / corrected, left


def lemma_4_2(trials: int, seed: int) -> dict[str, Any]:
    """Random functions on [-1, 1] and on other intervals; tents that vanish at the training nodes on long ones."""
    random = numpy_generator(seed, "lemma 4.2")
    usual, anywhere = 0.0, 0.0
    for _ in range(trials):
        tau, cells = int(random.choice(TAUS)), int(random.integers(2, 30))
        g = np.cumsum(random.normal(size=tau * cells + 1))
        usual = max(usual, _lemma_4_2(g, tau, 2.0)[0])
        anywhere = max(anywhere, _lemma_4_2(g, tau, float(10 ** random.uniform(-2, 4)))[1])
    tents = {}
    for length in LENGTHS:
        tau, cells = 20, 50
        step = length / cells / tau
        tent = np.append(np.tile(np.minimum(np.arange(tau), tau - np.arange(tau)) * step, cells), 0.0)
        printed, corrected, left = _lemma_4_2(tent, tau, float(length))
        tents[str(length)] = {"left": left, "over printed": printed, "over corrected": corrected}
    return {"worst on [-1, 1], printed": usual, "worst on any interval, corrected": anywhere, "tents": tents}


def elementary(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 43 and Eq. 62 on random numbers: the largest violation, relative to the larger side."""
    random = numpy_generator(seed, "elementary")
    r, z, x = (10 ** random.uniform(-6, 6, size=100 * trials) for _ in range(3))
    e, rho = r * random.random(100 * trials), 1 + 10 ** random.uniform(-6, 3, size=100 * trials)
    first = (e / r - (e + z) / (r + z)) / ((e + z) / (r + z))
    second = np.log1p(rho * x) / (rho * np.log1p(x)) - 1
    return {"Eq. 43": float(first.max()), "Eq. 62": float(second.max()), "trials": 100 * trials}


def summed_losses(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 11, 23 and 54: the loss with one minus sign for both terms, as printed, and sums against means."""
    random = numpy_generator(seed, "summed losses")
    off, printed, sums, means = 0.0, 0.0, 0, 0
    for _ in range(trials):
        psi = random.normal(size=(GRID[0] * TAU[0] + 1, GRID[1] * TAU[1] + 1)) * 3
        eta = random.integers(0, 2, size=psi.shape)
        p = 1 / (1 + np.exp(-psi))
        first, second = (eta * np.log(p)).sum(), ((1 - eta) * np.log1p(-p)).sum()
        signed = signed_scores(psi, eta)
        exact = summed_cross_entropy(signed)
        off = max(off, abs(-(first + second) / exact - 1))
        printed = max(printed, abs((-first + second) / exact - 1))
        own = signed[:: TAU[0], :: TAU[1]]
        sums += summed_cross_entropy(own) > exact
        means += summed_cross_entropy(own) / own.size > exact / signed.size
    return {"Eq. 11 against 23": off, "without the bracket": printed, "sums above": sums, "means above": means}


def _peaks(every: Sequence[tuple[int, int]], inside: float, outside: float) -> np.ndarray:
    """A function on the test grid that is `inside` on the open cells around some training nodes."""
    g = np.full((GRID[0] * TAU[0] + 1, GRID[1] * TAU[1] + 1), outside)
    for i, j in every:
        rows = slice(max(0, (i - 1) * TAU[0] + 1), (i + 1) * TAU[0])
        columns = slice(max(0, (j - 1) * TAU[1] + 1), (j + 1) * TAU[1])
        g[rows, columns] = inside
    return g


def _loss_ratio(signed: np.ndarray) -> float:
    return summed_cross_entropy(signed) / summed_cross_entropy(signed[:: TAU[0], :: TAU[1]])


def under_corners(random: np.random.Generator) -> np.ndarray:
    """A random function whose maximum over every closed training cell is at a corner: below what its cells allow."""
    (t1, t2), (n1, n2) = TAU, GRID
    corners = random.normal(size=(n1 + 1, n2 + 1)) * 5
    allowed = np.full((n1 * t1 + 1, n2 * t2 + 1), np.inf)
    for i, j in product(range(n1), range(n2)):
        most = corners[i : i + 2, j : j + 2].max()
        cell = allowed[i * t1 : (i + 1) * t1 + 1, j * t2 : (j + 1) * t2 + 1]
        np.minimum(cell, most, out=cell)
    g = allowed - random.exponential(size=allowed.shape) * random.choice([0.0, 1.0])
    g[::t1, ::t2] = corners
    return g


def lemma_5_1(trials: int, seed: int) -> dict[str, Any]:
    """Random functions with corner maxima, and the peaks that exceed the printed constant."""
    random = numpy_generator(seed, "lemma 5.1")
    worst, checked = 0.0, 0
    for _ in range(trials):
        g = under_corners(random)
        if corner_maximum(g, TAU):
            checked, worst = checked + 1, max(worst, _loss_ratio(g))
    one = _peaks([(5, 3)], 5.0, -30.0)
    lattice = np.full_like(one, 5.0)  # every cell has one corner among the training nodes of even numbers, the peaks
    own = lattice[:: TAU[0], :: TAU[1]]
    own[1::2], own[:, 1::2] = -30.0, -30.0
    return {
        "checked": checked,
        "worst ratio": worst,
        "one peak": _loss_ratio(one),
        "lattice of peaks": _loss_ratio(lattice),
        "corner condition": bool(corner_maximum(one, TAU) and corner_maximum(lattice, TAU)),
        "printed": PRINTED,
        "safe": SAFE,
    }


def lemma_5_2(trials: int, seed: int) -> dict[str, Any]:
    """Random smooth scores and labels that match; a constant score that exceeds the printed constant."""
    random = numpy_generator(seed, "lemma 5.2")
    h = math.hypot(2 / GRID[0], 2 / GRID[1])
    x1, x2 = np.meshgrid(*(np.linspace(-1, 1, n * t + 1) for n, t in zip(GRID, TAU)), indexing="ij")
    safe, printed, checked = 0.0, 0.0, 0
    for _ in range(trials):
        a, b, c, d = random.normal(size=4) * 2
        psi = 10 ** random.uniform(-1, 1) * np.sin(a * x1 + b * x2 + c) + d
        labels = (
            random.normal() * x1 + random.normal() * x2 + 0.5 * random.normal() * x1 * x2 > random.normal() / 2
        ).astype(int)
        if not labels_match(labels, TAU):
            continue
        grown = math.exp(min(700.0, h * corner_lipschitz(psi, TAU)))
        ratio = _loss_ratio(signed_scores(psi, labels))
        checked, safe, printed = checked + 1, max(safe, ratio / grown / SAFE), max(printed, ratio / grown / PRINTED)
    labels = _peaks([(5, 3)], 0.0, 1.0).astype(int)
    return {
        "checked": checked,
        "worst over safe": safe,
        "worst over printed": printed,
        "constant score": _loss_ratio(signed_scores(np.full(labels.shape, 10.0), labels)),
        "its labels match": labels_match(labels, TAU),
        "printed": PRINTED,
        "safe": SAFE,
    }


def matching(trials: int, seed: int) -> dict[str, Any]:
    """The matching property of both boundaries on their grids; and a label inside one cell that has no like corner."""
    found = {}
    for boundary in ("F1", "F2"):
        labels = logistic_boundary(boundary, intervals=GRID, refinement=TAU).test.y
        found[boundary] = labels_match(labels.reshape(GRID[0] * TAU[0] + 1, GRID[1] * TAU[1] + 1).numpy(), TAU)
    lonely = np.zeros((GRID[0] * TAU[0] + 1, GRID[1] * TAU[1] + 1), dtype=int)
    lonely[1, 1] = 1
    return {**found, "one label inside a cell": labels_match(lonely, TAU)}
