"""What the exact tangent kernels share: subject, engine run, Gram."""

from __future__ import annotations

from dataclasses import replace

from ntkscope.kernels._stored import refuse_store, stored
from ntkscope.kernels.registry import Request, describe
from ntkscope.linalg import DenseGram, Gram
from ntkscope.tangent import guards
from ntkscope.tangent.engine import Heads, probed
from ntkscope.tangent.fingerprint import names_fingerprint
from ntkscope.tangent.precision import Precision
from ntkscope.tangent.products import Products, products
from ntkscope.tangent.readout import find_readout
from ntkscope.tangent.subject import Subject
from ntkscope.tangent.tile_source import TangentRecipe


def chosen_subject(request: Request) -> Subject:
    """The subject with the parameters the request chose; "last" is found by running the model once."""
    last: tuple[str, ...] = ()
    if isinstance(request.params, str) and request.params == "last":
        everything = request.subject()
        last = find_readout(everything, request.placed(everything, request.x1[:1])).names
    return request.subject(request.params, last)


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
) -> Gram:
    """`<g_k(x), g_l(x')>` for all samples: summed over k = l, or all pairs (`full`); `mean`: divided by how many outputs
    there are; `normalize`: as cosines. In memory, or in the request's store."""
    subject = chosen_subject(request)
    if request.store is None:
        made = _products(request, subject, heads, full, precision, per_layer, profile)
        outputs = made.values.shape[0] // len(request.x1) if full else 1
        found = gram(request, subject, made, scale=1.0 / made.outputs if mean else 1.0, outputs=outputs)
        return found.normalized() if normalize else found
    if per_layer:
        refuse_store(
            request, "per_layer=True", "the shares of parameters are kept in memory only: leave one of them out"
        )
    recipe = TangentRecipe(
        request.model, request.dtype, request.device, frozenset(subject.leaves), heads, full, precision
    )
    scale = 1.0
    if mean:
        few = subject.placed(probed(request.x1, request.x2)[:1])
        scale /= heads.count(guards.first_outputs(subject, few).shape[1])
    options = {"parameters": names_fingerprint(list(subject.leaves)), "precision": precision}
    with Precision(precision, subject.dtype).context():
        return stored(request, recipe, options, meta=describe(subject), scale=scale, normalize=normalize)


def _products(
    request: Request, subject: Subject, heads: Heads, full: bool, precision: str, per_layer: bool, profile: bool
) -> Products:
    return products(
        subject,
        request.x1,
        request.x2,
        heads,
        full=full,
        precision=precision,
        memory=request.memory,
        per_layer=per_layer,
        progress=request.progress,
        profile=profile,
    )


def gram(request: Request, subject: Subject, made: Products, *, scale: float = 1.0, outputs: int = 1) -> DenseGram:
    """The products as a Gram, times `scale`."""
    if scale != 1.0:
        made = replace(
            made,
            values=made.values.mul_(scale),
            row_diagonal=made.row_diagonal * scale,
            column_diagonal=made.column_diagonal * scale,
            contributions={name: part.mul_(scale) for name, part in made.contributions.items()},
        )
    meta = describe(subject, plan=made.plan)
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
