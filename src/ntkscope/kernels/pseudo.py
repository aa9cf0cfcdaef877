"""The pseudo-NTK: `1/C <∇Σ_c f_c(x), ∇Σ_c f_c(x')>`, one backward pass whatever the number of outputs."""

from __future__ import annotations

from ntkscope.kernels import _tangent
from ntkscope.kernels.registry import KERNELS, Request
from ntkscope.linalg import Gram
from ntkscope.tangent.engine import Heads


@KERNELS.register("pntk")
def pntk(request: Request, *, precision: str = "exact", per_layer: bool = False) -> Gram:
    """Mohamadi & Sutherland (2022); C counts the chosen outputs."""
    heads = Heads(request.outputs, summed=True)
    subject, made = _tangent.run(request, heads, full=False, precision=precision, per_layer=per_layer)
    return _tangent.gram(request, subject, made, scale=1.0 / made.outputs)
