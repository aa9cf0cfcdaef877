"""Measurements of the early-time experiment over many draws: freeness, moments, means over initialisations, self-averaging."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import generator
from ntkscope_papers.beaglehole_2024 import derivatives as early
from ntkscope_papers.beaglehole_2024 import free_products as free
from ntkscope_papers.beaglehole_2024 import gaussian_words as gaussian
from ntkscope_papers.beaglehole_2024.matrices import normal, relative
from ntkscope_papers.framework import Experiment, Run, leg
from ntkscope_papers.framework.results import rounded, summary

SIZES = {"k4 d3": (4, 3, 5), "k16 d6": (16, 6, 4), "k8 d8": (8, 8, 5), "k64 d16": (64, 16, 10)}  # k, d, n
WIDTHS = (16, 32, 64, 128, 256)
CHUNK = 2**22  # numbers drawn at once


@dataclass(frozen=True)
class Averages(Experiment):
    """What holds on average: `draws` initialisations for means; `rotations` of matrices with `rotated` rows, `formula_draws`
    words of matrices with `dimension` rows; `networks` of `width` for moments of R, and for the spread over networks of each
    size in `sizes`.
    """

    draws: int = 200_000
    rotations: int = 48
    rotated: int = 400
    formula_draws: int = 8
    dimension: int = 800
    networks: int = 30
    width: int = 1024
    sizes: tuple[int, ...] = (64, 256, 1024)

    @leg("alternating words")
    def alternating_words(self, run: Run) -> dict[str, Any]:
        """Eqs. 12 to 15: traces of words in C_i (trace zero) and Haar-rotated R_i, over rotations, against the formulas.

        The C_i, and the R_i, do not commute with each other; their spectra are skewed, so that no term is small.
        """
        d = self.rotated
        random = generator(run.seed, "early time", "spectra")
        spectra = torch.rand(4, d, generator=random, dtype=torch.float64).pow(4) * 8 + 0.2
        C = [torch.diag(spectra[0] - spectra[0].mean())]
        C += [(u * (s - s.mean())) @ u.T for u, s in ((haar(d, run.seed, f"c{i}"), spectra[i]) for i in range(1, 4))]
        C[1] = (C[0] + C[1]) / 2  # correlated: tr[C₁C₂], tr[C₂C₃] … are of order one
        C[2], C[3] = (C[1] + C[2]) / 2, (C[0] + C[3]) / 2
        base = torch.diag(spectra.flip(0)[0])
        r = [base, base @ base / 4, base / 2 + base @ base / 9, base]
        c = [m - float(m.trace()) / d * torch.eye(d, dtype=m.dtype) for m in C]

        def tr(*letters: Tensor) -> float:
            return float((torch.linalg.multi_dot(letters) if len(letters) > 1 else letters[0]).trace()) / d

        t = [tr(m) for m in r]
        centred = [m - value * torch.eye(d, dtype=m.dtype) for m, value in zip(r, t)]
        first = math.prod(t) * tr(*c)
        predicted = {
            "Eq. 12": 0.0,
            "Eq. 13": t[0] * t[1] * tr(c[0], c[1]),
            "Eq. 14": t[0] * t[1] * t[2] * tr(c[0], c[1], c[2]),
            "Eq. 15": first
            + t[0] * t[2] * tr(centred[1], centred[3]) * tr(c[0], c[1]) * tr(c[2], c[3])
            + t[1] * t[3] * tr(centred[0], centred[2]) * tr(c[1], c[2]) * tr(c[0], c[3]),
        }
        observed: dict[str, list[float]] = {name: [] for name in predicted}
        for i in range(self.rotations):
            u = haar(d, run.seed, f"rotation {i}")
            turned = [c[j] @ (u * m.diagonal()) @ u.T for j, m in enumerate(r)]  # C_j R_j
            for count, name in enumerate(predicted, start=1):
                observed[name].append(tr(*turned[:count]))
        found: dict[str, Any] = {}
        for name, limit in predicted.items():
            mean = summary(observed[name])
            found[name] = {"mean": mean["mean"], "standard error": mean["sem"], "formula": limit}
        scale = math.sqrt(tr(c[0], c[0]) * tr(r[0], r[0]))
        found["Eq. 12"]["relative"] = abs(found["Eq. 12"]["mean"]) / scale
        found["Eq. 15"]["first term alone"] = first
        return {"d": d, "rotations": self.rotations, **found}

    @leg("free formulas")
    def free_formulas(self, run: Run) -> dict[str, Any]:
        """Eqs. 20, 22 and 28 over words of Haar-independent matrices, d × d, R of one network with k = d and k = 2d."""
        d = self.dimension
        found: dict[str, Any] = {"d": d, "draws": self.formula_draws}
        for k in (d, 2 * d):
            draws = []
            for i in range(self.formula_draws):
                spectra = torch.rand(2, d, generator=generator(run.seed, "free", i), dtype=torch.float64)
                u = haar(d, run.seed, f"basis {i}")
                A, B = (u * (0.1 + spectra[0].pow(3))) @ u.T, torch.diag(0.1 + spectra[1].pow(2))
                B = B + A / 2  # not free of A
                W, a = free.draw_network(d, k, run.seed + i)
                scaled = a[:, None] * W
                exact = free.word_traces(A, B, scaled.T @ scaled)
                r = free.trace_powers(W, a).tolist()
                data = free.DataTraces.of(A, B)
                made, printed = (free.predicted_traces(data, r, printed=flag) for flag in (False, True))
                draws.append(
                    {
                        "Eq. 20": made.numerator / exact.numerator,
                        "Eq. 22": made.first / exact.first,
                        "Eq. 28": made.second / exact.second,
                        "Eq. 28 as printed": printed.second / exact.second,
                        "rho": made.correlation - exact.correlation,
                        "printed rho": printed.correlation - exact.correlation,
                    }
                )
            found[f"k = {'2d' if k > d else 'd'}"] = {
                key: sum(one[key] for one in draws) / self.formula_draws for key in draws[0]
            }
        return found

    @leg("moments of R")
    def moments_of_r(self, run: Run) -> dict[str, Any]:
        """tr[R^p] over networks with d = k, and with d = k/2, against their limits and the exact means at these sizes."""
        found: dict[str, Any] = {"draws": self.networks, "width": self.width}
        for name, d in (("d = k", self.width), ("d = k/2", self.width // 2)):
            means, sems = free.drawn_moments(d, self.width, draws=self.networks, seed=run.seed)
            limit, exact = free.free_moments(d, self.width), gaussian.mean_moments(d, self.width)
            errors = [max(error, 1e-12) for error in sems]
            found[name] = {
                "mean": means,
                "limit": list(limit),
                "exact mean": list(exact),
                "standard errors from the limit": [(v - x) / e for v, x, e in zip(means, limit, errors)],
                "standard errors from the exact mean": [(v - x) / e for v, x, e in zip(means, exact, errors)],
            }
        return found

    @leg("Proposition 10")
    def proposition_10(self, run: Run) -> dict[str, Any]:
        """Means of 4 SRS and 16 SRBRS over initialisations; the coefficients of E[RBR] on Tr(B) I and B."""
        found: dict[str, Any] = {"draws": self.draws}
        for name, (k, d, n) in SIZES.items():
            X, y = normal(run.seed, f"x10 {name}", n, d), normal(run.seed, f"y10 {name}", n)
            S, B = X.T @ torch.diag(y) @ X, X.T @ X
            R, RBR = torch.zeros(d, d, dtype=torch.float64), torch.zeros(d, d, dtype=torch.float64)
            for some in _networks(self.draws, k, d, run.seed):
                R += some.sum(0) / self.draws
                RBR += (some @ B @ some).sum(0) / self.draws
            wanted = early.expected_derivatives(X, y, k)
            features = torch.stack([B.trace() * torch.eye(d, dtype=torch.float64), B]).flatten(1).T
            solved = torch.linalg.lstsq(features, RBR.flatten()[:, None]).solution.flatten().tolist()
            coefficients = rounded(solved, 12)  # the last digits depend on where in memory it lies
            nfm, agop = 4 * S @ R @ S, 16 * S @ RBR @ S
            printed = 3 * B.trace() * S @ S + 6 * S @ B @ S
            found[name] = {
                "nfm": relative(nfm, wanted.nfm),
                "agop": relative(agop, wanted.agop),
                "agop as printed": relative(agop, printed),
                "agop as printed, times 16": relative(agop, 16 * printed),
                "coefficients": coefficients,
                "theory": [3 / k, 1 + 5 / k],
            }
        return found

    @leg("Wick step")
    def wick_step(self, run: Run) -> dict[str, Any]:
        """The proof of Prop. 10: equal units give (3/k)(Tr(B) I + 2B); unequal ones, which it drops, (1 - 1/k) B."""
        k, d, n = 4, 3, 5
        X = normal(run.seed, "wick", n, d)
        B, eye = X.T @ X, torch.eye(d, dtype=torch.float64)
        equal, unequal = torch.zeros_like(B), torch.zeros_like(B)
        for scaled in _units(self.draws, k, d, run.seed):
            R = scaled.mT @ scaled
            lengths = ((scaled @ B) * scaled).sum(2, keepdim=True)  # a_s² w_sᵀBw_s
            alone = ((lengths * scaled).mT @ scaled).sum(0) / self.draws
            equal += alone
            unequal += (R @ B @ R).sum(0) / self.draws - alone
        return {
            "equal units": relative(equal, 3 / k * (B.trace() * eye + 2 * B)),
            "equal units as printed": relative(equal, 3 * (B.trace() * eye + 2 * B)),
            "unequal units": relative(unequal, (1 - 1 / k) * B),
            "unequal over all": float(unequal.norm() / (equal + unequal).norm()),
        }

    @leg("mean and covariance")
    def mean_and_covariance(self, run: Run) -> dict[str, Any]:
        """Eq. 5: the mean of each trace over initialisations is the trace of the means plus a covariance; sums and draws."""
        k, d, n = 8, 5, 6
        X, y = normal(run.seed, "x5", n, d), normal(run.seed, "y5", n)
        S, B = X.T @ torch.diag(y) @ X, X.T @ X
        values: dict[str, list[Tensor]] = {"numerator": [], "first": []}
        for R in _networks(self.draws, k, d, run.seed + 5):
            P, Q = S @ R @ S, S @ R @ B @ R @ S
            values["numerator"].append((P * Q).sum((1, 2)) / d)
            values["first"].append((P * P).sum((1, 2)) / d)
        exact, mean = early.expected_traces(X, y, k), early.expected_derivatives(X, y, k).traces
        parts = {"numerator": (exact.numerator, mean.numerator / 64), "first": (exact.first, mean.first / 16)}
        found: dict[str, Any] = {}
        for name, (whole, product) in parts.items():
            drawn = summary(torch.cat(values[name]).numpy())
            found[name] = {
                "mean": drawn["mean"],
                "standard error": drawn["sem"],
                "exact": whole,
                "mean term": product,
                "standard errors apart": (drawn["mean"] - whole) / drawn["sem"],
                "covariance over mean term": whole / product - 1,
            }
        return found

    @leg("wide limit")
    def wide_limit(self, run: Run) -> dict[str, Any]:
        """The covariance terms over the mean terms by width, n and d fixed: exact means, and the slope in log-log."""
        d, n = 6, 8
        X, y = normal(run.seed, "xw", n, d), normal(run.seed, "yw", n)
        found: dict[str, Any] = {"widths": list(WIDTHS)}
        for name, power in (("numerator", 64), ("first", 16), ("second", 256)):
            shares = []
            for k in (*WIDTHS, 4 * WIDTHS[-1], 16 * WIDTHS[-1]):
                whole = getattr(early.expected_traces(X, y, k), name)
                part = getattr(early.expected_derivatives(X, y, k).traces, name) / power
                shares.append(whole / part - 1)
            found[name] = shares
            found[f"{name} slope"] = math.log(shares[-1] / shares[-2]) / math.log(4)
        return found

    @leg("self-averaging")
    def self_averaging(self, run: Run) -> dict[str, Any]:
        """Assumptions 7 to 9: the spread of ρ and of tr[R⁴] over networks by size, and ρ by means of traces, n = d = k.

        `networks` of the largest size, more of the smaller ones, up to ten times as many.
        """
        counts = [min(10 * self.networks, self.networks * max(self.sizes) // size) for size in self.sizes]
        found: dict[str, Any] = {"sizes": list(self.sizes), "draws": counts}
        columns = ("spread of rho", "mean rho", "ratio of means", "free prediction", "spread of tr[R⁴]")
        found.update({name: [] for name in columns})
        for size, count in zip(self.sizes, counts):
            X = normal(run.seed, f"average {size}", size, size)
            y = 1 + normal(run.seed, f"average y {size}", size) / 2
            S, B = X.T @ torch.diag(y) @ X, X.T @ X
            A, traces, powers = S @ S, [], []
            for i in range(count):
                W, a = free.draw_network(size, size, run.seed + i)
                scaled = a[:, None] * W
                traces.append(free.word_traces(A, B, scaled.T @ scaled))
                powers.append(float(free.trace_powers(W, a)[3]))
            rho = np.array([one.correlation for one in traces])
            sums = free.Traces(
                *(sum(getattr(one, name) for one in traces) / count for name in ("numerator", "first", "second"))
            )
            predicted = early.quadratic_prediction(X, y, width=size).correlation
            spread = float(np.std(powers, ddof=1) / np.mean(powers))
            row = (float(rho.std(ddof=1)), float(rho.mean()), sums.correlation, predicted, spread)
            for name, value in zip(columns, row):
                found[name].append(value)
        return found


def haar(d: int, seed: int, name: str) -> Tensor:
    q, r = torch.linalg.qr(normal(seed, name, d, d))
    return q * r.diagonal().sign()


def _units(draws: int, k: int, d: int, seed: int) -> Iterator[Tensor]:
    """diag(a) W of many networks, some at a time."""
    random, left = generator(seed, "early time", "networks", k, d), draws
    while left:
        count = min(left, max(1, CHUNK // (k * d)))
        scaled = torch.randn(count, k, d, generator=random, dtype=torch.float64) / math.sqrt(k)
        scaled = scaled * torch.randn(count, k, 1, generator=random, dtype=torch.float64)
        yield scaled
        left -= count


def _networks(draws: int, k: int, d: int, seed: int) -> Iterator[Tensor]:
    """R of many networks, some at a time."""
    for scaled in _units(draws, k, d, seed):
        yield scaled.mT @ scaled
