"""What the exact tangent kernels share: subject, engine run, Gram."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ntkscope.core import UsageError
from ntkscope.kernels._stored import refuse_store, stored
from ntkscope.kernels.registry import Request, describe
from ntkscope.linalg import DenseGram, Gram
from ntkscope.tangent.blocks.heads import Heads, OutputSketch
from ntkscope.tangent.blocks.precision import Precision
from ntkscope.tangent.kernel.in_memory import Products, products
from ntkscope.tangent.model import guards
from ntkscope.tangent.model.fingerprint import names_fingerprint
from ntkscope.tangent.model.subject import Subject
from ntkscope.tangent.trace.probed import probed


def kernel(
    request: Request,
    heads: Heads,
    *,
    precision: str,
    full: bool = False,
    mean: bool = False,
    per_layer: bool = False,
    profile: bool = False,
    normalize: bool = False,
    schedule: str = "auto",
) -> Gram:
    """`<g_k(x), g_l(x')>` for all samples: summed over k = l, or all pairs (`full`); `mean`: divided by how many outputs
    there are; `normalize`: as cosines. In memory, or in the request's store."""
    engines = request.engines()
    subject = engines.subject
    if full and heads.sketch is not None:
        raise UsageError(
            f"got outputs=OutputSketch(...) for {request.name!r}, which holds every pair of outputs; expected the numbers of"
            " some outputs, or the kernels 'trntk' or 'trntk0'"
        )
    if request.store is None:
        made = products(
            engines,
            request.x1,
            request.x2,
            replace(heads, unit=None),
            full=full,
            precision=precision,
            memory=request.memory,
            per_layer=per_layer,
            progress=request.progress,
            profile=profile,
            schedule=schedule,
        )
        outputs = made.values.shape[0] // len(request.x1) if full else 1
        made = made if normalize else made.in_units()
        found = gram(request, subject, made, scale=1.0 / made.outputs if mean else 1.0, outputs=outputs)
        return _cosines(found) if normalize else found
    if per_layer:
        refuse_store(
            request, "per_layer=True", "the shares of parameters are kept in memory only: leave one of them out"
        )
    if heads.sketch is not None:
        refuse_store(request, "outputs=OutputSketch(...)", "its errors are kept in memory only: leave one of them out")
    recipe = request.recipe(subject, heads, full, precision)
    scale = 1.0
    if mean:
        few = subject.placed(probed(request.x1, request.x2)[:1])
        scale /= heads.count(guards.first_outputs(subject, few).shape[1])
    options = {"parameters": names_fingerprint(list(subject.leaves)), "precision": precision}
    with Precision(precision, subject.dtype).context():
        return stored(
            request, recipe, options, meta=describe(subject), scale=scale, normalize=normalize, schedule=schedule
        )


def _cosines(found: DenseGram) -> Gram:
    """The kernel of cosines; the standard errors of a sketch of outputs are divided by the same norms.

    The norms are estimates too and err in the same direction, so the stated errors of cosines are rather too large.
    """
    made = found.normalized()
    if "error" in found.meta:
        assert found.row_diagonal is not None
        assert found.column_diagonal is not None
        norms = found.row_diagonal.double().sqrt()[:, None] * found.column_diagonal.double().sqrt()[None]
        error = found.meta["error"]["standard_error"].double() / norms.clamp_min(1e-300)
        relative = float((error.square().mean() / made.dense().double().square().mean()).sqrt())
        told = {**found.meta["error"], "standard_error": error.to(found.dtype), "relative": relative}
        made = made.with_labels(meta={**made.meta, "error": told})
    return made


def gram(request: Request, subject: Subject, made: Products, *, scale: float = 1.0, outputs: int = 1) -> DenseGram:
    """The products as a Gram, times `scale`."""
    if scale != 1.0:
        made = replace(
            made,
            values=made.values.mul_(scale),
            row_diagonal=made.row_diagonal * scale,
            column_diagonal=made.column_diagonal * scale,
        )
        for part in made.contributions.values():
            part.mul_(scale)
    meta = describe(subject, plan=made.plan, footprint=made.footprint, certificate=made.certificate)
    if made.squares is not None:
        meta["error"] = sketch_error(made, request.outputs)
    if made.contributions:
        meta["contributions"] = made.contributions
    return DenseGram(
        made.values,
        symmetric=request.x2 is None,
        name=request.name,
        rows="samples" if outputs == 1 else f"sample*{outputs} + output",
        outputs=outputs,
        row_diagonal=made.row_diagonal.to(made.values.dtype),
        column_diagonal=made.column_diagonal.to(made.values.dtype),
        coverage=made.coverage,
        meta=meta,
    )


def sketch_error(made: Products, sketch: object) -> dict[str, Any]:
    """The standard error of a kernel of k random combinations: each is an estimate of its own, k times their share.

    `standard_error` (n, m); intervals use Student's t with `degrees` of freedom. `relative`: root mean square over entries.
    """
    assert isinstance(sketch, OutputSketch)
    assert made.squares is not None
    k = sketch.k
    values = made.values.double()
    variance = (k * made.squares - values.square()).clamp_min(0) / (k - 1)
    error = variance.sqrt()
    relative = float((error.square().mean() / values.square().mean()).sqrt())
    return {"standard_error": error.to(made.values.dtype), "degrees": k - 1, "relative": relative, "combinations": k}
