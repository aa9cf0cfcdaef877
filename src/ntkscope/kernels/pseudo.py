"""The pseudo-NTK: `1/C <∇Σ_c f_c(x), ∇Σ_c f_c(x')>`, one backward pass whatever the number of outputs."""

from __future__ import annotations

from ntkscope.kernels import _tangent, costs
from ntkscope.kernels.registry import KERNELS, Request
from ntkscope.linalg import Gram
from ntkscope.tangent.blocks.heads import as_heads


@KERNELS.register(
    "pntk", cost=costs.summed, priority=4, title="pseudo-NTK", meant_by=("pseudo", "pseudo-ntk", "sum-ntk")
)
def pntk(request: Request, *, precision: str = "exact", per_layer: bool = False, schedule: str = "auto") -> Gram:
    """Mohamadi & Sutherland (2022); C counts the chosen outputs."""
    heads = as_heads(request.outputs, summed=True)
    return _tangent.kernel(request, heads, precision=precision, mean=True, per_layer=per_layer, schedule=schedule)
