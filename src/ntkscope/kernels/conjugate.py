"""The conjugate kernel: the Gram of the readout's input, plus 1 when the readout has a bias."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.core.progress import counter
from ntkscope.kernels._feature_tiles import FeatureRecipe
from ntkscope.kernels._stored import stored
from ntkscope.kernels.registry import KERNELS, Request, describe
from ntkscope.linalg import FactoredGram, Gram
from ntkscope.tangent import guards
from ntkscope.tangent.batches import Batch
from ntkscope.tangent.readout import find_readout
from ntkscope.tangent.subject import Subject

BLOCK = 256


@KERNELS.register("ck")
def ck(request: Request, *, bias: bool | None = None) -> Gram:
    """`φ(x)·φ(x') + 1`, φ the last hidden representation; `bias=False` leaves the 1 out, None follows the readout."""
    request.unrestricted()
    subject = request.subject(still=True)
    few = request.placed(subject, request.x1[:2])
    guards.first_outputs(subject, few)
    if request.store is not None:
        recipe = FeatureRecipe(request.model, request.dtype, request.device, partial(_layers, bias=bias))
        return stored(request, recipe, {"bias": str(bias)}, meta=describe(subject))
    request.check_memory(find_readout(subject, few).x[0].numel() + 1, subject.dtype.itemsize)
    left = embeddings(subject, request, request.x1, bias)
    right = None if request.x2 is None else embeddings(subject, request, request.x2, bias)
    return FactoredGram(left, right, name=request.name, meta=describe(subject, features=left.shape[1]))


def embeddings(subject: Subject, request: Request, x: Batch, bias: bool | None) -> Tensor:
    """The readout's input for every sample, (n, features), a column of ones behind it for the bias."""
    found = []
    with counter(len(x), "embeddings", enabled=request.progress) as bar:
        for start in range(0, len(x), BLOCK):
            block = request.placed(subject, x[start : start + BLOCK])
            found.append(_embedding(subject, block, bias))
            bar.advance(len(block))
    return torch.cat(found)


def _embedding(subject: Subject, block: Batch, bias: bool | None) -> Tensor:
    readout = find_readout(subject, block)
    if readout.x.shape[0] != len(block):
        raise UsageError(
            f"the readout's input has shape {tuple(readout.x.shape)} for {len(block)} samples; expected samples along"
            " the first axis: use the 'em' kernel with layers= naming a module whose output has them there"
        )
    features = readout.x.flatten(1)
    if readout.bias if bias is None else bias:
        features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    return features


def _layers(subject: Subject, block: Batch, bias: bool | None) -> list[Tensor]:
    return [_embedding(subject, block, bias)]
