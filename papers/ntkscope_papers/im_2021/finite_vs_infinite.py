"""The NTK review, sections 1 and 2: how near wide networks are to their limit, at initialisation and when trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope import infinite
from ntkscope.core import Claim, Record, generator
from ntkscope.core.random import derive_seed
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.results import once
from ntkscope_papers.im_2021.review_formulas import (
    EXAMPLE,
    FUNCTIONS,
    SHORT,
    example_cosine,
    normalisers,
    printed_ntk,
    recursion,
)
from ntkscope_papers.im_2021.wide import dense_ntk, relu_network, rounded, width_slope
from ntkscope_papers.im_2021.wide_training import Task

DELTA = 0.1  # of the theorem at initialisation: the quantile is 1 − δ
PUBLISHED = {
    claim.id.removeprefix("ntkreview-"): claim
    for claim in (
        Published("ntkreview-network-def", "Section 2", "Var f(x) = |x|²", "within 5 % at width >= 1000"),
        Published("ntkreview-csigma", "Section 2", {"relu": 2.0}, "quadrature within 1e-6"),
        Published(
            "ntkreview-sigma-recursion",
            "Section 2",
            "Σ and Σ̇ are Gaussian expectations under the previous layer's covariance",
            "Monte Carlo within 1 % and within 4 standard errors",
        ),
        Published(
            "ntkreview-ntk-formula",
            "Section 2",
            {"example": EXAMPLE},
            "mean of empirical NTKs at width 1024 within 3 standard errors; the printed sum equals the kernel to 1e-10",
            seeds=12,
        ),
        Published(
            "ntkreview-init-theorem",
            "Section 2",
            "widths of order L⁶/ε⁴ log(L/δ) bring the NTK within (L + 1) ε with probability 1 − δ",
            "the quantile falls with width, and the constant that the least width and depth need serves all others",
        ),
        Published(
            "ntkreview-init-inverse",
            "Section 5",
            "ε of order (L⁶ log(L/δ) / m)^(1/4)",
            "slope of log error against log width <= -0.25, interval included",
        ),
        Published(
            "ntkreview-trained-equivalence",
            "Section 2",
            "|f_nn − f_ntk| <= ε for small κ and a wide network",
            "the largest difference over test points falls with width at a small κ: slope and interval below 0",
        ),
        Published("ntkreview-kernel-regression", "Section 2", "k(x, X) H⁻¹ y", "training targets within 1e-6"),
        Published(
            "ntkreview-ntk-ingredients",
            "Section 1",
            "the limit depends on depth, nonlinearity and initial variance alone",
            "independent networks differ by width^(-1/2): slopes within 0.1 of -0.5",
        ),
        Published(
            "ntkreview-weights-move-less",
            "Section 1",
            "wider networks change their parameters less",
            "relative change falls with width in every layer; slope -0.5 ± 0.15 in the first and the last",
        ),
        Published(
            "ntkreview-kernel-constant",
            "Section 1",
            "the NTK stays fixed during training",
            "relative change of the empirical NTK falls with width: slope and interval below 0",
        ),
    )
}


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
        "hidden": (1, 2),
        "widths": (32, 64, 128, 256),
        "draws": 20,
        "samples": 50_000,
        "variance_draws": 40,
        "variance_width": 256,
        "train_widths": (32, 64, 128, 256),
        "kappas": (1.0, 0.3),
        "train_items": 8,
        "test_items": 10,
        "seeds": 2,
    }

    def measure(self, run: Run) -> None:
        total = 3 + len(self.hidden) * len(self.widths) + len(self.kappas) * len(self.train_widths) * self.seeds
        with run.record.stage("networks", total=total, progress="auto" if run.progress else False) as stage:

            def step(key: str, compute: Callable[[], dict[str, Any]]) -> None:
                once(run.record, key, compute)
                stage.advance(stage.done < total)

            step("normalisers", normalisers)
            step("recursion", partial(recursion, self.samples, max(self.hidden), run.seed))
            step("variance", partial(output_variance, self, run.seed))
            x = inputs_in_ball(self.inputs, self.dimension, run.seed)
            for hidden in self.hidden:
                for width in self.widths:
                    step(f"init/{hidden}/{width}", partial(at_start, x, hidden, width, self.draws, run.seed))
            task = Task.of(
                items=self.train_items,
                test_items=self.test_items,
                dimension=self.dimension,
                hidden=self.train_hidden,
                seed=run.seed,
            )
            once(run.record, "regression", task.regression)
            for kappa in self.kappas:
                for width in self.train_widths:
                    for s in range(self.seeds):
                        own = derive_seed(run.seed, "trained", s)
                        step(f"train/{kappa:g}/{width}/{s}", partial(task.trained, width, kappa, own))

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def output_variance(config: FiniteVsInfinite, seed: int) -> dict[str, Any]:
    """Var f(x) / |x|² over networks and outputs for two inputs; outputs of one network share its hidden layers."""
    x = inputs_in_ball(2, config.dimension, seed).float()
    ratios = []
    for s in range(config.variance_draws):
        own = derive_seed(seed, "variance", s)
        model = infinite.finite(
            relu_network(config.dimension, 2), (config.dimension,), config.variance_width, outputs=64, seed=own
        )
        with torch.no_grad():
            ratios.append((model(x).double().square().mean(1) / x.double().square().sum(1)).tolist())
    table = np.array(ratios)
    sem = table.std(0, ddof=1) / math.sqrt(len(table))
    return {
        "ratio": table.mean(0).tolist(),
        "sem": sem.tolist(),
        "width": config.variance_width,
        "networks": len(table),
    }


def inputs_in_ball(count: int, dimension: int, seed: int) -> Float[Tensor, "n d"]:
    """Inputs of norm at most 1; the first two are the ledger's pair, norms 1 and 0.9 with the cosine its example implies."""
    x = torch.randn(count, dimension, generator=generator(seed, "inputs"), dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    x[2:] *= torch.linspace(0.3, 1.0, max(count - 2, 1), dtype=torch.float64)[: count - 2, None]
    cosine = example_cosine()
    across = x[1] - (x[1] @ x[0]) * x[0]
    x[1] = SHORT * (cosine * x[0] + math.sqrt(1 - cosine**2) * across / across.norm())
    return x


def at_start(x: Float[Tensor, "n d"], hidden: int, width: int, draws: int, seed: int) -> dict[str, Any]:
    """Empirical NTKs of `draws` networks against the limit and against each other."""
    net = relu_network(x.shape[1], hidden)
    limit = infinite.kernel(net, x).dense()
    made = []
    for s in range(draws):
        model = infinite.finite(net, (x.shape[1],), width, seed=derive_seed(seed, "start", hidden, width, s))
        made.append(dense_ntk(model, x.float()))
    K = torch.stack(made)
    rows, columns = torch.triu_indices(len(x), len(x))
    off = (K - limit)[:, rows, columns]
    pair = K[:, 0, 1]
    halves = K[0 : 2 * (draws // 2) : 2], K[1::2]
    apart = [float((a - b).norm() / limit.norm()) for a, b in zip(*halves)]
    return {
        "rms": off.square().mean(1).sqrt().tolist(),
        "quantile": float(off.abs().quantile(1 - DELTA, dim=0).max()),
        "apart": apart,
        "pair": {
            "mean": float(pair.mean()),
            "sem": float(pair.std()) / math.sqrt(draws),
            "limit": float(limit[0, 1]),
            "printed": printed_ntk(x[0], x[1], hidden),
        },
    }


def judge(config: FiniteVsInfinite, record: Record, difference: str) -> Iterator[Claim]:
    """Every check on what the record holds."""

    def claim(name: str, measured: Any, holds: bool | None, note: str = "", **options: Any) -> Claim:
        return PUBLISHED[name].judged(measured, holds, **{"difference": difference, **options}, note=note)

    found = record.metrics
    variance = found["variance"]
    worst = max(abs(ratio - 1) for ratio in variance["ratio"])
    table = {"Var f / |x|²": [round(r, 4) for r in variance["ratio"]], "sem": [round(s, 4) for s in variance["sem"]]}
    note = "W with standard normal entries, no biases; W is d_h x d_{h-1} (printed d_h x h_{h-1})"
    yield claim("network-def", table, worst <= 0.05, note)
    constants = {name: found["normalisers"][name] for name in FUNCTIONS}
    apart = max(abs(one["c"] / one["quadrature"] - 1) for one in constants.values())
    relu = constants["relu"]
    measured = {name: round(one["quadrature"], 8) for name, one in constants.items()}
    right = apart <= 1e-6 and abs(relu["quadrature"] - 2) <= 1e-6
    yield claim("csigma", measured, right, f"largest relative difference {apart:.1e}", difference="")
    layers = [value for key, value in found["recursion"].items() if key != "seconds"]
    relative, errors = (max(one[key] for one in layers) for key in ("relative", "standard errors"))
    note = f"{len(layers)} expectations: relu, erf, tanh, gelu; Σ and Σ̇ of {max(config.hidden)} layers"
    measured = {"largest relative difference": round(relative, 5), "standard errors": round(errors, 2)}
    yield claim("sigma-recursion", measured, relative <= 0.01 and errors <= 4, note)
    yield from _at_start(config, found, claim)
    regression = found["regression"]
    interpolates = regression["training error"] <= 1e-6 and regression["against dynamics"] <= 1e-6
    measured = {key: regression[key] for key in ("training error", "smallest eigenvalue", "against dynamics")}
    yield claim("kernel-regression", measured, interpolates, "no ridge and no jitter")
    yield from _trained(config, found, claim)


def _at_start(config: FiniteVsInfinite, found: Any, claim: Callable[..., Claim]) -> Iterator[Claim]:
    near = min(config.widths, key=lambda width: abs(width - 1024))
    pairs = {L: found[f"init/{L}/{near}"]["pair"] for L in config.hidden}
    errors = {L: abs(p["mean"] - p["limit"]) / p["sem"] for L, p in pairs.items()}
    formula = max(abs(p["limit"] - p["printed"]) for p in pairs.values())
    example = max(abs(p["limit"] - EXAMPLE[L]) for L, p in pairs.items() if L in EXAMPLE)
    measured: dict[str, Any] = {
        f"L{L}": {"limit": round(p["limit"], 4), "mean": round(p["mean"], 4), "sem": round(p["sem"], 4)}
        for L, p in pairs.items()
    }
    holds = max(errors.values()) <= 3 and formula <= 1e-10 and example <= 1e-3
    note = (
        f"width {near}, {config.draws} networks; the printed sum differs from the kernel by {formula:.1e}; the ledger's"
        f" example within {example:.1e}, its cosine taken from L = 1"
    )
    yield claim("ntk-formula", measured, holds, note, seeds=config.draws)
    quantiles = {L: [found[f"init/{L}/{m}"]["quantile"] for m in config.widths] for L in config.hidden}
    needed = {
        L: [(q / (L + 1)) ** 4 * m / (L**6 * math.log(L / DELTA)) for q, m in zip(quantiles[L], config.widths)]
        for L in config.hidden
    }
    falls = all(late < early for column in quantiles.values() for early, late in zip(column, column[2:]))
    serves = all(c <= needed[config.hidden[0]][0] for column in needed.values() for c in column)
    measured = {
        f"L{L}, quantile {1 - DELTA:g} of |error|": {str(m): round(q, 4) for m, q in zip(config.widths, quantiles[L])}
        for L in config.hidden
    }
    measured["constant needed"] = {f"L{L}": [float(f"{c:.2g}") for c in (needed[L][0], needed[L][-1])] for L in needed}
    note = (
        "the theorem is an upper bound with an unstated constant; errors fall as width^(-1/2), faster than it promises"
    )
    yield claim("init-theorem", measured, falls and serves, note)
    slopes = {L: _init_slope(config, found, L, "rms") for L in config.hidden}
    note = "a bound from above: width^(-1/4) is promised, about width^(-1/2) measured"
    measured = {f"L{L}": rounded(slope) for L, slope in slopes.items()}
    yield claim("init-inverse", measured, all(slope["high"] <= -0.25 for slope in slopes.values()), note)
    slopes = {L: _init_slope(config, found, L, "apart") for L in config.hidden}
    measured = {f"L{L}": rounded(slope) for L, slope in slopes.items()}
    holds = all(abs(slope["slope"] + 0.5) <= 0.1 for slope in slopes.values())
    yield claim(
        "ntk-ingredients", measured, holds, "relative difference of two independent networks, slope and interval"
    )


def _init_slope(config: FiniteVsInfinite, found: Any, hidden: int, what: str) -> dict[str, float]:
    return width_slope(config.widths, [found[f"init/{hidden}/{m}"][what] for m in config.widths], power=2)


def _trained(config: FiniteVsInfinite, found: Any, claim: Callable[..., Claim]) -> Iterator[Claim]:
    def column(kappa: float, pick: Callable[[Any], float]) -> list[list[float]]:
        runs = range(config.seeds)
        return [[pick(found[f"train/{kappa:g}/{m}/{s}"]) for s in runs] for m in config.train_widths]

    def slope(kappa: float, pick: Callable[[Any], float]) -> dict[str, float]:
        return width_slope(config.train_widths, column(kappa, pick))

    small, plain = min(config.kappas), max(config.kappas)
    slopes = {k: slope(k, lambda one: one["difference"]) for k in config.kappas}
    measured: dict[str, Any] = {f"κ = {k:g}, slope": rounded(found) for k, found in slopes.items()}
    widest = {f"{k:g}": round(float(np.mean(column(k, lambda one: one["difference"])[-1])), 4) for k in config.kappas}
    measured[f"largest difference at width {config.train_widths[-1]} by κ"] = widest
    note = (
        f"judged at κ = {small:g}; the conditions lack the word poly: 1/κ = poly(…), m >= poly(…). A fixed κ leaves a"
        " difference of order κ, the output at the start, and a small one needs more width"
    )
    yield claim("trained-equivalence", measured, slopes[small]["high"] < 0, note)
    layers = config.train_hidden + 1
    moved = [slope(plain, lambda one, i=i: one["weights"][i]) for i in range(layers)]  # type: ignore[misc]
    outer = all(abs(moved[i]["slope"] + 0.5) <= 0.15 for i in (0, layers - 1))
    measured = {f"layer {i + 1}": rounded(one) for i, one in enumerate(moved)}
    note = "relative Frobenius norm; the inner matrices are width x width, so the same movement is width^(-1) of their norm"
    yield claim("weights-move-less", measured, outer and all(one["high"] < 0 for one in moved), note)
    kernel = slope(plain, lambda one: one["kernel"])
    ends = column(plain, lambda one: one["kernel"])
    measured = {
        "slope": rounded(kernel),
        "relative change": {str(config.train_widths[i]): round(float(np.mean(ends[i])), 4) for i in (0, -1)},
    }
    yield claim("kernel-constant", measured, kernel["high"] < 0, f"κ = {plain:g}, trained to residuals below 1e-3")


def draw(record: Record) -> dict[str, Any]:
    """Error at initialisation against width; difference to NTK regression; movement of weights and kernel."""
    config, found = record.config, record.metrics
    widths = list(config["widths"])
    figure, axes = drawing.canvas(1, 2, width=5.0)
    for i, hidden in enumerate(config["hidden"]):
        runs = [np.square(found[f"init/{hidden}/{m}"]["rms"]) for m in widths]
        slope = width_slope(widths, [found[f"init/{hidden}/{m}"]["rms"] for m in widths], power=2)
        label = f"L = {hidden}: slope {slope['slope']:.2f} [{slope['low']:.2f}, {slope['high']:.2f}]"
        drawing.line_with_errors(axes[0], widths, *_root_mean(runs), i, label)
        apart = [np.square(found[f"init/{hidden}/{m}"]["apart"]) for m in widths]
        slope = width_slope(widths, [found[f"init/{hidden}/{m}"]["apart"] for m in widths], power=2)
        label = f"L = {hidden}: slope {slope['slope']:.2f} [{slope['low']:.2f}, {slope['high']:.2f}]"
        drawing.line_with_errors(axes[1], widths, *_root_mean(apart), i, label)
    start = float(np.sqrt(np.square(found[f"init/{config['hidden'][-1]}/{widths[0]}"]["rms"]).mean()))
    drawing.power_law(axes[0], widths, start * 1.4, -0.25, "what the bound promises, width^(−1/4)")
    drawing.log_widths(axes[0], widths, "rms error of the empirical NTK")
    drawing.log_widths(axes[1], widths, "relative difference of two networks")
    trained, panels = drawing.canvas(1, 3, width=4.4)
    widths = list(config["train_widths"])

    def column(kappa: float, pick: Callable[[Any], float]) -> list[Any]:
        runs = range(config["seeds"])
        return [np.array([pick(found[f"train/{kappa:g}/{m}/{s}"]) for s in runs]) for m in widths]

    for i, kappa in enumerate(config["kappas"]):
        values = column(kappa, lambda one: one["difference"])
        drawing.line_with_errors(panels[0], widths, *_mean(values), i, f"κ = {kappa:g}")
    plain = max(config["kappas"])
    for layer in range(config["train_hidden"] + 1):
        values = column(plain, lambda one, layer=layer: one["weights"][layer])  # type: ignore[misc]
        drawing.line_with_errors(panels[1], widths, *_mean(values), layer, f"layer {layer + 1}")
    drawing.power_law(panels[1], widths, float(values[0].mean()) * 1.3, -0.5, "width^(−1/2)")
    drawing.line_with_errors(panels[2], widths, *_mean(column(plain, lambda one: one["kernel"])), 0, f"κ = {plain:g}")
    for axis, label in zip(
        panels, ("largest |f_nn − f_ntk| on test inputs", "‖ΔW‖ / ‖W‖", "relative change of the NTK")
    ):
        drawing.log_widths(axis, widths, label)
    return {"initialisation": figure, "training": trained}


def _mean(values: list[Any]) -> tuple[list[float], list[float]]:
    return [float(v.mean()) for v in values], [
        float(v.std(ddof=1) / len(v) ** 0.5) if len(v) > 1 else 0.0 for v in values
    ]


def _root_mean(squares: list[Any]) -> tuple[list[float], list[float]]:
    """Root mean square and its standard error, by the derivative of the root."""
    means, errors = _mean(squares)
    return [m**0.5 for m in means], [e / (2 * m**0.5) for m, e in zip(means, errors)]
