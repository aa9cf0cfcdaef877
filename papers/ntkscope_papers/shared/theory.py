"""Kernels, features and projections: the conjugate-kernel paper's identities on random instances and small networks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import derive_seed, generator, numpy_generator
from ntkscope.kernels import Tangent
from ntkscope.kernels import kernel as kernel_of
from ntkscope.linalg import least_squares
from ntkscope.surrogates import KernelLogistic, MinimumNorm

READOUT = ("readout.weight", "readout.bias")
RIDGE = 1e-3


def _mlp(seed: int, *, width: int = 12, depth: int = 2, classes: int = 1, inputs: int = 2) -> nn.Module:
    """A tanh network in float64."""
    made = models.build(
        "mlp", in_features=inputs, classes=classes, widths=width, depth=depth, activation="tanh", seed=seed
    )
    return made.double().eval()


def _points(seed: int, count: int, inputs: int = 2) -> Tensor:
    return torch.randn(count, inputs, dtype=torch.float64, generator=generator(seed, "points"))


def _largest(values: Tensor | np.ndarray) -> float:
    return float(torch.as_tensor(values).abs().max())


def jacobian(model: nn.Module, x: Tensor, names: tuple[str, ...] | None = None) -> Tensor:
    """∂f(x_i)/∂θ of one output by plain autograd, (n, p), for all parameters or some."""
    chosen = [p for name, p in model.named_parameters() if names is None or name in names]
    outputs = model(x)[:, 0]
    rows = [torch.autograd.grad(value, chosen, retain_graph=True) for value in outputs]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]).detach()


def softmax_difference(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 10 and Remark 3.1 on random networks of two outputs."""
    probabilities, tangent, conjugate = 0.0, 0.0, 0.0
    for s in range(max(1, trials // 100)):
        model, x = _mlp(derive_seed(seed, s), classes=2), _points(derive_seed(seed, s), 12)
        odds = models.contrast(model, 1, 0).eval()
        with torch.no_grad():
            both, one = model(x).softmax(1)[:, 1], torch.sigmoid(odds(x)[:, 0])
        probabilities = max(probabilities, _largest(both - one))
        blocks = kernel_of("entk", model, x).blocks()
        of_difference = blocks[..., 0, 0] + blocks[..., 1, 1] - blocks[..., 0, 1] - blocks[..., 1, 0]
        own = kernel_of("trntk0", odds, x).dense()
        tangent = max(tangent, _largest(own - of_difference) / _largest(own))
        last = jacobian(odds, x, tuple(f"model.{name}" for name in READOUT))
        ck = kernel_of("ck", odds, x).dense()
        conjugate = max(conjugate, _largest(last @ last.T - 2 * ck) / _largest(ck))
    return {"probabilities": probabilities, "NTK of the difference": tangent, "last layer against 2 CK": conjugate}


def conjugate_formula(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 28 to 30: the CK against autograd, NTK - CK against the other layers, and its smallest eigenvalue."""
    formula, rest, least = 0.0, 0.0, 0.0
    for s in range(max(1, trials // 100)):
        model, x = _mlp(derive_seed(seed, s), depth=3), _points(derive_seed(seed, s), 15)
        last, every = jacobian(model, x, READOUT), jacobian(model, x)
        ck, ntk = kernel_of("ck", model, x).dense(), kernel_of("trntk0", model, x).dense()
        formula = max(formula, _largest(last @ last.T - ck) / _largest(ck))
        earlier = tuple(name for name, _ in model.named_parameters() if name not in READOUT)
        others = jacobian(model, x, earlier)
        rest = max(
            rest,
            _largest(ntk - ck - others @ others.T) / _largest(ntk),
            _largest(every @ every.T - ntk) / _largest(ntk),
        )
        values = torch.linalg.eigvalsh((ntk - ck + (ntk - ck).T) / 2)
        least = min(least, float(values[0] / ntk.trace()))
    return {"CK against autograd": formula, "NTK - CK against E": rest, "least eigenvalue over the trace": least}


def cost(trials: int, seed: int) -> dict[str, Any]:
    """Numbers of features at width 128 and three hidden layers, and the processor's seconds for CK, NTK and outputs."""
    nodes = 2401 if trials >= 1000 else 101
    model, x = _mlp(seed, width=128, depth=3, inputs=1), torch.linspace(-1, 1, nodes, dtype=torch.float64)[:, None]
    tangent = Tangent(model, x[:8])

    def outputs() -> Tensor:
        with torch.no_grad():
            return model(x)

    work: dict[str, Callable[[], Any]] = {
        "outputs": outputs,
        "CK": lambda: tangent.kernel("ck", x).dense(),
        "NTK": lambda: tangent.kernel("trntk0", x).dense(),
    }
    seconds = {}
    for name, compute in work.items():
        compute()
        seconds[name] = min(_timed(compute) for _ in range(3))
    return {
        "CK features": int(tangent.kernel("ck", x[:4]).left.shape[1]),  # type: ignore[attr-defined]
        "NTK features": sum(p.numel() for p in model.parameters()),
        "nodes": nodes,
        "seconds by work": seconds,
        "NTK/CK": seconds["NTK"] / seconds["CK"],
    }


def _timed(compute: Callable[[], Any]) -> float:
    began = time.process_time()  # other programs' share of the processor does not count
    compute()
    return time.process_time() - began


def kernel_machines(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 13, 14, 17 to 21 and 41 on Gaussian features, fewer and more than points; all differences relative."""
    found = dict.fromkeys(("training residual", "predictions", "orthogonality", "Pythagoras", "condition"), 0.0)
    for s in range(max(4, trials // 20)):
        random = numpy_generator(seed, "kernel machines", s)
        n, p = (40, 15) if s % 2 else (20, 60)
        phi, test = (torch.from_numpy(random.normal(size=(rows, p))) for rows in (n, 25))
        y, weights = torch.from_numpy(random.normal(size=n)), torch.from_numpy(random.uniform(0.1, 2, size=n))
        machine = MinimumNorm().fit(phi @ phi.T, y, weights)
        gamma = least_squares(phi, y, weights=weights).solution
        fitted = torch.from_numpy(machine.predict(phi @ phi.T))
        gap, other = y - fitted, y - phi @ gamma
        size = float((weights * y**2).sum().sqrt())
        residuals = [float((weights * one**2).sum().sqrt()) for one in (gap, other)]
        new = torch.from_numpy(machine.predict(test @ phi.T))
        values = torch.linalg.eigvalsh(phi @ phi.T)[-min(phi.shape) :]  # of the Gram matrix, on its range
        changes = {
            "training residual": abs(residuals[0] - residuals[1]) / size,
            "predictions": _largest(new - test @ gamma) / _largest(new),
            "orthogonality": _largest(phi.T @ (weights * gap)) / size / float(phi.norm(dim=0).max()),
            "Pythagoras": abs((weights * (y**2 - fitted**2 - gap**2)).sum().item()) / size**2,
            "condition": abs(
                float(torch.linalg.cond(phi if p < n else phi.T)) ** 2 / float(values[-1] / values[0]) - 1
            ),
        }
        found = {name: max(found[name], value) for name, value in changes.items()}
    return found


def ranges(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 19 on random matrices of deficient rank: the projectors on both column spaces."""
    worst, ranks = 0.0, True
    for s in range(max(4, trials // 20)):
        random = numpy_generator(seed, "ranges", s)
        rank = int(random.integers(1, 6))
        a = random.normal(size=(8, rank)) @ random.normal(size=(rank, 11))
        projectors = []
        for matrix in (a.T @ a, a.T):
            left, values, _ = np.linalg.svd(matrix, full_matrices=False)
            basis = left[:, values > 1e-9 * values[0]]
            ranks &= basis.shape[1] == rank
            projectors.append(basis @ basis.T)
        worst = max(worst, _largest(projectors[0] - projectors[1]))
    return {"projectors": worst, "ranks agree": bool(ranks)}


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values))


def nested_projections(trials: int, seed: int) -> dict[str, Any]:
    """Lemmas 4.3 and 4.4 on random nested subspaces: the largest left side over its right side."""
    random = numpy_generator(seed, "nested")
    third, fourth, sharper, order = 0.0, 0.0, 0.0, 0.0
    for _ in range(trials):
        n = int(random.integers(4, 30))
        wide = int(random.integers(2, n))
        narrow = int(random.integers(1, wide))
        basis = np.linalg.qr(random.normal(size=(n, wide)))[0]
        f = random.normal(size=n) + basis @ random.normal(size=wide) * 10 ** random.uniform(-2, 2)
        in_wide = basis @ (basis.T @ f)
        in_narrow = basis[:, :narrow] @ (basis[:, :narrow].T @ f)
        beta = _norm(in_wide) / _norm(f)
        ck, ntk = _norm(f - in_narrow), _norm(f - in_wide)
        third = max(third, _norm(in_wide - in_narrow) / (beta * ck))
        fourth = max(fourth, ck / (ntk / (1 - beta)))
        sharper = max(sharper, ck / (ntk / math.sqrt(1 - beta**2)))
        order = max(order, ntk / ck)
    return {"4.3": third, "4.4": fourth, "4.4 with 1/√(1-β²)": sharper, "NTK over CK": order, "trials": trials}


def training_order(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 38 on small networks: weighted least squares on all tangent features and on the last layer's."""
    worst = 0.0
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)[:, None]
    y, weights = torch.exp(3 * x[:, 0]), torch.full((41,), 0.05, dtype=torch.float64)
    weights[0] = weights[-1] = 0.025
    for s in range(max(2, trials // 100)):
        model = _mlp(derive_seed(seed, s), width=4, inputs=1)
        gaps = [
            float(least_squares(features, y, weights=weights).residual_norm)
            for features in (jacobian(model, x), jacobian(model, x, READOUT))
        ]
        worst = max(worst, gaps[0] / gaps[1])
    return {"NTK over CK": worst}


def logistic_forms(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 15, 23, 24: kernel form by Newton's method, feature form by scikit-learn, the same ridge in the kernel's norm."""
    worst = 0.0
    for s in range(max(2, trials // 100)):
        random = numpy_generator(seed, "logistic forms", s)
        phi = random.normal(size=(40, 6))
        labels = (phi @ random.normal(size=6) + random.normal(size=40) > 0).astype(int)
        scores = _logistic(phi, labels)[1]
        linear = LogisticRegression(
            C=1 / (2 * RIDGE), fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000
        ).fit(phi, labels)
        losses = [_loss(one, labels) for one in (scores, phi @ linear.coef_[0])]
        worst = max(worst, abs(losses[0] / losses[1] - 1))
    return {"losses": worst}


def _logistic(phi: np.ndarray, labels: np.ndarray) -> tuple[KernelLogistic, np.ndarray]:
    """The fit of `Σ ln(1 + exp ψ̂) + RIDGE ‖ψ‖²`, and its scores."""
    kernel = torch.from_numpy(phi @ phi.T)
    solver = KernelLogistic(2 * RIDGE / len(phi), multi_class="ovr", fit_intercept=False)
    fitted = solver.fit(kernel, labels)
    return fitted, fitted.decision_function(kernel)


def _loss(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.logaddexp(0.0, (1 - 2 * labels) * scores).sum())


def nested_logistic(trials: int, seed: int) -> dict[str, Any]:
    """Eq. 52, 53, 63, 64: nested features with one ridge; objectives, losses, ω."""
    runs = max(4, trials // 40)
    counted = dict.fromkeys(("objective lower", "loss lower", "ω >= 1 of these", "Eq. 64 holds of these"), 0)
    for s in range(runs):
        random = numpy_generator(seed, "nested logistic", s)
        wide = random.normal(size=(40, 8))
        labels = (wide @ random.normal(size=8) + 2 * random.normal(size=40) > 0).astype(int)
        (ntk, psi_ntk), (ck, psi_ck) = (_logistic(wide[:, :width], labels) for width in (8, 3))
        losses = _loss(psi_ntk, labels), _loss(psi_ck, labels)
        omega = float(np.exp((1 - 2 * labels) * (psi_ck - psi_ntk)).max())
        counted["objective lower"] += ntk.loss_ <= ck.loss_ * (1 + 1e-9)
        if losses[0] <= losses[1]:
            counted["loss lower"] += 1
            counted["ω >= 1 of these"] += omega >= 1
            counted["Eq. 64 holds of these"] += losses[1] <= omega * losses[0] * (1 + 1e-12)
    return {"runs": runs, **counted}
