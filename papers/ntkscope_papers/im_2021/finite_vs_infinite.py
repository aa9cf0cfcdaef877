"""The NTK review, sections 1 and 2: how near wide networks are to their limit, at initialisation and when trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ntkscope import infinite
from ntkscope.core import Record, generator
from ntkscope.core.random import derive_seed
from ntkscope.infinite.layer import Layer
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import summary
from ntkscope_papers.im_2021 import review_formulas as formulas
from ntkscope_papers.im_2021.review_formulas import EXAMPLE
from ntkscope_papers.im_2021.wide import dense_ntk, descend, interval, relu_network, width_slope

DELTA = 0.1  # of the theorem at initialisation: the quantile is 1 − δ


@dataclass(frozen=True)
class FiniteVsInfinite(Experiment):
    """NTK review, sections 1 and 2: kernel error against width, trained wide networks against NTK regression.

    `draws`: networks per width at initialisation; `samples`: of the Monte Carlo under each layer's covariance.
    """

    name = "finite-vs-infinite"
    free = ("draws", "variance_draws", "seeds")

    dimension: int = 10
    inputs: int = 8
    hidden: tuple[int, ...] = (1, 2, 3)
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 100
    samples: int = 1_000_000
    variance_draws: int = 200
    variance_width: int = 1024
    train_hidden: int = 2
    train_widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    kappas: tuple[float, ...] = (1.0, 0.3, 0.1)
    train_items: int = 20
    test_items: int = 40
    seeds: int = 8

    smoke = {
        **{"hidden": (1, 2), "widths": (32, 64, 128, 256), "draws": 20, "samples": 50_000},
        **{"variance_draws": 40, "variance_width": 256},
        **{"train_widths": (32, 64, 128, 256), "kappas": (1.0, 0.3), "train_items": 8, "test_items": 10, "seeds": 2},
    }

    def prepare(self, run: Run) -> Task:
        return Task.of(self.train_items, self.test_items, self.dimension, hidden=self.train_hidden, seed=run.seed)

    @leg()
    def normalisers(self, run: Run) -> dict[str, Any]:
        return formulas.normalisers()

    @leg()
    def recursion(self, run: Run) -> dict[str, Any]:
        return formulas.recursion(self.samples, max(self.hidden), run.seed)

    @leg()
    def variance(self, run: Run) -> dict[str, Any]:
        """Var f(x) / |x|² over networks and outputs for two inputs; outputs of one network share its hidden layers."""
        x = inputs_in_ball(2, self.dimension, run.seed).float()
        net, ratios = relu_network(self.dimension, 2), []
        for s in range(self.variance_draws):
            seed = derive_seed(run.seed, "variance", s)
            model = infinite.finite(net, (self.dimension,), self.variance_width, outputs=64, seed=seed)
            with torch.no_grad():
                ratios.append((model(x).double().square().mean(1) / x.double().square().sum(1)).tolist())
        table = np.array(ratios)
        return {
            "ratio": table.mean(0).tolist(),
            "sem": (table.std(0, ddof=1) / math.sqrt(len(table))).tolist(),
            "width": self.variance_width,
            "networks": len(table),
        }

    @leg("init/{}/{}", over=lambda self: product(self.hidden, self.widths))
    def at_start(self, run: Run, hidden: int, width: int) -> dict[str, Any]:
        """Empirical NTKs of `draws` networks against the limit and against each other."""
        x = inputs_in_ball(self.inputs, self.dimension, run.seed)
        net = relu_network(self.dimension, hidden)
        limit = infinite.kernel(net, x).dense()
        seeds = [derive_seed(run.seed, "start", hidden, width, s) for s in range(self.draws)]
        models = (infinite.finite(net, (self.dimension,), width, seed=seed) for seed in seeds)
        K = torch.stack([dense_ntk(model, x.float()) for model in models])
        rows, columns = torch.triu_indices(len(x), len(x))
        off = (K - limit)[:, rows, columns]
        pair = K[:, 0, 1]
        halves = K[0 : 2 * (self.draws // 2) : 2], K[1::2]
        return {
            "rms": off.square().mean(1).sqrt().tolist(),
            "quantile": float(off.abs().quantile(1 - DELTA, dim=0).max()),
            "apart": [float((a - b).norm() / limit.norm()) for a, b in zip(*halves)],
            "pair": {
                "mean": float(pair.mean()),
                "sem": float(pair.std()) / math.sqrt(self.draws),
                "limit": float(limit[0, 1]),
                "printed": formulas.printed_ntk(x[0], x[1], hidden),
            },
        }

    @leg()
    def regression(self, run: Run) -> dict[str, Any]:
        """NTK regression on its own training inputs, and against the closed form of training without end."""
        y, H, K_test = run.data.y, run.data.H, run.data.K_test
        values = torch.linalg.eigvalsh(H)
        fitted = infinite.kernel_regression(H, y, H)
        predicted = infinite.kernel_regression(H, y, K_test)
        ended = infinite.dynamics(H, y).predict(K_test).mean[:, 0]
        return {
            "smallest eigenvalue": float(values[0]),
            "largest eigenvalue": float(values[-1]),
            "training error": float((fitted - y).abs().max()),
            "against dynamics": float((predicted - ended).abs().max()),
            "spread of predictions": float(predicted.std()),
        }

    @leg("train/{:g}/{}/{}", over=lambda self: product(self.kappas, self.train_widths, range(self.seeds)))
    def trained(self, run: Run, kappa: float, width: int, s: int) -> dict[str, Any]:
        """A network of output κ f trained to convergence: how far from NTK regression, how far its weights and NTK moved."""
        task, n = run.data, self.train_items
        x, y = task.x.float(), task.y.float()
        model = infinite.finite(task.net, (self.dimension,), width, seed=derive_seed(run.seed, "trained", s))
        started = [p.detach().clone() for p in model.parameters()]
        before = dense_ntk(model, x)
        top = float(torch.linalg.eigvalsh(before[:n, :n])[-1])
        found = descend(model, x[:n], y, lr=0.5 / (kappa**2 * top), kappa=kappa)
        with torch.no_grad():
            outputs = kappa * model(x[n:])[:, 0].double()
        expected = infinite.kernel_regression(task.H, task.y, task.K_test)
        after = dense_ntk(model, x)
        return {
            **found,
            "difference": float((outputs - expected).abs().max()),
            "kernel": float((after - before).norm() / before.norm()),
            "weights": [float((p.detach() - w).norm() / w.norm()) for p, w in zip(model.parameters(), started)],
        }

    @claim("ntkreview-network-def", "Section 2", "Var f(x) = |x|²")
    def output_variance(self, record: Record) -> Reading:
        """within 5 % at width >= 1000"""
        found = record.metrics["variance"]
        worst = max(abs(ratio - 1) for ratio in found["ratio"])
        measured = {"Var f / |x|²": [round(r, 4) for r in found["ratio"]], "sem": [round(s, 4) for s in found["sem"]]}
        note = (
            "W with standard normal entries, no biases, two hidden layers of ReLU; a consequence of the definition;"
            " W is d_h x d_{h-1} (printed d_h x h_{h-1})"
        )
        return Reading(measured, worst <= 0.05, note)

    @claim("ntkreview-csigma", "Section 2", {"relu": 2.0})
    def normaliser(self, record: Record) -> Reading:
        """quadrature within 1e-6"""
        constants = {name: record.metrics["normalisers"][name] for name in formulas.FUNCTIONS}
        apart = max(abs(one["c"] / one["quadrature"] - 1) for one in constants.values())
        measured = {name: round(one["quadrature"], 8) for name, one in constants.items()}
        holds = apart <= 1e-6 and abs(constants["relu"]["quadrature"] - 2) <= 1e-6
        return Reading(measured, holds, f"largest relative difference {apart:.1e}", exact=True)

    @claim(
        "ntkreview-sigma-recursion",
        "Section 2",
        "Σ and Σ̇ are Gaussian expectations under the previous layer's covariance",
    )
    def expectations(self, record: Record) -> Reading:
        """Monte Carlo within 1 % and within 4 standard errors"""
        layers = [value for key, value in record.metrics["recursion"].items() if key != "seconds"]
        relative, errors = (max(one[key] for one in layers) for key in ("relative", "standard errors"))
        measured = {"largest relative difference": round(relative, 5), "standard errors": round(errors, 2)}
        note = f"{len(layers)} expectations: relu, erf, tanh, gelu; Σ and Σ̇ of {max(self.hidden)} layers"
        return Reading(measured, relative <= 0.01 and errors <= 4, note)

    @claim("ntkreview-ntk-formula", "Section 2", {"example": EXAMPLE}, seeds=12)
    def formula(self, record: Record) -> Reading:
        """mean of empirical NTKs at width 1024 within 3 standard errors; the printed sum equals the kernel to 1e-10"""
        near = min(self.widths, key=lambda width: abs(width - 1024))
        pairs = {L: record.metrics[f"init/{L}/{near}"]["pair"] for L in self.hidden}
        errors = max(abs(p["mean"] - p["limit"]) / p["sem"] for p in pairs.values())
        printed = max(abs(p["limit"] - p["printed"]) for p in pairs.values())
        example = max(abs(p["limit"] - EXAMPLE[L]) for L, p in pairs.items() if L in EXAMPLE)
        measured = {f"L{L}": {key: round(p[key], 4) for key in ("limit", "mean", "sem")} for L, p in pairs.items()}
        note = (
            f"width {near}, {self.draws} networks; the printed sum differs from the kernel by {printed:.1e}; the ledger's"
            f" example within {example:.1e}, its cosine taken from L = 1"
        )
        holds = errors <= 3 and printed <= 1e-10 and example <= 1e-3
        return Reading(measured, holds, note, seeds=self.draws)

    @claim(
        "ntkreview-init-theorem",
        "Section 2",
        "widths of order L⁶/ε⁴ log(L/δ) bring the NTK within (L + 1) ε with probability 1 − δ",
    )
    def theorem(self, record: Record) -> Reading:
        """the quantile falls from width to width, and the constant that the least width and depth need serves all others"""
        quantiles = {L: [record.metrics[f"init/{L}/{m}"]["quantile"] for m in self.widths] for L in self.hidden}
        needed = {
            L: [(q / (L + 1)) ** 4 * m / (L**6 * math.log(L / DELTA)) for q, m in zip(quantiles[L], self.widths)]
            for L in self.hidden
        }
        falls = all(late < early for column in quantiles.values() for early, late in pairwise(column))
        serves = all(c <= needed[self.hidden[0]][0] for column in needed.values() for c in column)
        measured: dict[str, Any] = {
            f"L{L}, quantile {1 - DELTA:g} of |error|": {str(m): round(q, 4) for m, q in zip(self.widths, column)}
            for L, column in quantiles.items()
        }
        ends = {f"L{L}": [float(f"{c:.2g}") for c in (column[0], column[-1])] for L, column in needed.items()}
        measured["constant needed"] = ends
        note = "the theorem is an upper bound with an unstated constant; errors fall as width^(-1/2), faster than it promises"
        return Reading(measured, falls and serves, note)

    @claim("ntkreview-init-inverse", "Section 5", "ε of order (L⁶ log(L/δ) / m)^(1/4)")
    def error_slopes(self, record: Record) -> Reading:
        """slope of log error against log width <= -0.25, interval included"""
        slopes = {L: self._start_slope(record, L, "rms") for L in self.hidden}
        measured = {f"L{L}": interval(slope) for L, slope in slopes.items()}
        note = "a bound from above: width^(-1/4) is promised, about width^(-1/2) measured"
        return Reading(measured, all(slope["high"] <= -0.25 for slope in slopes.values()), note)

    @claim("ntkreview-trained-equivalence", "Section 2", "|f_nn − f_ntk| <= ε for small κ and a wide network")
    def equivalence(self, record: Record) -> Reading:
        """the largest difference over test points falls with width at a small κ: slope and interval below 0"""
        found = {kappa: self._networks(record, kappa, "difference") for kappa in self.kappas}
        slopes = {kappa: width_slope(self.train_widths, table) for kappa, table in found.items()}
        small = min(self.kappas)
        measured: dict[str, Any] = {f"κ = {kappa:g}, slope": interval(slope) for kappa, slope in slopes.items()}
        measured[f"largest difference at width {self.train_widths[-1]} by κ"] = {
            f"{kappa:g}": round(float(table[-1].mean()), 4) for kappa, table in found.items()
        }
        note = (
            f"judged at κ = {small:g}; the conditions lack the word poly: 1/κ = poly(…), m >= poly(…). A fixed κ leaves a"
            " difference of order κ, the output at the start, and a small one needs more width"
        )
        return Reading(measured, slopes[small]["high"] < 0, note)

    @claim("ntkreview-kernel-regression", "Section 2", "k(x, X) H⁻¹ y")
    def interpolation(self, record: Record) -> Reading:
        """training targets within 1e-6"""
        found = record.metrics["regression"]
        measured = {key: found[key] for key in ("training error", "smallest eigenvalue", "against dynamics")}
        holds = found["training error"] <= 1e-6 and found["against dynamics"] <= 1e-6
        return Reading(measured, holds, "no ridge and no jitter")

    @claim(
        "ntkreview-ntk-ingredients", "Section 1", "the limit depends on depth, nonlinearity and initial variance alone"
    )
    def independent_networks(self, record: Record) -> Reading:
        """independent networks differ by width^(-1/2): slopes and their intervals within 0.1 of -0.5"""
        slopes = {L: self._start_slope(record, L, "apart") for L in self.hidden}
        measured = {f"L{L}": interval(slope) for L, slope in slopes.items()}
        holds = all(slope["low"] >= -0.6 and slope["high"] <= -0.4 for slope in slopes.values())
        note = (
            "relative difference of two independent networks, slope and interval; that the draw does not matter: networks of"
            " ReLU with Gaussian weights alone, no other law of the same variance"
        )
        return Reading(measured, holds, note)

    @claim("ntkreview-weights-move-less", "Section 1", "wider networks change their parameters less")
    def weights(self, record: Record) -> Reading:
        """relative change falls with width in every layer; slope -0.5 ± 0.15 in the first and the last"""
        table = self._networks(record, max(self.kappas), "weights")
        moved = [width_slope(self.train_widths, table[..., i]) for i in range(self.train_hidden + 1)]
        outer = all(abs(one["slope"] + 0.5) <= 0.15 for one in (moved[0], moved[-1]))
        measured = {f"layer {i + 1}": interval(one) for i, one in enumerate(moved)}
        note = "relative Frobenius norm; the inner matrices are width x width, so the same movement is width^(-1) of their norm"
        return Reading(measured, outer and all(one["high"] < 0 for one in moved), note)

    @claim("ntkreview-kernel-constant", "Section 1", "the NTK stays fixed during training")
    def kernel_change(self, record: Record) -> Reading:
        """relative change of the empirical NTK falls with width: slope and interval below 0"""
        plain = max(self.kappas)
        table = self._networks(record, plain, "kernel")
        slope = width_slope(self.train_widths, table)
        ends = {str(self.train_widths[i]): round(float(table[i].mean()), 4) for i in (0, -1)}
        measured = {"slope": interval(slope), "relative change": ends}
        return Reading(measured, slope["high"] < 0, f"κ = {plain:g}, trained to residuals below 1e-3")

    def _start_slope(self, record: Record, hidden: int, what: str) -> dict[str, float]:
        return width_slope(self.widths, self._start(record, hidden, what), power=2)

    def _start(self, record: Record, hidden: int, what: str) -> list[Any]:
        """What was measured at initialisation, by width."""
        return [record.metrics[f"init/{hidden}/{m}"][what] for m in self.widths]

    def _networks(self, record: Record, kappa: float, what: str) -> Any:
        """What was measured on trained networks: an array of widths, seeds and, for weights, layers."""
        runs = range(self.seeds)
        return np.array([[record.metrics[f"train/{kappa:g}/{m}/{s}"][what] for s in runs] for m in self.train_widths])

    @figure
    def initialisation(self, record: Record) -> Figure:
        """Error against width, and the difference of two networks."""
        drawn, axes = drawing.canvas(1, 2, width=5.0)
        for i, hidden in enumerate(self.hidden):
            for axis, what in zip(axes, ("rms", "apart")):
                slope = self._start_slope(record, hidden, what)
                label = f"L = {hidden}: slope {slope['slope']:.2f} [{slope['low']:.2f}, {slope['high']:.2f}]"
                drawing.summaries(axis, self.widths, map(root_mean_square, self._start(record, hidden, what)), i, label)
        first = root_mean_square(self._start(record, self.hidden[-1], "rms")[0])["mean"]
        drawing.power_law(axes[0], self.widths, first * 1.4, -0.25, "what the bound promises, width^(−1/4)")
        drawing.log_widths(axes[0], self.widths, "rms error of the empirical NTK")
        drawing.log_widths(axes[1], self.widths, "relative difference of two networks")
        return drawn

    @figure
    def training(self, record: Record) -> Figure:
        """Difference to NTK regression; movement of weights and kernel."""
        drawn, axes = drawing.canvas(1, 3, width=4.4)
        widths, plain = self.train_widths, max(self.kappas)
        for i, kappa in enumerate(self.kappas):
            table = self._networks(record, kappa, "difference")
            drawing.summaries(axes[0], widths, map(summary, table), i, f"κ = {kappa:g}")
        weights = self._networks(record, plain, "weights")
        for i in range(self.train_hidden + 1):
            drawing.summaries(axes[1], widths, map(summary, weights[..., i]), i, f"layer {i + 1}")
        drawing.power_law(axes[1], widths, float(weights[0, :, -1].mean()) * 1.3, -0.5, "width^(−1/2)")
        drawing.summaries(axes[2], widths, map(summary, self._networks(record, plain, "kernel")), 0, f"κ = {plain:g}")
        labels = ("largest |f_nn − f_ntk| on test inputs", "‖ΔW‖ / ‖W‖", "relative change of the NTK")
        for axis, label in zip(axes, labels):
            drawing.log_widths(axis, widths, label)
        return drawn


@dataclass(frozen=True, eq=False)
class Task:
    """A few unit vectors with random signs, as many unit vectors to test on, and the limit's kernel of all of them."""

    x: Tensor
    y: Tensor
    net: Layer
    H: Tensor
    K_test: Tensor

    @classmethod
    def of(cls, items: int, test_items: int, dimension: int, *, hidden: int, seed: int) -> Task:
        draw = generator(seed, "task")
        x = torch.randn(items + test_items, dimension, generator=draw, dtype=torch.float64)
        x = x / x.norm(dim=1, keepdim=True)
        y = torch.randint(0, 2, (items,), generator=draw).double() * 2 - 1
        net = relu_network(dimension, hidden)
        K = infinite.kernel(net, x).dense()
        return cls(x, y, net, K[:items, :items], K[items:, :items])


def inputs_in_ball(count: int, dimension: int, seed: int) -> Float[Tensor, "n d"]:
    """Inputs of norm at most 1; the first two are the ledger's pair, norms 1 and 0.9 with the cosine its example implies."""
    x = torch.randn(count, dimension, generator=generator(seed, "inputs"), dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    x[2:] *= torch.linspace(0.3, 1.0, max(count - 2, 1), dtype=torch.float64)[: count - 2, None]
    cosine = formulas.example_cosine()
    across = x[1] - (x[1] @ x[0]) * x[0]
    x[1] = formulas.SHORT * (cosine * x[0] + math.sqrt(1 - cosine**2) * across / across.norm())
    return x


def root_mean_square(values: list[float]) -> dict[str, float]:
    """The root mean square and its standard error, by the derivative of the root."""
    squares = summary(np.square(values))
    root = squares["mean"] ** 0.5
    return {"mean": root, "sem": squares["sem"] / (2 * root)}
