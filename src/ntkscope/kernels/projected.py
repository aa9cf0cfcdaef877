"""Tangent kernels of randomly projected gradients: proj-trntk and proj-pntk.

`φ_c(x) = P g_c(x)` with one P of K rows for all outputs, scaled so that `E[φ·φ'] = g·g'`. The Gram is held by its features:
n · heads · K numbers, never n × n unless asked, and says its own standard errors. Entries of P come from counters, so a
seed gives the same projection on every device and for every block size.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

from ntkscope.core import MemoryBudgetError, UsageError, derive_seed, generator
from ntkscope.core.progress import counter
from ntkscope.kernels import _tangent
from ntkscope.kernels._sketching import Sketch, make_sketch, project_block, table_bytes
from ntkscope.kernels.registry import KERNELS, Request, describe
from ntkscope.linalg import FactoredGram, Gram
from ntkscope.linalg.batch_means import group_count
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.engine import Engine, Heads
from ntkscope.tangent.harvest import PathChanged
from ntkscope.tangent.pieces import Piece
from ntkscope.tangent.plan import SLACK, show_bytes
from ntkscope.tangent.precision import Precision

BLOCK = {"cpu": 256, "cuda": 512}  # samples projected together; a projection is drawn once a block
DIM = 10240
PILOT, STEP, SAMPLES, STAGES = 1024, 256, 64, 6  # columns tried first and added at least; inputs looked at; most stages
MARGIN = 1.1  # the error itself is estimated


@KERNELS.register("proj-trntk")
def proj_trntk(
    request: Request,
    *,
    dim: int | None = None,
    kind: str = "rademacher",
    normalize: bool = True,
    precision: str = "exact",
    sparsity: int | None = None,
    rtol: float | None = None,
) -> Gram:
    """`Σ_c <P g_c(x), P g_c(x')>`, as cosines unless `normalize=False` (Engel et al. 2023, Eq. 6).

    `kind`: "rademacher" or "gaussian", dense; "sparse", where each coordinate goes to `sparsity` (64) of the `dim` (10,240)
    rows, the same error for a fraction of the work; "kronecker", sparse too, but a layer with few positions is projected
    from its two sides without forming its gradient. `rtol`: choose `dim` so that the error of the kernel's entries is that
    part of them, root mean square over pairs; `meta["error"]` says what was reached.

    `precision`: "exact", or on a GPU "tf32", "bf16", "fp16": gradients and projection in that many bits, float32 sums.
    """
    return _projected(request, Heads(request.outputs), dim, kind, normalize, precision, sparsity, rtol)


@KERNELS.register("proj-pntk")
def proj_pntk(
    request: Request,
    *,
    dim: int | None = None,
    kind: str = "rademacher",
    normalize: bool = True,
    precision: str = "exact",
    sparsity: int | None = None,
    rtol: float | None = None,
) -> Gram:
    """`1/C <P ∇Σ_c f_c(x), P ∇Σ_c f_c(x')>`, as cosines unless `normalize=False` (Engel et al. 2023, Eq. 5).

    The options are those of `proj_trntk`.
    """
    heads = Heads(request.outputs, summed=True)
    return _projected(request, heads, dim, kind, normalize, precision, sparsity, rtol)


def _projected(
    request: Request,
    heads: Heads,
    dim: int | None,
    kind: str,
    normalize: bool,
    precision: str,
    sparsity: int | None,
    rtol: float | None,
) -> Gram:
    if rtol is not None and (dim is not None or not rtol > 0):
        raise UsageError(f"rtol={rtol} came with dim={dim}; expected a positive rtol alone, or dim alone")
    subject = _tangent.chosen_subject(request)
    func: frozenset[str] = frozenset()
    rounding = Precision(precision, subject.dtype)
    with rounding.context():
        while True:
            engine = Engine(subject, request.x1, heads, full=False, precision=rounding, func=func)
            try:
                return _gram(engine, request, DIM if dim is None else dim, kind, normalize, sparsity, rtol)
            except PathChanged as change:
                func |= change.names


def _gram(
    engine: Engine, request: Request, dim: int, kind: str, normalize: bool, sparsity: int | None, rtol: float | None
) -> Gram:
    if rtol is not None:
        dim = _needed(engine, request, kind, normalize, sparsity, rtol)
    stages: list[Sketch] = []
    left = right = None
    while True:
        seed = derive_seed(request.seed, "stage", len(stages)) if stages else request.seed
        stages.append(make_sketch(engine, kind, dim, seed, sparsity, stages[0].kronecker if stages else None))
        left = _joined(left, project(engine, request, request.x1, stages[-1]), stages)
        if request.x2 is not None:
            right = _joined(right, project(engine, request, request.x2, stages[-1]), stages)
        made = _made(engine, request, left, right, stages, normalize)
        if rtol is None:
            return made
        rows, columns = _sample(len(request.x1), request), _sample(made.shape[1], request)
        reached = _relative_error(made, rows, columns)
        made.meta["error"] = {  # type: ignore[index]
            "rtol": rtol,
            "relative": reached,
            "inputs": [len(rows), len(columns)],
            "stages": [stage.dim for stage in stages],
        }
        if reached <= rtol or len(stages) == STAGES:
            return made
        dim = _rounded(sum(stage.dim for stage in stages) * (MARGIN * (reached / rtol) ** 2 - 1))


def _joined(before: Tensor | None, new: Tensor, stages: list[Sketch]) -> Tensor:
    """The features of all stages side by side, each weighted by its share of the columns."""
    if before is None:
        return new
    total = sum(stage.dim for stage in stages)
    parts = (before * ((total - stages[-1].dim) / total) ** 0.5, new * (stages[-1].dim / total) ** 0.5)
    return torch.cat(parts, dim=2)


def _made(
    engine: Engine, request: Request, left: Tensor, right: Tensor | None, stages: list[Sketch], normalize: bool
) -> FactoredGram:
    left, right = left.flatten(1), None if right is None else right.flatten(1)
    if engine.heads.summed:
        left, right = left / engine.chosen**0.5, None if right is None else right / engine.chosen**0.5
    sketch, dim = stages[0], sum(stage.dim for stage in stages)
    groups = group_count(dim if sketch.dense else sketch.sparsity)
    meta = describe(
        engine.subject, dim=dim, kind=sketch.kind, seed=request.seed, precision=engine.precision.name, groups=groups
    )
    if not sketch.dense:
        meta |= {"sparsity": sketch.sparsity, "factored": sorted(sketch.kronecker)}
    made = FactoredGram(left, right, groups=groups, name=request.name, coverage=engine.coverage(), meta=meta)
    if normalize:
        made = made.normalized()  # type: ignore[assignment]
    return made


def _needed(engine: Engine, request: Request, kind: str, normalize: bool, sparsity: int | None, rtol: float) -> int:
    """How many columns an error of `rtol` takes, from a first few columns for some inputs; the error falls as 1/√columns."""
    x1 = request.x1[_sample(len(request.x1), request)]
    x2 = None if request.x2 is None else request.x2[_sample(len(request.x2), request)]
    sketch = make_sketch(engine, kind, PILOT, derive_seed(request.seed, "pilot"), sparsity)
    left = project(engine, request, x1, sketch)
    right = None if x2 is None else project(engine, request, x2, sketch)
    made = _made(engine, request, left, right, [sketch], normalize)
    every = torch.arange(made.shape[0]), torch.arange(made.shape[1])
    return _rounded(PILOT * MARGIN * (_relative_error(made, *every) / rtol) ** 2)


def _rounded(dim: float) -> int:
    return max(1, ceil(dim / STEP)) * STEP


def _sample(n: int, request: Request) -> Tensor:
    """Some of n inputs, in their order."""
    chosen = torch.randperm(n, generator=generator(request.seed, "error pairs", n))[:SAMPLES]
    return chosen.sort().values


def _relative_error(made: FactoredGram, rows: Tensor, columns: Tensor) -> float:
    """`√(Σ error² / Σ K²)` over pairs of different inputs."""
    values = made[rows, columns].dense().double()
    errors = made.standard_error(rows, columns)
    if made.symmetric and len(rows) > 1:
        apart = rows[:, None] != columns[None, :]
        values, errors = values[apart], errors[apart]
    return float((errors.square().sum() / values.square().sum()).sqrt())


def project(engine: Engine, request: Request, x: Batch, sketch: Sketch) -> Tensor:
    """The projected gradients of every sample, (n, heads, dim)."""
    n, heads, dim, size = len(x), engine.width, sketch.dim, engine.subject.dtype.itemsize
    features = torch.empty(n, heads, dim, dtype=engine.subject.dtype, device=engine.subject.device)
    block, rows = _blocks(engine, request.memory - n * heads * dim * size, sketch, n)
    with counter(n, "projection", enabled=request.progress) as bar:
        for start in range(0, n, block):
            crop = engine.harvest(x[start : start + block])
            features[start : start + block] = project_block(engine, crop, sketch, rows)
            bar.advance(min(block, n - start))
    return features


def _blocks(engine: Engine, memory: int, sketch: Sketch, n: int) -> tuple[int, int]:
    """Samples a block and rows of a dense projection a step, so that both fit."""
    size, dim = engine.subject.dtype.itemsize, sketch.dim
    cuda = engine.subject.device.type == "cuda"

    def sample_bytes(piece: Piece) -> int:
        formed = 0 if piece.name in sketch.kronecker and piece.road != "func" else 3 * engine.width * piece.numbers
        return (piece.forming_numbers(engine.width) + formed) * size

    func = sum(2 * engine.width * piece.numbers for piece in engine.pieces if piece.road == "func")
    each = engine.graph_bytes + engine.width * engine.arrived_bytes + func * size
    each += max(map(sample_bytes, engine.pieces)) + engine.width * dim * size * (1 if sketch.dense else 3)
    fixed = 64 * dim * (size + 8)
    if not sketch.dense:
        fixed += table_bytes(engine, sketch)
    least = each + fixed
    if memory * SLACK < least:
        needed = (n * engine.width * dim * size) + least / SLACK
        raise MemoryBudgetError(
            f"memory={show_bytes(memory + n * engine.width * dim * size)} came for {n} projected samples; the smallest budget"
            f" that works is {show_bytes(needed * 1.01)} ({int(needed * 1.01)} bytes): raise memory= or lower dim="
        )
    longest = 2**16 if cuda else 2**13  # fewer, longer products for a GPU
    rows = int(max(64, min(longest, memory * SLACK / 4 / (dim * (size + 8)))))
    block = int((memory * SLACK - (rows * dim * (size + 8) if sketch.dense else fixed)) / each)
    return max(1, min(n, BLOCK.get(engine.subject.device.type, 256), block)), rows
