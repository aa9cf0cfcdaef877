"""The embedding kernel: the sum over layers of the Grams of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from ntkscope.core import NumericalError
from ntkscope.kernels import costs
from ntkscope.kernels._feature_tiles import feature_products, stored_features
from ntkscope.kernels.registry import KERNELS, Request, describe
from ntkscope.linalg import DenseGram, Gram
from ntkscope.tangent.certify.features import AuditedFeatures
from ntkscope.tangent.forward.stages import layer_outputs, stages
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject


@KERNELS.register(
    "em",
    by_parameters=False,
    cost=costs.stages,
    priority=3,
    title="embedding kernel",
    meant_by=("embedding", "embeddings"),
)
def em(request: Request, *, layers: Sequence[str] | None = None, normalize: bool = False) -> Gram:
    """`Σ_l <h_l(x), h_l(x')>` with h_l the flattened output of module l.

    Default layers: the model's stages, that is its outermost modules that make one tensor per sample, without the one that
    makes the outputs. `normalize=True` divides each layer's Gram by its own norms first, so that wide layers do not drown
    the others. Stateless activations inside a stage are not layers of their own.
    """
    request.unrestricted()
    subject, few = request.still()
    if isinstance(layers, str):
        layers = [layers]
    chosen = list(layers) if layers is not None else stages(subject, few)
    compute = partial(_layers, layers=tuple(chosen), normalize=normalize)
    if request.store is not None:
        options = {"layers": ", ".join(chosen), "normalize": str(normalize)}
        meta = describe(subject, layers=list(chosen), normalized=normalize)
        return stored_features(request, compute, options, meta)
    made = feature_products(request, AuditedFeatures(subject, compute, request.certify))
    return DenseGram(
        made.values,
        symmetric=request.x2 is None,
        name=request.name,
        row_diagonal=made.row_diagonal.to(made.values.dtype),
        column_diagonal=made.column_diagonal.to(made.values.dtype),
        meta=describe(subject, layers=tuple(chosen), normalized=normalize, certificate=made.certificate),
    )


def _layers(subject: Subject, batch: Batch, layers: Sequence[str], normalize: bool) -> list[Tensor]:
    outputs = layer_outputs(subject, batch, layers)  # a module called twice is counted twice
    found = [value.flatten(1) for values in outputs.values() for value in values]
    if normalize:
        norms = [features.norm(dim=1, keepdim=True) for features in found]
        zero = [k for k, norm in enumerate(norms) if bool((norm == 0).any())]
        if zero:
            raise NumericalError(
                f"layer {layers[min(zero[0], len(layers) - 1)]!r} gives zeros for some sample, which have no direction, so"
                " normalize=True is not defined there; use normalize=False or leave that layer out with layers="
            )
        found = [features / norm for features, norm in zip(found, norms)]
    return found
