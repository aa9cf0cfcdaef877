"""Tangent kernels of randomly projected gradients: proj-trntk and proj-pntk.

`φ_c(x) = P g_c(x)` with one P of K rows for all outputs, entries of variance 1/K, so that `E[φ·φ'] = g·g'`. The Gram
is held by its features: n · heads · K numbers, never n × n unless asked. Entries of P come from counters, so a seed gives
the same projection on every device and for every block size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ntkscope.core import MemoryBudgetError
from ntkscope.core.progress import counter
from ntkscope.kernels import _tangent
from ntkscope.kernels.registry import KERNELS, Request, describe
from ntkscope.linalg import FactoredGram, Gram
from ntkscope.linalg.sketch import projection_rows
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.engine import Engine, Heads
from ntkscope.tangent.harvest import Harvest, PathChanged
from ntkscope.tangent.pieces import Piece
from ntkscope.tangent.plan import SLACK, show_bytes
from ntkscope.tangent.precision import Precision

BLOCK = {"cpu": 256, "cuda": 512}  # samples projected together; a projection is drawn once a block


@KERNELS.register("proj-trntk")
def proj_trntk(
    request: Request,
    *,
    dim: int = 10240,
    kind: str = "rademacher",
    normalize: bool = True,
    precision: str = "exact",
) -> Gram:
    """`Σ_c <P g_c(x), P g_c(x')>`, as cosines unless `normalize=False` (Engel et al. 2023, Eq. 6).

    `precision`: "exact", or on a GPU "tf32", "bf16", "fp16": gradients and projection in that many bits, float32 sums.
    """
    return _projected(request, Heads(request.outputs), dim, kind, normalize, precision)


@KERNELS.register("proj-pntk")
def proj_pntk(
    request: Request,
    *,
    dim: int = 10240,
    kind: str = "rademacher",
    normalize: bool = True,
    precision: str = "exact",
) -> Gram:
    """`1/C <P ∇Σ_c f_c(x), P ∇Σ_c f_c(x')>`, as cosines unless `normalize=False` (Engel et al. 2023, Eq. 5).

    `precision` as for `proj_trntk`.
    """
    return _projected(request, Heads(request.outputs, summed=True), dim, kind, normalize, precision)


def _projected(request: Request, heads: Heads, dim: int, kind: str, normalize: bool, precision: str) -> Gram:
    subject = _tangent.chosen_subject(request)
    func: frozenset[str] = frozenset()
    rounding = Precision(precision, subject.dtype)
    with rounding.context():
        while True:
            engine = Engine(subject, request.x1, heads, full=False, precision=rounding, func=func)
            try:
                left = project(engine, request, request.x1, dim, kind)
                right = None if request.x2 is None else project(engine, request, request.x2, dim, kind)
                break
            except PathChanged as change:
                func |= change.names
    if heads.summed:
        left = left / engine.chosen**0.5
        right = None if right is None else right / engine.chosen**0.5
    meta = describe(subject, dim=dim, kind=kind, seed=request.seed, precision=precision)
    made = FactoredGram(left, right, name=request.name, coverage=engine.coverage(), meta=meta)
    return made.normalized() if normalize else made


def project(engine: Engine, request: Request, x: Batch, dim: int, kind: str) -> Tensor:
    """The projected gradients of every sample, (n, heads · dim); 2 n · heads · parameters · dim flops."""
    n, heads, size = len(x), engine.width, engine.subject.dtype.itemsize
    features = torch.empty(n, heads, dim, dtype=engine.subject.dtype, device=engine.subject.device)
    block, rows = _blocks(engine, request.memory - n * heads * dim * size, dim, n)
    with counter(n, "projection", enabled=request.progress) as bar:
        for start in range(0, n, block):
            crop = engine.harvest(x[start : start + block])
            features[start : start + block] = _project_block(engine, crop, request.seed, dim, kind, rows)
            bar.advance(min(block, n - start))
    return features.flatten(1)


def _project_block(engine: Engine, crop: Harvest, seed: int, dim: int, kind: str, rows: int) -> Tensor:
    subject, rounding = engine.subject, engine.precision
    total = torch.zeros(crop.n * engine.width, dim, dtype=subject.dtype, device=subject.device)
    unit = torch.tensor(dim**-0.5, dtype=rounding.storage).double().item()  # all signs are rounded by one factor
    rounded = dim**-0.5 / unit if kind == "rademacher" and rounding.storage != subject.dtype else 1.0
    for piece in engine.pieces:
        values = (crop.func[piece.name] if piece.road == "func" else crop.gradient(piece)).flatten(0, 1)
        offset = piece.start * (piece.numbers // (piece.stop - piece.start))
        for at in range(0, piece.numbers, rows):
            stop = min(piece.numbers, at + rows)
            table = projection_rows(
                seed, piece.name, offset + at, offset + stop, dim, kind, rounding.storage, subject.device
            )
            if rounding.storage == subject.dtype:
                total.addmm_(values[:, at:stop], table)
            else:
                stored, scale = rounding.store(values[:, at:stop])
                made = rounding.product(stored, table.T)
                total += made if scale is None else made * scale[:, None]
    if rounded != 1.0:
        total *= rounded
    return total.unflatten(0, (crop.n, engine.width))


def _blocks(engine: Engine, memory: int, dim: int, n: int) -> tuple[int, int]:
    """Samples a block and rows of the projection a step, so that both fit."""
    size = engine.subject.dtype.itemsize

    def sample_bytes(piece: Piece) -> int:
        return (piece.forming_numbers(engine.width) + 3 * engine.width * piece.numbers) * size

    func = sum(2 * engine.width * piece.numbers for piece in engine.pieces if piece.road == "func")
    each = engine.graph_bytes + engine.width * engine.arrived_bytes + func * size
    each += max(map(sample_bytes, engine.pieces)) + engine.width * dim * size
    least = each + 64 * dim * (size + 8)
    if memory * SLACK < least:
        needed = (n * engine.width * dim * size) + least / SLACK
        raise MemoryBudgetError(
            f"memory={show_bytes(memory + n * engine.width * dim * size)} came for {n} projected samples; the smallest budget"
            f" that works is {show_bytes(needed * 1.01)} ({int(needed * 1.01)} bytes): raise memory= or lower dim="
        )
    longest = 2**16 if engine.subject.device.type == "cuda" else 2**13  # fewer, longer products for a GPU
    rows = int(max(64, min(longest, memory * SLACK / 4 / (dim * (size + 8)))))
    block = int((memory * SLACK - rows * dim * (size + 8)) / each)
    return max(1, min(n, BLOCK.get(engine.subject.device.type, 256), block)), rows
