"""Architectures: one file each, plain `nn.Module`s with outputs (n, classes); language models as models of one output."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ntkscope.core import UsageError
from ntkscope.core.checked import check_room
from ntkscope.models._contrast import contrast
from ntkscope.models._layers import Erf, NTKLinear, activation
from ntkscope.models._sequence_inputs import ByteTokenizer, sequence_inputs
from ntkscope.models._sequences import sequence_log_likelihood
from ntkscope.models._weights import load_weights, read_weights, save_tensors, save_weights

# One line per architecture file: importing it registers what it defines.
from ntkscope.models.alexnet import alexnet
from ntkscope.models.gpt import gpt
from ntkscope.models.lenet import lenet
from ntkscope.models.mlp import mlp
from ntkscope.models.mobilenet import mobilenetv2
from ntkscope.models.poison_cnn import poison_cnn
from ntkscope.models.quadratic import quadratic
from ntkscope.models.registry import MODELS
from ntkscope.models.resnet import resnet18, resnet34
from ntkscope.models.resnet_cifar import resnet20, resnet56
from ntkscope.models.small_cnn import small_cnn
from ntkscope.models.text import text

__all__ = [
    "MODELS",
    "ByteTokenizer",
    "Erf",
    "NTKLinear",
    "activation",
    "alexnet",
    "build",
    "contrast",
    "gpt",
    "lenet",
    "load_weights",
    "mlp",
    "mobilenetv2",
    "poison_cnn",
    "quadratic",
    "read_weights",
    "resnet18",
    "resnet20",
    "resnet34",
    "resnet56",
    "save_tensors",
    "save_weights",
    "sequence_inputs",
    "sequence_log_likelihood",
    "small_cnn",
    "text",
]


def build(name: str, **options: Any) -> nn.Module:
    """The network `name` of `MODELS` with its options; the same arguments give the same weights.

    Every architecture takes `seed` (default 0; None draws from PyTorch's global generator).

    Examples:
        >>> build("small_cnn", image_size=8, classes=10).readout
        Linear(in_features=64, out_features=10, bias=True)
        >>> build("lenet", classes=10, widht=4)
        Traceback (most recent call last):
        ...
        ntkscope.core.errors.UsageError: lenet has no option 'widht'; it takes: classes=10, in_channels=1, ...
    """
    factory = MODELS[name]
    parameters = inspect.signature(factory).parameters
    accepted = ", ".join(key if p.default is p.empty else f"{key}={p.default!r}" for key, p in parameters.items())
    unknown = [key for key in options if key not in parameters]
    if unknown:
        raise UsageError(f"{name} has no option {', '.join(map(repr, unknown))}; it takes: {accepted}")
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in options]
    if missing:
        raise UsageError(f"{name} needs the option {', '.join(map(repr, missing))}; it takes: {accepted}")
    return factory(**options)


check_room(__name__, classes="NTKLinear")
