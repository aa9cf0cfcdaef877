"""What `lazy-bounds` measures: changes of weights and kernels, least eigenvalues, Theorem 4.2 on runs, the largest step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.measures import lazy
from ntkscope.measures.spectra import compare
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

LAWS = {"sign": 1.0, "uniform": 1 / 3, "normal": 1.0}  # of v, with E[v²]


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


def early(
    shape: Shape, seeds: Sequence[int], rate: float, steps: Sequence[int], device: torch.device, few: int
) -> dict[str, Any]:
    """Lemma 4.1: changes after each number of steps; for the first `few` networks those of all eigenvalues and eigenvectors."""
    found: dict[str, Any] = {"items": shape.items}
    for count in steps:
        run = descend(shape, seeds, [rate] * len(seeds), steps=count, device=device)
        found[f"t={count}"] = _columns(_changes(run, member) for member in range(len(seeds)))
    found["shifts"] = _columns(_shifts(run, member) for member in range(min(few, len(seeds))))
    return found


def _kernels(run: Descent, member: int, W: Tensor) -> tuple[Tensor, Tensor]:
    x = run.parts[member].x
    return conjugate_kernel(W[member], x), first_layer_kernel(W[member], run.readout[member], x)


def _changes(run: Descent, member: int) -> dict[str, float]:
    ck0, ntk0 = _kernels(run, member, run.start)
    ck, ntk = _kernels(run, member, run.end)
    x = run.parts[member].x
    printed = [conjugate_kernel(W[member], x, divided=False) for W in (run.start, run.end)]
    moved = run.end[member] - run.start[member]
    return {
        "weights": float(moved.norm()) / math.sqrt(moved.shape[1]),
        "ck": float((ck - ck0).norm()),
        "ntk": float(torch.linalg.eigvalsh(ntk - ntk0).abs().max()),
        "ntk, Frobenius": float((ntk - ntk0).norm()),
        "ck without 1/√d": float((printed[1] - printed[0]).norm()),
    }


def _shifts(run: Descent, member: int) -> dict[str, float]:
    """The largest shift of a singular value of W/√d, of an eigenvalue of CK and NTK; |cos| of eigenvectors with old ones."""
    root = math.sqrt(run.start.shape[2])
    old, new = (torch.linalg.svdvals(W[member] / root) for W in (run.start, run.end))
    found = {"weights": float((new - old).abs().max())}
    for name, before, after in zip(("ck", "ntk"), _kernels(run, member, run.start), _kernels(run, member, run.end)):
        values0, vectors0 = torch.linalg.eigh(before)
        values, vectors = torch.linalg.eigh(after)
        cosines = (vectors0 * vectors).sum(0).abs()
        found[name] = float((values - values0).abs().max())
        found[f"{name}, median cosine"] = float(cosines.median())
        found[f"{name}, cosine of the first"] = float(cosines[-1])
    return found


def least(shape: Shape, seeds: Sequence[int], device: torch.device) -> dict[str, Any]:
    """λ_min of the first layer's NTK for three laws of v; both ends of the full NTK's spectrum for v ~ N(0, 1)."""
    rows = []
    for seed in seeds:
        x, row = items_of(shape, seed, device).x, {}
        for law in LAWS:
            W, v = (weight.to(device) for weight in weights_of(network(shape, seed, law=law)))
            kernel = first_layer_kernel(W, v, x)
            row[law] = float(torch.linalg.eigvalsh(kernel)[0])
        whole = torch.linalg.eigvalsh(kernel + conjugate_kernel(W, x))
        rows.append(row | {"full, least": float(whole[0]), "full, largest": float(whole[-1])})
    return {"dimension": shape.dimension} | _columns(rows)


def alphas(shape: Shape, seeds: Sequence[int], device: torch.device, scale: float = 1.0) -> list[float]:
    """α from the least eigenvalue of each network's own kernel."""
    found = []
    for seed in seeds:
        W, v = (weight.to(device) for weight in weights_of(network(shape, seed)))
        kernel = first_layer_kernel(W, v, items_of(shape, seed, device).x)
        found.append(lazy.alpha_of(scale**2 * float(torch.linalg.eigvalsh(kernel)[0])))
    return found


def theorem(
    shape: Shape, seeds: Sequence[int], source: str, *, share: float, steps: int, device: torch.device
) -> dict[str, Any]:
    """Theorem 4.2 at `share` of its largest step, α from each kernel or from Eq. 83."""
    lipschitz = lazy.lipschitz_constant(sigma)
    if source == "kernel":
        chosen = alphas(shape, seeds, device)
    elif source == "bound":
        chosen = [lazy.alpha_of(lazy.least_eigenvalue_bound(sigma))] * len(seeds)
    else:
        raise UsageError(f"got α from {source!r}; expected 'kernel' or 'bound'")
    rates = [share * lazy.largest_rate(alpha, shape.items, shape.ratio, lipschitz) for alpha in chosen]
    run = descend(shape, seeds, rates, steps=steps, device=device, follow="all")
    return {"alpha": chosen, "rate": rates} | _inequalities(run, chosen, rates)


def _inequalities(run: Descent, alphas: Sequence[float], rates: Sequence[float]) -> dict[str, Any]:
    """The three inequalities with ℓ the norm of the residual, and with the loss of Eq. 74 in its place."""
    n = len(run.parts[0])
    residuals, distances, moves = (np.stack(each, axis=1) for each in (run.residuals, run.distances, run.moves))
    rows = []
    for member, (alpha, rate) in enumerate(zip(alphas, rates)):
        row: dict[str, float] = {}
        for name, left in (("", residuals[member]), (", ℓ the loss", residuals[member] ** 2 / (2 * n))):
            found = lazy.global_convergence(left, distances[member], moves[member], alpha=alpha, lr=rate, items=n)
            row |= {f"Eq. 84{name}": found.rate, f"Eq. 85{name}": found.distance, f"Eq. 86{name}": found.path}
        rows.append(
            row
            | {"path": float(moves[member].sum()), "residual left": float(residuals[member, -1] / residuals[member, 0])}
        )
    return _columns(rows)


def misread(
    shape: Shape, seeds: Sequence[int], *, share: float, steps: int, scale: float, device: torch.device
) -> dict[str, Any]:
    """σ multiplied by `scale`: Eq. 84 at the step for λ_σ, and at the one for the printed λ_α read as α."""
    lipschitz = scale * lazy.lipschitz_constant(sigma)
    chosen = alphas(shape, seeds, device, scale)
    found: dict[str, Any] = {"scale": scale, "alpha": chosen}
    for name, constant in (("λ_σ", [lipschitz] * len(seeds)), ("λ_α = α", chosen)):
        rates = [share * lazy.largest_rate(a, shape.items, shape.ratio, c) for a, c in zip(chosen, constant)]
        run = descend(shape, seeds, rates, steps=steps, device=device, scale=scale, follow="all")
        found[name] = {"rate": rates, **_inequalities(run, chosen, rates)}
    return found


def training(
    shape: Shape, seeds: Sequence[int], *, share: float, steps: int, stop: float, device: torch.device
) -> dict[str, Any]:
    """Corollary 4.3: gradient descent at `share` of the theorem's largest step to a loss of `stop`; path and changes."""
    lipschitz = lazy.lipschitz_constant(sigma)
    chosen = alphas(shape, seeds, device)
    rates = [share * lazy.largest_rate(alpha, shape.items, shape.ratio, lipschitz) for alpha in chosen]
    run = descend(shape, seeds, rates, steps=steps, device=device, stop=stop, follow="moves")
    starts, left = run.residual(run.start), run.residual(run.end)
    moves = np.stack(run.moves, axis=1)
    rows = []
    for member, alpha in enumerate(chosen):
        path, first = float(moves[member].sum()), float(starts[member])
        (ck0, ntk0), (ck, ntk) = (_kernels(run, member, W) for W in (run.start, run.end))
        old, new = run.start[member], run.end[member]
        spectra = {"weights": (old.T @ old / len(old), new.T @ new / len(new)), "ck": (ck0, ck), "ntk": (ntk0, ntk)}
        distances = {
            f"{name}, KS": compare(*(torch.linalg.eigvalsh(K) for K in pair)).ks for name, pair in spectra.items()
        }
        rows.append(
            {
                "steps": run.steps[member],
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
    return {"items": shape.items, "width": shape.width, "dimension": shape.dimension} | _columns(rows)


def stable(
    shape: Shape, seeds: Sequence[int], factors: Sequence[float], *, steps: int, device: torch.device
) -> dict[str, Any]:
    """The largest step for which the residual never rises, in 2n/λ_max: between two of `factors`, at their geometric mean.

    `highest` and `left` are, for each factor, the largest and the last residual over the first, averaged over networks: with
    v fixed and σ bounded outputs are bounded, so that descent rises beyond the threshold and then finds a flatter place.
    """
    tops = []
    for seed in seeds:
        W, v = (weight.to(device) for weight in weights_of(network(shape, seed)))
        tops.append(float(torch.linalg.eigvalsh(first_layer_kernel(W, v, items_of(shape, seed, device).x))[-1]))
    grid = [(seed, 2 * shape.items / top * factor) for seed, top in zip(seeds, tops) for factor in factors]
    run = descend(shape, [s for s, _ in grid], [rate for _, rate in grid], steps=steps, device=device, follow="all")
    residuals = np.stack(run.residuals, axis=1).reshape(len(seeds), len(factors), -1)
    falls = np.all(np.diff(residuals) <= 0, axis=-1)
    relative = residuals / residuals[..., :1]
    return {
        "items": shape.items,
        "largest eigenvalue": tops,
        "falls": [_threshold(falls[i], factors) for i in range(len(seeds))],
        "highest": relative.max(-1).mean(0).tolist(),
        "left": relative[..., -1].mean(0).tolist(),
    }


def _threshold(ok: np.ndarray, factors: Sequence[float]) -> float | None:
    """Between the last factor of the first that are `ok` and the next; None where that is at an end."""
    first = len(factors) if ok.all() else int(np.argmin(ok))
    return math.sqrt(factors[first - 1] * factors[first]) if 0 < first < len(factors) else None


def _columns(rows: Iterable[dict[str, float]]) -> dict[str, list[float]]:
    """One list for each quantity, in the order of the seeds."""
    several = list(rows)
    return {name: [row[name] for row in several] for name in several[0]}
