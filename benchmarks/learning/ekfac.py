"""Is dattri's EK-FAC right? Its influences against an explicit Kronecker-factored Fisher matrix, in float64.

EK-FAC (George et al. 2018): for each linear layer the eigenvectors of `A ⊗ S`, A and S the second moments of its inputs (with a
1 for the bias) and of the gradients of its outputs, and along each of them the mean square of the loss gradients. `explicit`
forms that matrix and solves with it. The package is asked as it is, and with one repair after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from benchmarks.outcome import Check, Outcome
from benchmarks.peers import Peer

REPAIRS = ("as it is", "eigenvectors as rows", "+ bias as a column", "+ Fisher of the loss")
NETWORKS = {"without biases": False, "with biases": True}
TARGETS = ("loss", "margin")
DAMPING = 1e-3


@dataclass(frozen=True, eq=False)
class Case:
    """A small trained network in float64, its training points and test items."""

    model: nn.Sequential
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def case(network: str) -> Case:
    """6-5-3 with tanh, 40 points, 7 items; the same in every process."""
    draw = torch.Generator().manual_seed(0)

    def points(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 6, generator=draw, dtype=torch.float64), torch.randint(0, 3, (n,), generator=draw)

    (x, y), (x_test, y_test) = points(40), points(7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        options: dict[str, Any] = {"bias": NETWORKS[network], "dtype": torch.float64}  # drawn so, whatever the default
        model = nn.Sequential(nn.Linear(6, 5, **options), nn.Tanh(), nn.Linear(5, 3, **options))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model, x, y, x_test, y_test)


def margins(outputs: Tensor, y: Tensor) -> Tensor:
    """`log p / (1 - p)` of the labels."""
    own = outputs.gather(1, y[:, None])[:, 0]
    return own - outputs.scatter(1, y[:, None], -torch.inf).logsumexp(1)


def values(outputs: Tensor, y: Tensor, target: str) -> Tensor:
    """The loss or the margin of each item."""
    return nn.functional.cross_entropy(outputs, y, reduction="none") if target == "loss" else margins(outputs, y)


def explicit(given: Case, target: str, damping: float = DAMPING) -> Float64[np.ndarray, "n m"]:
    """`gᵢᵀ (F + λ I)⁻¹ t` summed over layers, F formed; one backward pass per item."""
    linear = [module for module in given.model if isinstance(module, nn.Linear)]

    def factors(x: Tensor, y: Tensor, what: str) -> list[tuple[Tensor, Tensor]]:
        """Inputs and gradients of outputs of each layer, of each item."""
        found: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in linear]
        for one, label in zip(x, y, strict=True):
            h, kept = one[None], []
            for module in given.model:
                before, h = h, module(h)
                if module in linear:
                    kept.append((before, h))
            gradients = torch.autograd.grad(values(h, label[None], what).sum(), [output for _, output in kept])
            for (inputs, outputs), (before, _), gradient, module in zip(found, kept, gradients, linear, strict=True):
                ones = before.new_ones(1, 1 if module.bias is not None else 0)
                inputs.append(torch.cat([before, ones], 1).detach()[0])
                outputs.append(gradient[0])
        return [(torch.stack(inputs), torch.stack(outputs)) for inputs, outputs in found]

    total = torch.zeros(len(given.y), len(given.y_test), dtype=torch.float64)
    sides = (factors(given.x, given.y, "loss"), factors(given.x_test, given.y_test, target))
    for (a, s), (a_test, s_test) in zip(*sides, strict=True):
        train, test = (torch.einsum("no,ni->noi", p, q).flatten(1) for p, q in ((s, a), (s_test, a_test)))
        bases = [torch.linalg.eigh(m.T @ m / len(m)).eigenvectors for m in (s, a)]
        basis = torch.kron(*bases)
        spectrum = (train @ basis).square().mean(0)
        fisher = basis @ torch.diag(spectrum + damping) @ basis.T
        total += train @ torch.linalg.solve(fisher, test.T)
    return total.numpy()


def run(quick: bool = False) -> Outcome:
    """dattri against the explicit matrix, one repair after another."""
    rows: list[dict[str, Any]] = []
    version = ""
    worst: dict[str, float] = {}
    with Peer("dattri") as peer:
        for repair in REPAIRS:
            for network in NETWORKS:
                for target in TARGETS:
                    answer = peer.ask("scores", network=network, target=target, damping=DAMPING, repair=repair)
                    theirs, ours, version = (
                        np.array(answer["scores"]),
                        explicit(case(network), target),
                        answer["version"],
                    )
                    error = float(np.linalg.norm(theirs - ours) / np.linalg.norm(ours))
                    alike = float(np.corrcoef(theirs.ravel(), ours.ravel())[0, 1])
                    worst[repair] = max(worst.get(repair, 0.0), error)
                    rows.append(
                        {"dattri": repair, "network": network, "attributed": target}
                        | {"relative error": f"{error:.1e}", "correlation": f"{alike:.3f}"}
                    )
    return Outcome(
        title=f"EK-FAC of dattri {version} against an explicit Kronecker-factored Fisher matrix",
        rows=rows,
        checks=[
            Check(
                "with all repairs it is the explicit matrix",
                "relative error at most 1e-10",
                f"{worst[REPAIRS[-1]]:.1e}",
                worst[REPAIRS[-1]] <= 1e-10,
            )
        ],
        notes=(
            "6-5-3 with tanh, 40 training points, 7 test items, damping 1e-3, float64.",
            "`eigh` gives eigenvectors as columns, and dattri multiplies as if they were rows; it appends a layer's bias"
            " to the flattened weights and cuts the result into rows, so that weights of other outputs are mixed; and it takes"
            " the Fisher matrix of what is attributed, here the margin, instead of the training loss's.",
        ),
        details={"worst": worst, "version": version},
    )
