"""The definitions and identities of the surrogate paper on small instances in double precision, errata beside the print."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau
from sklearn.datasets import load_digits
from sklearn.isotonic import IsotonicRegression
from torch import Tensor, nn

from ntkscope.core import generator, numpy_generator
from ntkscope.explain import attribute
from ntkscope.kernels import kernel
from ntkscope.linalg import DenseGram
from ntkscope.machines import KernelPair, fit_machine
from ntkscope.measures.faithfulness import correct_class_log_odds, kendall_tau, probabilities, tad, total_variation
from ntkscope_papers.engel_2023.published_measure import Compared, spread, stochastic_fits
from ntkscope_papers.shared.theory import jacobian

OUTPUTS, ITEMS = 3, 8


def small_network(seed: int, outputs: int = OUTPUTS) -> nn.Sequential:
    """Two hidden layers of ReLU in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, outputs)
        ).double().eval()  # fmt: skip


def _inputs(seed: int, items: int = ITEMS) -> Tensor:
    return torch.randn(items, 5, dtype=torch.float64, generator=generator(seed, "surrogate definitions"))


def _blocks(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The Jacobian (n, c, p) by autograd, and the empirical NTK's blocks (n, n, c, c)."""
    rows = [jacobian(nn.Sequential(model, _Output(c)), x) for c in range(OUTPUTS)]
    J = torch.stack(rows, dim=1)
    return J, torch.einsum("icp,jdp->ijcd", J, J)


class _Output(nn.Module):
    """One output of several."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.which = which

    def forward(self, z: Tensor) -> Tensor:
        return z[:, self.which : self.which + 1]


def kernels(seed: int) -> dict[str, Any]:
    """Eq. 4 to 6, the pNTK and the other kernels against explicit gradients; the printed denominator of Eq. 4."""
    model, x = small_network(seed), _inputs(seed)
    J, blocks = _blocks(model, x)
    trace = torch.einsum("ijcc->ij", blocks)
    exact, raw = kernel("trntk", model, x).dense(), kernel("trntk0", model, x).dense()
    summed = J.sum(1)
    norms = J.square().sum(2).sqrt().sum(1)  # Σ_c |g_c|: the root inside the sum over classes, as printed
    hidden = [model[:2](x).detach(), model[:4](x).detach()]
    wide = torch.einsum("ic,jc->ij", *(hidden[1],) * 2)
    angles = sum(_cosine(h @ h.T) for h in hidden)
    assert isinstance(angles, Tensor)
    projected = {name: kernel(name, model, x, dim=64, seed=seed).dense() for name in ("proj-trntk", "proj-pntk")}
    unscaled = kernel("proj-trntk", model, x, dim=64, seed=seed, normalize=False).dense()
    return {
        "outputs": OUTPUTS,
        "diagonal off 1": float((exact.diagonal() - 1).abs().max()),
        "largest entry": float(exact.abs().max()),
        "printed diagonal": [float(v) for v in torch.aminmax(trace.diagonal() / norms.square())],
        "least eigenvalue over trace": float(torch.linalg.eigvalsh(exact)[0] / exact.trace()),
        "trace of blocks": _gap(raw, trace),
        "pntk": _gap(kernel("pntk", model, x).dense(), summed @ summed.T / OUTPUTS),
        "pntk, mean of blocks times C": _gap(kernel("pntk", model, x).dense(), blocks.mean((2, 3)) * OUTPUTS),
        "ck": _gap(kernel("ck", model, x, bias=False).dense(), wide),
        "em": _gap(kernel("em", model, x, normalize=True, layers=("1", "3")).dense(), angles),
        "projected diagonal off 1": max(float((K.diagonal() - 1).abs().max()) for K in projected.values()),
        "projected, whatever the prefactor": _gap(projected["proj-trntk"], _cosine(7.0 * unscaled)),
        "ck and ntk": float((raw - kernel("ck", model, x, bias=False).dense()).norm() / raw.norm()),
    }


def _cosine(K: Tensor) -> Tensor:
    norms = K.diagonal().sqrt()
    return K / torch.outer(norms, norms)


def _gap(a: Tensor, b: Tensor) -> float:
    """Relative to the largest entry."""
    return float((a - b).abs().max() / b.abs().max())


def surrogate(seed: int) -> dict[str, Any]:
    """Eq. 1 and 3 on digits: affine logits at the optimum, attributions that add up, the authors' classifier over seeds."""
    pair, y, y_test, network = _digits(seed)
    machine = fit_machine(pair, y, alpha=1e-4, tol=1e-9, max_iter=500)
    K, K_test = pair.train.numpy(), pair.test.numpy()
    W, b = machine.coef_, machine.intercept_
    by_hand = K_test @ W.T + b
    logits = machine.logits(pair.test)
    residual = (probabilities(K @ W.T + b) - np.eye(len(b))[y]) / len(y)
    gradient = np.concatenate([K @ residual + 1e-4 * W.T, residual.sum(0)[None]])
    sums = attribute(machine, pair.test).values.sum(1)
    fits = stochastic_fits(pair, y, Compared(network, y_test), 1e-4, range(5))
    return {
        "shape": list(W.shape),
        "affine": float(np.abs(logits - by_hand).max() / np.abs(by_hand).max()),
        "gradient": float(np.abs(gradient).max()),
        "attributions": float(np.abs(sums - logits).max()),
        "sgd": spread(fits, "tau"),
        "optimum": _tau(logits, network, y_test),
    }


def _digits(seed: int) -> tuple[KernelPair, np.ndarray, np.ndarray, np.ndarray]:
    """Cosines of 300 digits, labels, and a made-up network: class centres, seen through noise."""
    images, labels = load_digits(return_X_y=True)
    order = numpy_generator(seed, "surrogate definitions").permutation(len(labels))[:450]
    x, y = torch.from_numpy(images[order] / 16.0), labels[order].astype(np.int64)
    K = _cosine(x @ x.T + 1.0)
    pair = KernelPair("trntk", DenseGram(K[:300, :300], symmetric=True), DenseGram(K[300:, :300]))
    centres = np.stack([x.numpy()[:300][y[:300] == c].mean(0) for c in range(10)])
    network = -np.square(x.numpy()[300:, None] - centres[None]).sum(2)
    return pair, y[:300], y[300:], network


def measures(seed: int, trials: int) -> dict[str, Any]:
    """Kendall's coefficient, recovery at τ = 1, TAD and what accuracy cannot see."""
    random = numpy_generator(seed, "surrogate measures")
    gaps, largest = [], 0.0
    n = 400
    for _ in range(trials):
        a = random.normal(size=n)
        b = a + random.normal(size=n)
        gaps.append(abs(kendall_tau(a, b) - kendalltau(a, b).statistic))
        largest = max(largest, abs(kendall_tau(a, random.normal(size=n))))
    tied = np.minimum(random.normal(size=n), 0.5)
    x = np.sort(random.normal(size=n))
    monotone = np.exp(x) + x
    fit = IsotonicRegression().fit(x, monotone).predict(x)
    return {
        "against scipy": float(max(gaps)),
        "tied, itself": {rule: kendall_tau(tied, tied, ties=rule) for rule in ("b", "discordant")},
        "monotone": [kendall_tau(x, monotone), kendall_tau(x, -monotone)],
        "largest of unrelated": largest,
        "bound of unrelated": 4 * math.sqrt(4 / (9 * n)),
        "isotonic R2": float(1 - np.square(monotone - fit).sum() / np.square(monotone - monotone.mean()).sum()),
        **_three_classes(),
        **_blind(),
    }


def _tau(surrogate: np.ndarray, network: np.ndarray, y: np.ndarray) -> float:
    """τ of the correct class's log-odds."""
    return kendall_tau(correct_class_log_odds(surrogate, y), correct_class_log_odds(network, y))


def _three_classes() -> dict[str, float]:
    """Two models of three classes that agree on the correct class (0) and on nothing else; two classes leave no choice."""
    p = np.array([[0.5, 0.4, 0.1], [0.6, 0.3, 0.1], [0.7, 0.2, 0.1]])
    q = p[:, [0, 2, 1]]
    y = np.zeros(3, dtype=np.int64)
    tau = _tau(np.log(p), np.log(q), y)
    return {"three classes, tau": tau, "three classes, total variation": total_variation(np.log(p), np.log(q))}


def _blind() -> dict[str, float]:
    """Two models that get the same number of points right, and rank all points the other way round."""
    odds = np.array([-2.0, -1.0, 1.0, 2.0])
    network, other = (np.stack([np.zeros(4), z], axis=1) for z in (odds, -odds))
    y = np.ones(4, dtype=np.int64)
    better = np.stack([np.zeros(4), np.array([-2.0, 1.0, 1.0, 2.0])], axis=1)
    tau = _tau(other, network, y)
    return {
        "same accuracy, tad": tad(other, network, y),
        "same accuracy, tau": tau,
        "one more right, tad": tad(better, network, y),
    }


def width_error(width: int, seed: int, items: int = 4, outputs: int = 3) -> float:
    """‖pNTK ⊗ I - eNTK‖ / ‖eNTK‖ of a ReLU network with two hidden layers, He-normal weights, at its start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
        )  # fmt: skip
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
    x = torch.randn(items, 10, generator=generator(seed, "width bound"))
    whole = kernel("entk", model.eval(), x).dense().double()
    pseudo = torch.kron(kernel("pntk", model, x).dense().double(), torch.eye(outputs, dtype=torch.float64))
    return float((pseudo - whole).norm() / whole.norm())


def width_bound(widths: tuple[int, ...], seeds: int, seed: int) -> dict[str, Any]:
    """Mean error at each width, and the slope of its logarithm."""
    errors = [float(np.mean([width_error(w, seed + s) for s in range(seeds)])) for w in widths]
    slope = float(np.polyfit(np.log(widths), np.log(errors), 1)[0])
    return {"widths": list(widths), "error": errors, "slope": slope, "seeds": seeds}
