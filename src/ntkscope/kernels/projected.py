"""Tangent kernels of randomly projected gradients: proj-trntk and proj-pntk.

`φ_c(x) = P g_c(x)` with one P of K rows for all outputs, scaled so that `E[φ·φ'] = g·g'`. The Gram is held by its features:
n · heads · K numbers, never n × n unless asked, and says its own standard errors. Entries of P come from counters, so a
seed gives the same projection on every device and for every block size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
from torch import Tensor

from ntkscope.core import UsageError, derive_seed, generator
from ntkscope.core.checked import Count, Positive
from ntkscope.kernels import _projected_store, costs
from ntkscope.kernels._projecting import project
from ntkscope.kernels._sketch import Sketch
from ntkscope.kernels._sketching import make_sketch
from ntkscope.kernels.registry import KERNELS, Request, describe
from ntkscope.linalg import FactoredGram, Gram
from ntkscope.linalg.sketches.batch_means import group_count
from ntkscope.tangent.blocks.heads import Heads, as_heads
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.kernel.engine import Engine
from ntkscope.tangent.model.arithmetic import check_feature_range

DIM = 10240
PILOT, STEP, SAMPLES, STAGES = 1024, 256, 64, 6  # columns tried first and added at least; inputs looked at; most stages
MARGIN = 1.1  # the error itself is estimated


@dataclass(frozen=True)
class Projection:
    """The options of a projected kernel that decide its numbers."""

    dim: int | None
    kind: str
    normalize: bool
    sparsity: int | None
    rtol: float | None


def _registered(name: str, doc: str, *, summed: bool, quick: int, priority: int, title: str) -> Callable[..., Gram]:
    """Register the projected kernel of every output, or of their sum; `quick`: its columns for a first look."""

    @KERNELS.register(
        name,
        cost=costs.projected(quick, every_output=not summed),
        features=True,
        quick={"dim": quick},
        priority=priority,
        title=title,
        meant_by=("proj-ntk", "projected", "projected-ntk", "trak"),
    )
    def kernel(
        request: Request,
        *,
        dim: Count | None = None,
        kind: str = "rademacher",
        normalize: bool = True,
        precision: str = "exact",
        sparsity: Count | None = None,
        rtol: Positive | None = None,
        profile: bool = False,
    ) -> Gram:
        chosen = Projection(dim, kind, normalize, sparsity, rtol)
        return _projected(request, as_heads(request.outputs, summed=summed), chosen, precision, profile)

    kernel.__doc__ = doc
    return kernel


proj_trntk = _registered(
    "proj-trntk",
    """`Σ_c <P g_c(x), P g_c(x')>`, as cosines unless `normalize=False` (Engel et al. 2023, Eq. 6).

    `kind`: "rademacher" or "gaussian", dense; "sparse", where each coordinate goes to `sparsity` (64) of the `dim` (10,240)
    rows, the same error for a fraction of the work; "kronecker", sparse too, but a layer with few positions is projected
    from its two sides without forming its gradient. `rtol`: choose `dim` so that the error of the kernel's entries is that
    part of them, root mean square over pairs; `meta["error"]` says what was reached.

    `precision`: "exact", "float32" (plain products), or on a GPU "tf32", "bf16", "fp16": gradients and
    projection in that many bits, float32 sums.
    `profile=True` waits for the device around every step, so that the times in `.coverage` are true ones there too.
    """,
    summed=False,
    quick=256,  # the error of a cosine is about 1/√columns
    priority=6,
    title="trace NTK, projected and normalised",
)
proj_pntk = _registered(
    "proj-pntk",
    """`1/C <P ∇Σ_c f_c(x), P ∇Σ_c f_c(x')>`, as cosines unless `normalize=False` (Engel et al. 2023, Eq. 5).

    The options are those of `proj_trntk`.
    """,
    summed=True,
    quick=1024,
    priority=5,
    title="pseudo-NTK, projected and normalised",
)


def _projected(request: Request, heads: Heads, chosen: Projection, precision: str, profile: bool) -> Gram:
    if chosen.rtol is not None and chosen.dim is not None:
        raise UsageError(f"got rtol={chosen.rtol} with dim={chosen.dim}; expected rtol alone, or dim alone")
    if request.store is not None and request.x2 is not None:
        raise UsageError(
            "got store= with two sets of inputs; expected one: its features are kept, and ns.kernels.extend(store, model,"
            " x2) gives the kernel of others with them"
        )
    if request.store is not None and heads.sketch is not None:
        raise UsageError("got store= with outputs=OutputSketch(...); leave one of them out")
    if chosen.normalize and request.store is None:
        heads = replace(heads, unit=None)  # of cosines nothing else is left
    engines = request.engines()
    rounding = Precision(precision, engines.subject.dtype)
    attempts = engines.attempts(request.x1, heads, full=False, precision=rounding, profile=profile)
    while True:
        with attempts, rounding.context():
            return _gram(attempts.engine(), request, chosen)


def _gram(engine: Engine, request: Request, chosen: Projection) -> Gram:
    rtol, normalize = chosen.rtol, chosen.normalize
    dim = DIM if chosen.dim is None else chosen.dim
    if rtol is not None:
        dim = _needed(engine, request, chosen, rtol)
    if request.store is not None:
        kept = _projected_store.recorded_factored(request)
        sketch = make_sketch(engine, chosen.kind, dim, request.seed, chosen.sparsity, kept)
        groups = _groups([sketch])
        meta = {key: value for key, value in _meta(engine, request, [sketch]).items() if key != "certificate"}
        return _projected_store.stored(engine, request, sketch, normalize, groups, meta)
    stages: list[Sketch] = []
    left = right = None
    while True:
        seed = derive_seed(request.seed, "stage", len(stages)) if stages else request.seed
        factored = stages[0].kronecker if stages else None
        stages.append(make_sketch(engine, chosen.kind, dim, seed, chosen.sparsity, factored))
        left = _joined(left, project(engine, request, request.x1, stages[-1]), stages)
        if request.x2 is not None:
            right = _joined(right, project(engine, request, request.x2, stages[-1]), stages)
        made = _made(engine, request, left, right, stages, normalize)
        if rtol is None:
            return made
        rows, columns = _sample(len(request.x1), request), _sample(made.shape[1], request)
        reached = _relative_error(made, rows, columns)
        if reached <= rtol or len(stages) == STAGES:
            error = {
                "rtol": rtol,
                "relative": reached,
                "inputs": [len(rows), len(columns)],
                "stages": [stage.dim for stage in stages],
            }
            return made.with_labels(meta={**made.meta, "error": error})
        dim = _rounded(sum(stage.dim for stage in stages) * (MARGIN * (reached / rtol) ** 2 - 1))


def _joined(before: Tensor | None, new: Tensor, stages: list[Sketch]) -> Tensor:
    """The features of all stages side by side, each weighted by its share of the columns."""
    if before is None:
        return new
    total = sum(stage.dim for stage in stages)
    parts = (before * ((total - stages[-1].dim) / total) ** 0.5, new * (stages[-1].dim / total) ** 0.5)
    return torch.cat(parts, dim=2)


def _groups(stages: list[Sketch]) -> int:
    """Into how many independent parts the columns fall, column k into part k modulo their number."""
    return group_count(sum(s.dim for s in stages) if stages[0].dense else stages[0].sparsity)


def _meta(engine: Engine, request: Request, stages: list[Sketch]) -> dict[str, Any]:
    sketch = stages[0]
    meta = describe(
        engine.subject,
        dim=sum(stage.dim for stage in stages),
        kind=sketch.kind,
        seed=request.seed,
        precision=engine.precision.name,
        groups=_groups(stages),
        certificate=engine.certificate(),
    )
    return meta if sketch.dense else meta | {"sparsity": sketch.sparsity, "factored": sorted(sketch.kronecker)}


def _made(
    engine: Engine, request: Request, left: Tensor, right: Tensor | None, stages: list[Sketch], normalize: bool
) -> FactoredGram:
    left = _projected_store.scaled(engine, left)
    right = None if right is None else _projected_store.scaled(engine, right)
    meta, groups = _meta(engine, request, stages), _groups(stages)
    if not normalize:
        check_feature_range(left, right)
    made = FactoredGram(left, right, groups=groups, name=request.name, coverage=engine.coverage(), meta=meta)
    if normalize:
        made = made.normalized()  # type: ignore[assignment]
    return made


def _needed(engine: Engine, request: Request, chosen: Projection, rtol: float) -> int:
    """How many columns an error of `rtol` takes, from a first few columns for some inputs; the error falls as 1/√columns."""
    x1 = request.x1[_sample(len(request.x1), request)]
    x2 = None if request.x2 is None else request.x2[_sample(len(request.x2), request)]
    sketch = make_sketch(engine, chosen.kind, PILOT, derive_seed(request.seed, "pilot"), chosen.sparsity)
    left = project(engine, request, x1, sketch)
    right = None if x2 is None else project(engine, request, x2, sketch)
    made = _made(engine, request, left, right, [sketch], chosen.normalize)
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
        held_out = (rows[:, None] != columns[None, :]).to(values.device)
        values, errors = values[held_out], errors[held_out]
    return float((errors.square().sum() / values.square().sum()).sqrt())
