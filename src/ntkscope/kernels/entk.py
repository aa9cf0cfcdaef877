"""The empirical NTK, all pairs of outputs: `Θ(x, x')_{kl} = <∂f_k(x)/∂θ, ∂f_l(x')/∂θ>`."""

from __future__ import annotations

from ntkscope.kernels import _tangent, costs
from ntkscope.kernels.registry import KERNELS, Request
from ntkscope.linalg import Gram
from ntkscope.tangent.blocks.heads import as_heads


@KERNELS.register(
    "entk",
    cost=costs.every_pair_of_outputs,
    per_output=True,
    title="empirical NTK",
    meant_by=("ntk", "empirical-ntk", "full-ntk", "jacobian"),
)
def entk(request: Request, *, precision: str = "exact", schedule: str = "auto") -> Gram:
    """Shape (n·c, m·c), row `i*c + k` is output k of sample i; `.blocks()` gives (n, m, c, c)."""
    return _tangent.kernel(request, as_heads(request.outputs), full=True, precision=precision, schedule=schedule)
