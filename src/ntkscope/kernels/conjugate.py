"""The conjugate kernel: the Gram of the readout's input, plus 1 when the readout has a bias."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.kernels import costs
from ntkscope.kernels._feature_tiles import feature_rows, stored_features
from ntkscope.kernels.registry import KERNELS, Request, describe
from ntkscope.linalg import FactoredGram, Gram
from ntkscope.tangent.certify.features import AuditedFeatures
from ntkscope.tangent.forward.readout import locate
from ntkscope.tangent.model.arithmetic import check_feature_range
from ntkscope.tangent.model.batches import Batch
from ntkscope.tangent.model.subject import Subject

BLOCK = 256


@KERNELS.register(
    "ck",
    by_parameters=False,
    cost=costs.activations,
    features=True,
    priority=2,
    title="conjugate kernel",
    meant_by=("conjugate", "nngp", "features", "last-layer", "penultimate"),
)
def ck(request: Request, *, bias: bool | None = None) -> Gram:
    """`φ(x)·φ(x') + 1`, φ the last hidden representation; `bias=False` leaves the 1 out, None follows the readout."""
    request.unrestricted()
    subject, few = request.still()
    readout = locate(subject, few)(few)
    compute = partial(_layers, bias=bias)
    if request.store is not None:
        return stored_features(request, compute, {"bias": str(bias)}, describe(subject))
    request.check_memory(readout.x[0].numel() + 1, subject.dtype.itemsize)
    features = feature_rows(AuditedFeatures(subject, compute, request.certify), request, few, BLOCK)
    check_feature_range(*features.sides)
    return FactoredGram(
        *features.sides,
        name=request.name,
        meta=describe(subject, features=features.width, certificate=features.certificate()),
    )


def _layers(subject: Subject, block: Batch, bias: bool | None) -> list[Tensor]:
    """The readout is located on the first block and checked on every one: its result must give the outputs."""
    readout = subject.remember("readout", lambda: locate(subject, block))(block)
    if readout.x.shape[0] != len(block) or readout.x[0].numel() != readout.x.shape[1]:
        raise UsageError(
            f"the readout's input has shape {tuple(readout.x.shape)} for {len(block)} samples; expected one vector per sample:"
            " use the 'em' kernel with layers= naming a module whose output is one"
        )
    features = readout.x.flatten(1)
    if readout.bias if bias is None else bias:
        features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    return [features]
