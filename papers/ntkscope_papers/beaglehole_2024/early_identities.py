"""Measurements of the early-time experiment on random networks and matrices: what must hold to rounding or along descent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import generator
from ntkscope_papers.beaglehole_2024 import derivatives as early
from ntkscope_papers.beaglehole_2024 import free_products as free
from ntkscope_papers.beaglehole_2024.matrices import layer_view, mlp, normal, relative
from ntkscope_papers.framework import Experiment, Run, leg

ACTIVATIONS = ("relu", "tanh", "quadratic")
LOSSES = ("squares", "cross-entropy")


@dataclass(frozen=True)
class Identities(Experiment):
    """What must hold to rounding or along descent, on `trials` random networks or matrices."""

    trials: int = 60

    @leg()
    def decomposition(self, run: Run) -> dict[str, Any]:
        """Prop. 4 on every layer of random networks: weights' gradients by autograd against the kernel's two forms."""
        worst = {"velocity": 0.0, "nfm": 0.0, "agop": 0.0, "K with 1/n": math.inf}
        layers = 0
        for trial in range(self.trials):
            model, x, y, kind = _network(trial, run.seed)
            parameters = _linear(model)
            gradients = torch.autograd.grad(_loss(kind, model(x), y), [layer.weight for layer in parameters])
            for layer, gradient in zip(parameters, gradients):
                if not bool(gradient.abs().max() > 1e-12):  # no unit of a ReLU layer is active
                    continue
                view = layer_view(model, layer, x)
                D = _loss_derivatives(kind, view.outputs, y)
                b = view.tangents.flatten(0, 1)
                made = early.derivatives_from_kernel(view.inputs.repeat_interleave(D.shape[1], 0), b @ b.T, D.flatten())
                agop = gradient.T @ b.T @ b @ gradient
                found = {
                    "velocity": relative(early.weight_velocity(view.inputs, view.tangents, D), -gradient),
                    "nfm": relative(made.nfm, gradient.T @ gradient),
                    "agop": relative(made.agop, agop),
                }
                worst.update({key: max(worst[key], value) for key, value in found.items()})
                worst["K with 1/n"] = min(worst["K with 1/n"], relative(agop / len(x), made.agop))
                layers += 1
        return {"layers": layers, **worst}

    @leg()
    def descent(self, run: Run) -> dict[str, Any]:
        """Prop. 3: 2 W̄ᵀW̄/t² and 2 W̄ᵀKW̄/t² along small steps of descent, against 2 ẆᵀẆ and 2 ẆᵀKẆ; the error at t and t/2."""
        ratios, errors, slopes = [], [], []
        for trial in range(max(3, self.trials // 10)):
            model, x, y, kind = _network(trial, run.seed + 1)
            parameters = _linear(model)
            start = [layer.weight.detach().clone() for layer in parameters]
            limits = []
            for layer in parameters:
                view = layer_view(model, layer, x)
                D = _loss_derivatives(kind, view.outputs, y)
                limits.append(early.feature_derivatives(view.inputs, view.tangents, D) if bool(D.any()) else None)
            pace = max(float((one.nfm.trace().sqrt() / w.norm()).detach()) for one, w in zip(limits, start) if one)
            both = [_centred(model, parameters, start, limits, x, y, kind, t) for t in (1e-3 / pace, 5e-4 / pace)]
            for (late, late_size), (soon, soon_size) in zip(*both):
                ratios.append(soon / late)
                errors.append(late)
                slopes.append(soon_size / late_size)
        return {
            "matrices": len(ratios),
            "ratios": [min(ratios), max(ratios)],
            "largest error": max(errors),
            "growth from t/2 to t": [min(slopes), max(slopes)],
        }

    @leg("nine terms")
    def nine_terms(self, run: Run) -> dict[str, Any]:
        """The proof of Prop. 3: the nine terms of the second derivative of W̄ᵀKW̄, K and W̄ cubic in t, at t = 0 and t = 1/2."""
        worst, left = 0.0, 0.0
        for trial in range(self.trials):
            k, d = 4, 3
            w = [torch.zeros(k, d, dtype=torch.float64), *normal(run.seed, f"w{trial}", 3, k, d)]
            symmetric = [m + m.T for m in normal(run.seed, f"k{trial}", 4, k, k)]
            for t in (0.0, 0.5):
                W, V, U = (_polynomial(w, t, order) for order in range(3))
                K, L, M = (_polynomial(symmetric, t, order) for order in range(3))
                terms = [U.T @ K @ W, V.T @ L @ W, V.T @ K @ V, V.T @ L @ W, W.T @ M @ W]
                terms += [W.T @ L @ V, V.T @ K @ V, W.T @ L @ V, W.T @ K @ U]
                direct = _second_derivative(w, symmetric, t)
                worst = max(worst, relative(sum(terms[1:], terms[0]), direct))
                if t == 0:
                    left = max(left, relative(2 * V.T @ K @ V, direct))
        X, Y, K = normal(run.seed, "shapes x", 6, 3), torch.diag(normal(run.seed, "shapes y", 6)), torch.eye(4).double()
        try:
            fits = bool(torch.linalg.multi_dot([X.T, Y, K, Y, X]).numel())
        except RuntimeError:
            fits = False
        return {"nine terms": worst, "two terms at t = 0": left, "the k x k matrix fits between Y and Y": fits}

    @leg("kernel forms")
    def kernel_forms(self, run: Run) -> dict[str, Any]:
        """Eqs. 4 and 10, a projector, positivity; the quadratic network's kernel; Eqs. 16, 17, 21 and 23."""
        worst = {"Eq. 4": 0.0, "projector": 0.0, "words": 0.0, "kernel": 0.0}
        lowest, ratios, printed = 1.0, [], []
        for trial in range(self.trials):
            n, d, k = 6 + trial % 3, 4 + trial % 2, 5
            X, y = normal(run.seed, f"x4 {trial}", n, d), normal(run.seed, f"y4 {trial}", n)
            model = models.build("quadratic", in_features=d, width=k, seed=run.seed + trial).double()
            W, a = _linear(model)[0].weight.detach(), _linear(model)[1].weight.detach()[0]
            view = layer_view(model, _linear(model)[0], X)
            tangents = view.tangents[:, 0]
            kernel = tangents @ tangents.T
            velocity = early.weight_velocity(X, tangents, -y)  # residuals y: the network's own outputs are subtracted
            P, Q = velocity.T @ velocity, velocity.T @ tangents.T @ tangents @ velocity
            direct = float((P * Q).sum() / P.norm() / Q.norm())
            made = early.derivatives_from_kernel(X, kernel, y)
            worst["Eq. 4"] = max(worst["Eq. 4"], relative(made.correlation, direct))
            traces = made.traces
            printed.append(traces.numerator * math.sqrt(traces.first * traces.second) / direct)
            basis = torch.linalg.qr(normal(run.seed, f"q{trial}", n, 3))[0]
            aligned = early.derivatives_from_kernel(X, 2 * basis @ basis.T, y).correlation
            worst["projector"] = max(worst["projector"], abs(1 - aligned))
            m = normal(run.seed, f"psd{trial}", n, n)
            lowest = min(lowest, direct, early.derivatives_from_kernel(X, m @ m.T, y).correlation)
            worst["kernel"] = max(worst["kernel"], relative(early.quadratic_kernel(X, W, a), kernel))
            half = X @ W.T @ torch.diag(a**2) @ W @ X.T
            ratios.append(float((kernel * half).sum() / half.square().sum()))
            exact = early.quadratic_traces(X, y, W, a)
            words = (exact.numerator * 64, exact.first * 16, exact.second * 256)
            pairs = zip(words, (traces.numerator, traces.first, traces.second))
            worst["words"] = max(worst["words"], *(relative(one, other) for one, other in pairs))
        return {
            **worst,
            "lowest correlation": lowest,
            "kernel over the printed one": [min(ratios), max(ratios)],
            "Eq. 10 as printed over Eq. 4": [min(printed), max(printed)],
        }

    @leg()
    def expansions(self, run: Run) -> dict[str, Any]:
        """Eqs. 19 and 24 to 27 as identities of random symmetric matrices, tr normalised."""
        worst = {"Eq. 19": 0.0, "Eq. 27": 0.0}
        short: list[float] = []
        for trial in range(self.trials):
            d = 3 + trial % 5
            A, B, R = (m @ m.T for m in normal(run.seed, f"abr{trial}", 3, d, d))
            eye = torch.eye(d, dtype=torch.float64)

            def tr(*letters: Tensor, size: int = d) -> float:
                return float(torch.linalg.multi_dot(letters).trace() if len(letters) > 1 else letters[0].trace()) / size

            a, b = tr(A), tr(B)
            P, Q = A - a * eye, B - b * eye
            R2, R3, R4 = R @ R, R @ R @ R, R @ R @ R @ R
            first = tr(P, R, P, R, Q, R) + 2 * a * tr(P, R, Q, R2) + b * tr(P, R, P, R2) + a**2 * tr(Q, R3)
            first += 2 * a * b * tr(P, R3)
            exact = tr(A, R, A, R, B, R)
            worst["Eq. 19"] = max(worst["Eq. 19"], relative(first + a**2 * b * tr(R3), exact))
            short.append((first + a**2 * b * tr(R) ** 3) / exact)
            second = tr(P, R, Q, R, P, R, Q, R) + 2 * b * tr(P, R, Q, R, P, R2) + 2 * a * tr(P, R, Q, R2, Q, R)
            second += 4 * a * b * tr(R3, P, R, Q) + 2 * a * b**2 * tr(R4, P) + 2 * a**2 * b * tr(R4, Q)
            second += a**2 * b**2 * tr(R4) + a**2 * tr(R2, Q, R2, Q) + b**2 * tr(R2, P, R2, P)
            worst["Eq. 27"] = max(worst["Eq. 27"], relative(second, tr(A, R, B, R, A, R, B, R)))
        return {**worst, "Eq. 19 as printed over the trace": [min(short), max(short)]}

    @leg()
    def isotropic(self, run: Run) -> dict[str, Any]:
        """Eq. 6 against Eq. 20 on inputs with XᵀX = I, and without normalised traces."""
        worst, ratios = 0.0, []
        for trial in range(self.trials):
            n, d = 8, 5
            X, y = torch.linalg.qr(normal(run.seed, f"iso{trial}", n, d))[0], normal(run.seed, f"isoy{trial}", n)
            r = free.free_moments(d, 4 + trial)
            full = early.quadratic_prediction(X, y, moments=r).traces.numerator
            worst = max(worst, relative(early.isotropic_numerator(X, y, r), full))
            A = torch.linalg.matrix_power(X.T @ torch.diag(y) @ X, 2)
            centred = A - A.trace() / d * torch.eye(d, dtype=torch.float64)
            sums = [d * value for value in r]
            plain = float(A.trace()) ** 2 * sums[2] + sums[0] * sums[1] * float(centred.square().sum())
            ratios.append(plain / (d * full))
        return {"Eq. 6 against Eq. 20": worst, "plain sums over the trace": [min(ratios), max(ratios)]}


def _network(trial: int, seed: int) -> tuple[nn.Module, Tensor, Tensor, str]:
    """A random network, inputs, targets and the name of a loss; sizes and kinds change from trial to trial."""
    sizes = torch.randint(2, 7, (5,), generator=generator(seed, "sizes", trial)).tolist()
    n, d, c, width, depth = sizes[0] + 2, sizes[1], sizes[2], sizes[3] + 2, 1 + sizes[4] % 3
    kind = ACTIVATIONS[trial % len(ACTIVATIONS)]
    model = mlp(d, width, seed + trial, depth=depth, classes=c, activation=kind).double()
    x, y = normal(seed, f"x{trial}", n, d), normal(seed, f"y{trial}", n, c)
    return model, x, y, LOSSES[trial // len(ACTIVATIONS) % len(LOSSES)]


def _loss(kind: str, outputs: Tensor, y: Tensor) -> Tensor:
    if kind == "squares":
        return (outputs - y).square().sum() / 2
    return nn.functional.cross_entropy(outputs, y.argmax(1), reduction="sum")


def _loss_derivatives(kind: str, outputs: Tensor, y: Tensor) -> Tensor:
    at = outputs.detach().clone().requires_grad_()
    return torch.autograd.grad(_loss(kind, at, y), at)[0]


def _linear(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def _centred(
    model: nn.Module,
    layers: list[nn.Linear],
    start: list[Tensor],
    limits: list[early.EarlyTime | None],
    x: Tensor,
    y: Tensor,
    kind: str,
    t: float,
) -> list[tuple[float, float]]:
    """Errors and sizes of the centred matrices after descent for a time t, layer by layer."""
    steps = 50
    with torch.no_grad():
        for layer, w in zip(layers, start):
            layer.weight.copy_(w)
    for _ in range(steps):
        gradients = torch.autograd.grad(_loss(kind, model(x), y), [layer.weight for layer in layers])
        with torch.no_grad():
            for layer, gradient in zip(layers, gradients):
                layer.weight -= t / steps * gradient
    found = []
    for layer, w, limit in zip(layers, start, limits):
        change = layer.weight.detach() - w
        b = layer_view(model, layer, x).tangents.flatten(0, 1)
        if limit is None or not bool(limit.agop.abs().max() > 1e-14):
            continue
        for matrix, wanted in ((change.T @ change, limit.nfm), (change.T @ b.T @ b @ change, limit.agop)):
            found.append((relative(matrix / t**2, wanted), float(matrix.norm() / t**2)))
    return found


def _polynomial(coefficients: list[Tensor], t: float, derivative: int) -> Tensor:
    found = torch.zeros_like(coefficients[0])
    for power, c in enumerate(coefficients):
        if power >= derivative:
            found = found + math.perm(power, derivative) * t ** (power - derivative) * c
    return found


def _second_derivative(w: list[Tensor], k: list[Tensor], t: float) -> Tensor:
    """Of the polynomial W̄(t)ᵀ K(t) W̄(t), multiplied out."""
    product: dict[int, Tensor] = {}
    for i, left in enumerate(w):
        for j, middle in enumerate(k):
            for m, right in enumerate(w):
                term = left.T @ middle @ right
                product[i + j + m] = product[i + j + m] + term if i + j + m in product else term
    return _polynomial([product[power] for power in sorted(product)], t, 2)
