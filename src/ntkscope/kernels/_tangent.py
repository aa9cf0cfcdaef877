"""What the exact tangent kernels share: subject, engine run, Gram."""

from __future__ import annotations

from dataclasses import replace

from ntkscope.kernels.registry import Request, describe
from ntkscope.linalg import DenseGram
from ntkscope.tangent.engine import Heads
from ntkscope.tangent.products import Products, products
from ntkscope.tangent.readout import find_readout
from ntkscope.tangent.subject import Subject


def chosen_subject(request: Request) -> Subject:
    """The subject with the parameters the request chose; "last" is found by running the model once."""
    last: tuple[str, ...] = ()
    if isinstance(request.params, str) and request.params == "last":
        everything = request.subject()
        last = find_readout(everything, request.placed(everything, request.x1[:1])).names
    return request.subject(request.params, last)


def run(
    request: Request, heads: Heads, *, full: bool, precision: str, per_layer: bool = False, profile: bool = False
) -> tuple[Subject, Products]:
    subject = chosen_subject(request)
    made = products(
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
    return subject, made


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
