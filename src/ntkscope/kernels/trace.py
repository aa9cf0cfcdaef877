"""The trace-NTK: `Σ_c <g_c(x), g_c(x')>`, a sum over outputs; normalised it is a kernel of cosines."""

from __future__ import annotations

from ntkscope.kernels import _tangent, costs
from ntkscope.kernels.registry import KERNELS, Request
from ntkscope.linalg import Gram
from ntkscope.tangent.blocks.heads import as_heads


@KERNELS.register(
    "trntk0", cost=costs.exact, priority=1, title="trace NTK", meant_by=("ntk", "tntk", "trace", "trace-ntk")
)
def trntk0(
    request: Request,
    *,
    precision: str = "exact",
    per_layer: bool = False,
    profile: bool = False,
    schedule: str = "auto",
) -> Gram:
    """Unnormalised; `per_layer=True` keeps the share of every parameter in `.contributions`.

    `precision`: "exact", "float32" (plain products), or on a GPU "tf32", "bf16", "fp16" (faster, with the
    error docs/science.md states).
    `profile=True` waits for the device around every step, so that the times in `.coverage` are true ones there too.
    `schedule`: "blocks" keeps formed gradients while blocks of samples pass by, "layers" keeps factors and forms gradients
    layer by layer; "auto" takes what should be quicker (docs/guides/scale.md). `print(K.meta["plan"])` says what was chosen.
    """
    heads = as_heads(request.outputs)
    return _tangent.kernel(request, heads, precision=precision, per_layer=per_layer, profile=profile, schedule=schedule)


@KERNELS.register(
    "trntk",
    cost=costs.exact,
    normalizes="trntk0",
    priority=1,
    title="trace NTK, normalised",
    meant_by=("tntk", "trace", "trace-ntk", "cosine-ntk", "normalized-ntk"),
)
def trntk(request: Request, *, precision: str = "exact", schedule: str = "auto") -> Gram:
    """`K(x, x') / sqrt(K(x, x) K(x', x'))`, diagonal exactly 1 (Engel et al. 2023, Eq. 4 with the root over the sum).

    On disk it is kept unnormalised and divided when it is read, since k(x, x) is known last.
    """
    return _tangent.kernel(request, as_heads(request.outputs), precision=precision, normalize=True, schedule=schedule)
