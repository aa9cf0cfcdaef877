"""The neural feature ansatz: do a layer's weights look for what its outputs are sensitive to?

W (out, in) are the weights, `F = WᵀW` is the neural feature matrix (NFM); `K = 1/n Σ b bᵀ` (out, out) is the covariance of the
tangents b, derivatives of the outputs by the layer's pre-activations, and `G = WᵀKW` the average gradient outer product (AGOP)
by the layer's inputs. Beaglehole, Mitliagkas & Agarwala, "Gradient descent induces alignment between weights and the
pre-activation tangents for deep non-linear networks" (2024). The paper prints K without 1/n; `G = WᵀKW` needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Annotated, Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ntkscope.core import NumericalError, UsageError
from ntkscope.core.arguments import finite, tensor_of
from ntkscope.linalg.features.correlation import Control, centred_pair, weighted_correlation
from ntkscope.linalg.features.correlation import haar_control as _haar_control
from ntkscope.measures.registry import measure

__all__ = [
    "Control",
    "double_centred_ratio",
    "egop",
    "feature_ansatz",
    "haar_control",
    "nfa_correlation",
    "sixteen_terms",
]

FourthPowers: TypeAlias = Annotated[Any, 2.0**240]


@measure("feature-ansatz", of="weights and tangents", low=-1, high=1, best=1)
def feature_ansatz(W: Any, K: Any) -> float:
    """`ρ(WᵀW, WᵀKW)`, the correlation of NFM and AGOP; 1 where K is a multiple of the identity. Proposition 2.

    Examples:
        >>> round(feature_ansatz([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]), 6)
        0.707107
    """
    return nfa_correlation(W, K)


def nfa_correlation(
    W: Any,
    K: Any,
    *,
    W0: Any = None,
    Kc: Any = None,
    centring: str | None = None,
    pearson: bool = False,
    diagonal: bool = False,
) -> float:
    """The correlation of NFM and AGOP, of one of four kinds:

    | centring | compares | paper |
    | --- | --- | --- |
    | None | `WᵀW`, `WᵀKW` | uncentred, ansatz 1 |
    | "weights" | `W̄ᵀW̄`, `W̄ᵀKW̄`, with `W̄ = W - W₀` | centred, section 2.3 |
    | "both" | `W̄ᵀW̄`, `W̄ᵀK̄W̄` | double-centred, ansatz 5 |
    | "tangents" | `W₀ᵀW₀`, `W₀ᵀK̄W₀` | PTK-centred, ansatz 6 |

    `Kc` is `K̄ = 1/n Σ (b - b₀)(b - b₀)ᵀ`, from the tangents b of the trained and b₀ of the initial network at the same inputs;
    it is not the difference of two covariances. `pearson` subtracts from each matrix the mean of its entries first, `diagonal`
    compares the diagonals (together: appendix I). Arrays or tensors; float64; nothing of size in² is made where in > out.

    Examples:
        >>> W, W0 = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[0.0, 0.0], [0.0, 3.0]])
        >>> nfa_correlation(W, torch.diag(torch.tensor([1.0, 7.0])), W0=W0, centring="weights")
        1.0
    """
    weights, tangents = _chosen(W, K, W0, Kc, centring)
    return weighted_correlation(weights, tangents, pearson=pearson, diagonal=diagonal)


def haar_control(
    W: Any,
    K: Any,
    *,
    draws: int = 200,
    seed: int = 0,
    pearson: bool = False,
    diagonal: bool = False,
) -> Control:
    """`nfa_correlation` with K's eigenvectors replaced by Haar-distributed ones: `.values`, `.mean`, `.quantiles`, `.p_value`.

    For a centred form pass its matrices, such as `W - W0`. `E[WᵀQW]` is proportional to `WᵀW`, so a single draw says little.

    Examples:
        >>> haar_control(torch.eye(3), torch.eye(3), draws=5).mean
        1.0
    """
    weights, tangents = _chosen(W, K, None, None, None)
    return _haar_control(weights, tangents, draws=draws, seed=seed, pearson=pearson, diagonal=diagonal)


def sixteen_terms(W: FourthPowers, W0: FourthPowers, K: Any) -> dict[str, float]:
    """The terms of `tr(WᵀW WᵀKW)` after `W = W₀ + W̄` in each of its four places, by the letters of the places.

    "0" stands for W₀, "c" for W̄: `"0c0c"` is `tr(W₀ᵀW̄ W₀ᵀKW̄)`. `"cccc"` is the numerator of the centred ansatz, and all sixteen
    add up to that of the uncentred one. 16 products (out, out). Section 2.3.

    Examples:
        >>> terms = sixteen_terms([[3.0]], [[1.0]], [[1.0]])
        >>> sum(terms.values()), terms["cccc"], terms["0000"]
        (81.0, 16.0, 1.0)
    """
    weights, tangents = _chosen(W, K, None, None, None)
    initial = _matrix(W0, "the initial weights")
    if initial.shape != weights.shape:
        raise UsageError(
            f"got weights {tuple(weights.shape)} and initial weights {tuple(initial.shape)}; expected one shape"
        )
    parts = {"0": initial, "c": weights - initial}
    outer = {left + right: parts[left] @ parts[right].T for left, right in product(parts, repeat=2)}
    terms = {}
    for a, b, c, d in product(parts, repeat=4):  # tr(AᵀB CᵀK D) = tr((D Aᵀ)(B Cᵀ) K)
        terms[a + b + c + d] = float(((outer[d + a] @ outer[b + c]) * tangents.T).sum())
    return terms


def double_centred_ratio(W: FourthPowers, W0: FourthPowers, K: Any, Kc: Any) -> float:
    """`tr(W̄ᵀW̄ W̄ᵀK̄W̄) / tr(W̄ᵀW̄ W̄ᵀKW̄)`, unnormalised: what the change of the tangents adds. Appendix B, figure 4.

    Examples:
        >>> double_centred_ratio([[3.0]], [[1.0]], [[4.0]], [[1.0]])
        0.25
    """
    moved, tangents = _chosen(W, K, W0, None, "weights")
    _, centred = _chosen(W, K, W0, Kc, "both")
    S = moved @ moved.T
    numerator, denominator = float((S @ S * centred).sum()), float((S @ S * tangents).sum())
    if not denominator > 0:
        raise NumericalError("the centred AGOP is zero, so the ratio is undefined: no output depends on this layer")
    return numerator / denominator


def egop(target: Callable[[Tensor], Tensor], x: Any) -> Float[Tensor, "d d"]:
    """`1/n Σ_i Σ_c ∂y_c/∂x ∂y_c/∂xᵀ` of a differentiable function at samples of its inputs: the EGOP of a known target. Eq. 2.

    `target` takes inputs (n, d) and gives (n,) or (n, c), each row from its own input alone. float64, one backward pass per
    output. For quadratic targets on Gaussian inputs the data sets hold the expectation itself (`split.extras["egop"]`).

    Examples:
        >>> egop(lambda x: x[:, 0] * x[:, 1], [[1.0, 2.0]])
        tensor([[4., 2.],
                [2., 1.]], dtype=torch.float64)
    """
    inputs = tensor_of(x, "the inputs", 2).cpu().clone().requires_grad_()
    with torch.enable_grad():
        values = target(inputs)
        if not isinstance(values, Tensor) or values.dim() not in (1, 2) or len(values) != len(inputs):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise UsageError(f"the target gives {got} for {len(inputs)} inputs; expected a tensor (n,) or (n, outputs)")
        if not values.requires_grad:
            raise UsageError("the target's values do not depend on x as far as autograd can see: look for .detach()")
        total = torch.zeros(inputs.shape[1], inputs.shape[1], dtype=torch.float64)
        for column in values.reshape(len(inputs), -1).T:
            (gradient,) = torch.autograd.grad(column.sum(), inputs, retain_graph=True)
            total += gradient.T @ gradient
    if not bool(torch.isfinite(total).all()):
        raise NumericalError("the target's gradients hold NaN or infinity at some input; leave those inputs out")
    return total / len(inputs)


def _chosen(W: Any, K: Any, W0: Any, Kc: Any, centring: str | None) -> tuple[Tensor, Tensor]:
    weights, tangents = _matrix(W, "the weights"), _matrix(K, "the covariance of tangents")
    initial = None if W0 is None else _matrix(W0, "the initial weights")
    centred = None if Kc is None else _matrix(Kc, "the covariance of centred tangents")
    return centred_pair(weights, tangents, initial, centred, centring)


def _matrix(values: Any, name: str) -> Tensor:
    return torch.from_numpy(finite(values, name, 2))
