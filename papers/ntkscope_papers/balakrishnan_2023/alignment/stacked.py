"""Tangent kernels of many fully connected ReLU networks at once: outputs, kernels, alignment, kernel ridge regression.

`ns.kernel` computes one network's kernel and checks it against autograd. A path through training has thousands of small
kernels of one architecture, for which the layers' own products, stacked over the networks, are enough: `against_engine` holds
them to the engine on some inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from ntkscope.core import NumericalError
from ntkscope.kernels import kernel

AGREE = 1e-9  # both sides are float64: what is left is the order of sums
BLOCK = 256  # columns at a time; a longer block where few large matrices are solved


@dataclass(frozen=True, eq=False)
class StackedReLU:
    """f(x) = readout(relu(… relu(W₁ x + b₁) …)) of k networks, with one output; weights in float64."""

    weights: Sequence[Float64[Tensor, "k out in"]]
    biases: Sequence[Float64[Tensor, "k out"]]

    @classmethod
    def of(cls, template: nn.Module, params: Mapping[str, Tensor]) -> StackedReLU:
        """From stacked parameters of an `mlp`: its affine layers in order."""
        names = [name for name, module in template.named_modules() if isinstance(module, nn.Linear)]
        weights, biases = (
            [params[f"{name}.{kind}"].detach().double() for name in names] for kind in ("weight", "bias")
        )
        return cls(weights, biases)

    def take(self, members: slice) -> StackedReLU:
        """Some of the networks."""
        return StackedReLU([w[members] for w in self.weights], [b[members] for b in self.biases])

    def outputs(self, x: Float64[Tensor, "k n d"]) -> Float64[Tensor, "k n"]:
        """Of every network on its own inputs; inputs (1, n, d) are those of all."""
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            x = x @ weight.mT + bias[:, None]
            if place < len(self.weights) - 1:
                x = x.clamp_min(0)
        return x[..., 0]

    def factors(self, x: Float64[Tensor, "k n d"]) -> list[tuple[Tensor, Tensor | None]]:
        """For every affine layer its inputs a (k, n, in) and the cotangents b (k, n, out) of its outputs; None where b = 1."""
        before = [x]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1]):
            before.append((before[-1] @ weight.mT + bias[:, None]).clamp_min(0))
        after: list[Tensor | None] = [None]
        for weight, hidden in zip(reversed(self.weights[1:]), reversed(before[1:])):
            back = weight if after[-1] is None else after[-1] @ weight
            after.append(back * (hidden > 0))
        return list(zip(before, reversed(after)))

    def kernel(
        self, x: Float64[Tensor, "k n d"], other: Float64[Tensor, "k m d"] | None = None
    ) -> Float64[Tensor, "k n m"]:
        """`Σ_layers (a·a' + 1) (b·b')`, all parameters, biases included; O(k n m width) per layer."""
        rows = self.factors(x)
        columns = rows if other is None else self.factors(other)
        whole: Tensor | None = None
        for (a, b), (a2, b2) in zip(rows, columns):
            part = a @ a2.mT + 1
            if b is not None and b2 is not None:
                part = part * (b @ b2.mT)
            whole = part if whole is None else whole + part
        assert whole is not None
        return whole


def against_engine(template: nn.Module, params: Mapping[str, Tensor], member: int, x: Float64[Tensor, "n d"]) -> float:
    """The largest difference between a member's kernel here and by `ns.kernel`, relative to its largest entry."""
    stack = StackedReLU.of(template, {name: value[member : member + 1] for name, value in params.items()})
    own = stack.kernel(x[None])[0]
    model = template.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(params[name][member])
    exact = kernel("trntk0", model, x).dense().to(own)
    apart = float((own - exact).abs().max() / exact.abs().max())
    if not apart <= AGREE:
        raise NumericalError(
            f"stacked tangent kernels differ from the engine's by {apart:.2g} of the largest entry; expected at most {AGREE:g}:"
            " the network is no chain of affine layers and ReLUs"
        )
    return apart


def centred(K: Float64[Tensor, "k n n"]) -> Float64[Tensor, "k n n"]:
    """H K H of every kernel."""
    mean = K.mean(-1, keepdim=True)
    return K - mean - mean.mT + mean.mean(-2, keepdim=True)


def centred_alignments(K: Float64[Tensor, "k n n"], y: Float64[Tensor, "k n"]) -> Float64[Tensor, " k"]:
    """`⟨H K H, y yᵀ⟩ / (‖H K H‖ ‖H y‖²)` of every kernel, as `measures.alignment`; O(k n²).

    NaN where the centred kernel or target is 0.
    """
    H, z = centred(K), y - y.mean(-1, keepdim=True)
    along = torch.einsum("ki,kij,kj->k", z, H, z)
    scale = torch.linalg.matrix_norm(H) * z.square().sum(-1)
    return torch.where(scale > 0, along / scale, torch.nan)


@dataclass(frozen=True, eq=False)
class RidgeFits:
    """Predictions of every kernel at the strength with the least squared error on the validation points."""

    predictions: Float64[Tensor, "k m"]
    chosen: Int64[Tensor, " k"]
    errors: Float64[Tensor, "k s"]
    """Mean squared errors on the validation points; infinite where rounding left the system indefinite."""


def ridge_fits(
    K: Float64[Tensor, "k n n"],
    y: Float64[Tensor, "k n"],
    validation: tuple[Float64[Tensor, "k v n"], Float64[Tensor, "k v"]],
    K_test: Float64[Tensor, "k m n"],
    strengths: Sequence[float],
) -> RidgeFits:
    """`f(x) = b + κ(x, X) c`, `(H K H + α I) c = H y`, b free, as `KernelRidgeLOO`; O(k s n³/3).

    `strengths` are multiples of the mean diagonal of the centred kernel H K H. Of equal errors the larger strength wins.
    """
    k, n, _ = K.shape
    H = centred(K)
    unit = H.diagonal(dim1=-2, dim2=-1).mean(-1)
    alphas = unit[:, None] * torch.tensor(list(strengths), dtype=K.dtype, device=K.device)
    s = alphas.shape[1]
    systems = H[:, None].repeat(1, s, 1, 1)
    systems.diagonal(dim1=-2, dim2=-1).add_(alphas[..., None])
    z = y - y.mean(-1, keepdim=True)
    c = solve_stack(systems.view(k * s, n, n), z[:, None].expand(k, s, n).reshape(k * s, n)).view(k, s, n)
    del systems
    b = y.mean(-1)[:, None] - (K.mean(-1, keepdim=True).mT @ c.mT)[:, 0]  # the mean of y - K c
    K_held, y_held = validation
    errors = (c @ K_held.mT + b[..., None] - y_held[:, None]).square().mean(-1)
    errors = torch.where(torch.isfinite(errors), errors, torch.inf)
    best = s - 1 - errors.flip(-1).argmin(-1)
    rows = torch.arange(k, device=K.device)
    predictions = (K_test @ c[rows, best][..., None])[..., 0] + b[rows, best][:, None]
    return RidgeFits(predictions, best, errors)


def solve_stack(
    A: Float64[Tensor, "k n n"], y: Float64[Tensor, "k n"], block: int | None = None
) -> Float64[Tensor, "k n"]:
    """`A⁻¹ y` for a stack of positive definite matrices, of which the lower halves are overwritten by their factors.

    Blocks of columns, each step a product of the whole stack: on a GPU the factorisation of one small matrix after the other
    leaves it idle. NaN for a matrix that is not positive definite; O(k n³/3).
    """
    n = A.shape[-1]
    block = max(BLOCK, n // 8) if block is None else block
    z = y.clone()[..., None]
    starts = range(0, n, block)
    for start in starts:
        end = min(start + block, n)
        corner, failed = torch.linalg.cholesky_ex(A[:, start:end, start:end])
        corner = torch.where((failed == 0)[:, None, None], corner, torch.nan)
        A[:, start:end, start:end] = corner
        z[:, start:end] = torch.linalg.solve_triangular(corner, z[:, start:end], upper=False)
        if end == n:
            break
        below = torch.linalg.solve_triangular(corner.mT, A[:, end:, start:end], upper=True, left=False)
        A[:, end:, start:end] = below
        z[:, end:] -= below @ z[:, start:end]
        for column in range(end, n, block):  # the lower half alone
            last = min(column + block, n)
            A[:, column:, column:last] -= below[:, column - end :] @ below[:, column - end : last - end].mT
    for start in reversed(starts):
        end = min(start + block, n)
        rest = z[:, start:end] - A[:, end:, start:end].mT @ z[:, end:]
        z[:, start:end] = torch.linalg.solve_triangular(A[:, start:end, start:end].mT, rest, upper=True)
    return z[..., 0]
