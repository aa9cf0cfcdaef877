"""Wang et al., section 4.1: Lemma 4.1, Eq. 83, Theorem 4.2 and Corollary 4.3 on networks of linear width, with their errata."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ntkscope.core import Record
from ntkscope.measures.spectra import compare
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.results import under
from ntkscope_papers.wang_2023 import lazy
from ntkscope_papers.wang_2023 import lazy_claims as claims
from ntkscope_papers.wang_2023.two_layer import (
    Descent,
    Shape,
    conjugate_kernel,
    descend,
    first_layer_kernel,
    items_of,
    network,
    sigma,
    weights_of,
)

LABELS = {"weights": "W/√d", "ck": "CK", "ntk": "NTK", "ck without 1/√d": "CK without 1/√d"}
LAWS = {"sign": "v = ±1", "normal": "v normal", "uniform": "v uniform"}


@dataclass(frozen=True)
class LazyBounds(Experiment):
    """Linear-width networks, Section 4.1: how far gradient descent moves weights and kernels, against the printed bounds.

    `sizes`: n of Lemma 4.1 and Corollary 4.3, with d = n/2 and h = 3n/4. `dimensions`: d of Eq. 83.

    `early_seeds`: networks of Lemma 4.1, the first `seeds` of which have their eigenvectors compared. `shapes`: (n, d, h) of
    Theorem 4.2. `share`: of its largest step. `factors`: steps tried for stability, in 2n/λ_max. `scale`: σ is multiplied by it
    where the printed constant of the theorem is read as α.
    """

    name = "lazy-bounds"
    statements = claims_of(claims)
    free = ("seeds", "early_seeds")

    sizes: tuple[int, ...] = (128, 256, 512, 1024)
    dimensions: tuple[int, ...] = (100, 200, 400, 1000)
    shapes: tuple[tuple[int, ...], ...] = ((200, 100, 150), (200, 100, 1000), (200, 400, 600))
    early_rate: float = 1.0
    early_steps: tuple[int, ...] = (1, 5)
    share: float = 0.99
    theorem_steps: int = 400
    scale: float = 3.0
    training_steps: int = 6000
    stop: float = 1e-5
    factors: tuple[float, ...] = (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 4.0, 16.0)
    stable_steps: int = 60
    seeds: int = 3
    early_seeds: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", tuple(tuple(shape) for shape in self.shapes))

    smoke = {
        "sizes": (32, 64),
        "dimensions": (20, 40),
        "shapes": ((40, 20, 30),),
        "theorem_steps": 60,
        "training_steps": 300,
        "stop": 1e-3,
        "factors": (0.5, 1.0, 2.0, 4.0),
        "stable_steps": 30,
        "seeds": 2,
        "early_seeds": 3,
    }

    def seeds_of(self, run: Run) -> range:
        return range(run.seed, run.seed + self.seeds)

    def rates(self, shape: Shape, alphas: Sequence[float], constants: Sequence[float]) -> list[float]:
        """`share` of the theorem's largest step for each network."""
        return [
            self.share * lazy.largest_rate(alpha, shape.items, shape.ratio, constant)
            for alpha, constant in zip(alphas, constants)
        ]

    @leg()
    def constants(self, run: Run) -> dict[str, Any]:
        return constants()

    @leg("least/{}", over=lambda self: self.dimensions)
    def least(self, run: Run, d: int) -> dict[str, Any]:
        """λ_min of the first layer's NTK for three laws of v; both ends of the full NTK's spectrum for v ~ N(0, 1)."""
        shape, rows = Shape.of(d), []
        for seed in self.seeds_of(run):
            x, row = items_of(shape, seed, run.device).x, {}
            for law in LAWS:
                W, v = (weight.to(run.device) for weight in weights_of(network(shape, seed, law=law)))
                K = first_layer_kernel(W, v, x)
                row[law] = float(torch.linalg.eigvalsh(K)[0])
                if law == "normal":
                    whole = torch.linalg.eigvalsh(K + conjugate_kernel(W, x))
                    row |= {"full, least": float(whole[0]), "full, largest": float(whole[-1])}
            rows.append(row)
        return {"dimension": d} | columns(rows)

    @leg("early/{}", over=lambda self: self.sizes)
    def early(self, run: Run, n: int) -> dict[str, Any]:
        """Lemma 4.1: changes after each number of steps; for the first networks those of all eigenvalues and eigenvectors."""
        shape, seeds = Shape.of(n // 2), range(run.seed, run.seed + self.early_seeds)
        found: dict[str, Any] = {"items": shape.items}
        for count in self.early_steps:
            descent = descend(shape, seeds, [self.early_rate] * len(seeds), steps=count, device=run.device)
            found[f"t={count}"] = columns(changes(descent, member) for member in range(len(seeds)))
        found["shifts"] = columns(shifts(descent, member) for member in range(min(self.seeds, len(seeds))))
        return found

    @leg("theorem/{}/{}", over=lambda self: product((Shape(*shape) for shape in self.shapes), ("kernel", "bound")))
    def theorem(self, run: Run, shape: Shape, source: str) -> dict[str, Any]:
        """Theorem 4.2 at `share` of its largest step, α from each kernel or from Eq. 83."""
        seeds = self.seeds_of(run)
        alphas = [lazy.alpha_of(lazy.least_eigenvalue_bound(sigma))] * len(seeds)
        if source == "kernel":
            alphas = own_alphas(shape, seeds, run.device)
        rates = self.rates(shape, alphas, [lazy.lipschitz_constant(sigma)] * len(seeds))
        descent = descend(shape, seeds, rates, steps=self.theorem_steps, device=run.device, follow="all")
        return {"alpha": alphas, "rate": rates} | inequalities(descent, alphas, rates)

    @leg()
    def misread(self, run: Run) -> dict[str, Any]:
        """σ multiplied by `scale`: Eq. 84 at the step for λ_σ, and at the one for the printed λ_α read as α."""
        shape, seeds = Shape(*self.shapes[0]), self.seeds_of(run)
        alphas = own_alphas(shape, seeds, run.device, self.scale)
        found: dict[str, Any] = {"scale": self.scale, "alpha": alphas}
        lipschitz = [self.scale * lazy.lipschitz_constant(sigma)] * len(seeds)
        options: dict[str, Any] = {"steps": self.theorem_steps, "device": run.device, "scale": self.scale}
        for name, constant in (("λ_σ", lipschitz), ("λ_α = α", alphas)):
            rates = self.rates(shape, alphas, constant)
            descent = descend(shape, seeds, rates, follow="all", **options)
            found[name] = {"rate": rates, **inequalities(descent, alphas, rates)}
        return found

    @leg("stable/{}", over=lambda self: self.sizes)
    def stable(self, run: Run, n: int) -> dict[str, Any]:
        """The largest step for which the residual never rises, in 2n/λ_max: between two of `factors`, their geometric mean.

        `highest` and `left` are, for each factor, the largest and the last residual over the first, averaged over networks:
        with v fixed and σ bounded outputs are bounded, so that descent rises beyond the threshold and then finds a flatter
        place.
        """
        shape, seeds = Shape.of(n // 2), self.seeds_of(run)
        tops = [float(torch.linalg.eigvalsh(initial_kernel(shape, seed, run.device))[-1]) for seed in seeds]
        rates = [2 * shape.items / top * factor for top in tops for factor in self.factors]
        repeated = [seed for seed in seeds for _ in self.factors]
        descent = descend(shape, repeated, rates, steps=self.stable_steps, device=run.device, follow="all")
        residuals = np.stack(descent.residuals, axis=1).reshape(len(seeds), len(self.factors), -1)
        falls = np.all(np.diff(residuals) <= 0, axis=-1)
        relative = residuals / residuals[..., :1]
        return {
            "items": shape.items,
            "largest eigenvalue": tops,
            "falls": [threshold(falls[i], self.factors) for i in range(len(seeds))],
            "highest": relative.max(-1).mean(0).tolist(),
            "left": relative[..., -1].mean(0).tolist(),
        }

    @leg("training/{}", over=lambda self: self.sizes)
    def training(self, run: Run, n: int) -> dict[str, Any]:
        """Corollary 4.3: gradient descent at `share` of the theorem's largest step to a loss of `stop`; path and changes."""
        shape, seeds = Shape.of(n // 2), self.seeds_of(run)
        alphas = own_alphas(shape, seeds, run.device)
        rates = self.rates(shape, alphas, [lazy.lipschitz_constant(sigma)] * len(seeds))
        options: dict[str, Any] = {"steps": self.training_steps, "stop": self.stop, "device": run.device}
        descent = descend(shape, seeds, rates, follow="moves", **options)
        starts, left = descent.residual(descent.start), descent.residual(descent.end)
        moves = np.stack(descent.moves, axis=1)
        rows = []
        for member, alpha in enumerate(alphas):
            path, first = float(moves[member].sum()), float(starts[member])
            (ck0, ntk0), (ck, ntk) = (kernels(descent, member, W) for W in (descent.start, descent.end))
            old, new = descent.start[member], descent.end[member]
            spectra = {"weights": (old.T @ old / len(old), new.T @ new / len(new)), "ck": (ck0, ck), "ntk": (ntk0, ntk)}
            distances = {
                f"{name}, KS": compare(*(torch.linalg.eigvalsh(K) for K in pair)).ks for name, pair in spectra.items()
            }
            rows.append(
                {
                    "steps": descent.steps[member],
                    "loss": float(left[member]) ** 2 / (2 * shape.items),
                    "path": path,
                    "start": float(old.norm()),
                    "path over Eq. 86": path * alpha / (4 * first),
                    "path over Eq. 86, ℓ the loss": path * alpha / (4 * first**2 / (2 * shape.items)),
                    "weights": float((new - old).norm()) / math.sqrt(shape.dimension),
                    "ck": float((ck - ck0).norm()),
                    "ntk": float((ntk - ntk0).norm()),
                    **distances,
                }
            )
        return {"items": shape.items, "width": shape.width, "dimension": shape.dimension} | columns(rows)

    @figure
    def lazy(self, record: Record) -> Figure:
        """Changes after one and more steps, after all of training, and the least eigenvalue between bound and limit."""
        drawn, (early, ended, least) = drawing.canvas(1, 3, width=4.2)
        count = max(self.early_steps)
        steps = {n: run[f"t={count}"] for n, run in by_size(record, "early/").items()}
        if steps:
            first = float(np.mean(steps[min(steps)]["weights"]))
            drawing.power_law(early, list(steps), first, -1, "1/n")
        draw_changes(early, steps, tuple(LABELS), f"change after {count} steps")
        draw_changes(ended, by_size(record, "training/"), claims.CHANGES, "change after training")
        runs = by_size(record, "least/")
        for i, (law, title) in enumerate(LAWS.items()):
            spread = [np.ptp(run[law]) / 2 for run in runs.values()]
            drawing.line_with_errors(least, list(runs), [np.mean(run[law]) for run in runs.values()], spread, i, title)
        found = record.metrics.get("constants", {})
        for name, style in (("bound", "--"), ("limit", ":")):
            if name in found:
                least.axhline(found[name], color="#555555", linestyle=style, linewidth=1, label=f"{name}, E v² = 1")
        least.set_ylim(bottom=0)
        drawing.label(least, x="d", y="least eigenvalue of the first-layer NTK", legend=True)
        return drawn


def constants() -> dict[str, Any]:
    """Of the normalised tanh: a_σ, η, λ_σ, Eq. 83's bound, the limit at Table 8's ratio, α of the bound."""
    moments = lazy.slope_moments(sigma)
    bound = lazy.least_eigenvalue_bound(sigma)
    return {
        "a": moments.second,
        "eta squared": [eta**2 for eta in moments.coefficients],
        "lipschitz": lazy.lipschitz_constant(sigma),
        "bound": bound,
        "limit": lazy.least_eigenvalue_limit(sigma, 2.0),
        "alpha of the bound": lazy.alpha_of(bound),
    }


def initial_kernel(shape: Shape, seed: int, device: torch.device) -> Float[Tensor, "n n"]:
    """The first layer's NTK of a fresh network."""
    W, v = (weight.to(device) for weight in weights_of(network(shape, seed)))
    return first_layer_kernel(W, v, items_of(shape, seed, device).x)


def own_alphas(shape: Shape, seeds: Iterable[int], device: torch.device, scale: float = 1.0) -> list[float]:
    """α from the least eigenvalue of each network's own kernel."""
    least = (float(torch.linalg.eigvalsh(initial_kernel(shape, seed, device))[0]) for seed in seeds)
    return [lazy.alpha_of(scale**2 * value) for value in least]


def kernels(descent: Descent, member: int, W: Float[Tensor, "k h d"]) -> tuple[Tensor, Tensor]:
    """CK and the first layer's NTK of a member with weights W."""
    x = descent.parts[member].x
    return conjugate_kernel(W[member], x), first_layer_kernel(W[member], descent.readout[member], x)


def changes(descent: Descent, member: int) -> dict[str, float]:
    """Norms of what descent changed in W/√d, CK and NTK."""
    (ck0, ntk0), (ck, ntk) = (kernels(descent, member, W) for W in (descent.start, descent.end))
    x = descent.parts[member].x
    printed = [conjugate_kernel(W[member], x, divided=False) for W in (descent.start, descent.end)]
    moved = descent.end[member] - descent.start[member]
    return {
        "weights": float(moved.norm()) / math.sqrt(moved.shape[1]),
        "ck": float((ck - ck0).norm()),
        "ntk": float(torch.linalg.eigvalsh(ntk - ntk0).abs().max()),
        "ntk, Frobenius": float((ntk - ntk0).norm()),
        "ck without 1/√d": float((printed[1] - printed[0]).norm()),
    }


def shifts(descent: Descent, member: int) -> dict[str, float]:
    """The largest shift of a singular value of W/√d, of an eigenvalue of CK and NTK; |cos| of eigenvectors with old ones."""
    root = math.sqrt(descent.start.shape[2])
    old, new = (torch.linalg.svdvals(W[member] / root) for W in (descent.start, descent.end))
    found = {"weights": float((new - old).abs().max())}
    ends = (kernels(descent, member, W) for W in (descent.start, descent.end))
    for name, before, after in zip(("ck", "ntk"), *ends):
        values0, vectors0 = torch.linalg.eigh(before)
        values, vectors = torch.linalg.eigh(after)
        cosines = (vectors0 * vectors).sum(0).abs()
        found[name] = float((values - values0).abs().max())
        found[f"{name}, median cosine"] = float(cosines.median())
        found[f"{name}, cosine of the first"] = float(cosines[-1])
    return found


def inequalities(descent: Descent, alphas: Sequence[float], rates: Sequence[float]) -> dict[str, Any]:
    """The three inequalities with ℓ the norm of the residual, and with the loss of Eq. 74 in its place."""
    n = len(descent.parts[0])
    followed = (descent.residuals, descent.distances, descent.moves)
    rows = []
    for alpha, rate, residuals, distances, moves in zip(alphas, rates, *(np.stack(each, axis=1) for each in followed)):
        row: dict[str, float] = {}
        for name, left in (("", residuals), (", ℓ the loss", residuals**2 / (2 * n))):
            found = lazy.global_convergence(left, distances, moves, alpha=alpha, lr=rate, items=n)
            row |= {f"Eq. 84{name}": found.rate, f"Eq. 85{name}": found.distance, f"Eq. 86{name}": found.path}
        rows.append(row | {"path": float(moves.sum()), "residual left": float(residuals[-1] / residuals[0])})
    return columns(rows)


def threshold(ok: np.ndarray, factors: Sequence[float]) -> float | None:
    """Between the last factor of the first that are `ok` and the next; None where that is at an end."""
    first = len(factors) if ok.all() else int(np.argmin(ok))
    return math.sqrt(factors[first - 1] * factors[first]) if 0 < first < len(factors) else None


def columns(rows: Iterable[dict[str, float]]) -> dict[str, list[float]]:
    """One list for each quantity, in the order of the seeds."""
    several = list(rows)
    return {name: [row[name] for row in several] for name in several[0]}


def by_size(record: Record, prefix: str) -> dict[int, Mapping[str, Any]]:
    """The results under `prefix`, ascending."""
    return dict(sorted((int(key), run) for key, run in under(record, prefix).items()))


def draw_changes(axis: Any, runs: Mapping[int, Mapping[str, Any]], names: Sequence[str], label: str) -> None:
    for i, name in enumerate(names):
        values = [np.mean(run[name]) for run in runs.values()]
        if values:
            colour = drawing.COLOURS[i]
            axis.loglog(list(runs), values, "o-", color=colour, markersize=4, linewidth=1.2, label=LABELS[name])
    axis.set_xticks(list(runs), [str(n) for n in runs])
    axis.minorticks_off()
    drawing.label(axis, x="n", y=label, legend=True)
