"""Infinitely wide networks: their NNGP and NTK from a PyTorch module or a small vocabulary, predictions, spectra."""

from ntkscope.core.checked import check_room
from ntkscope.infinite.boolean_cube import boolean_cube, radial
from ntkscope.infinite.dynamics import dynamics, kernel_regression, max_learning_rate, sample
from ntkscope.infinite.limit import finite, from_module, kernel, kernels
from ntkscope.infinite.registry import module_rule
from ntkscope.infinite.rules import (
    Activation,
    AvgPool,
    Conv,
    Dense,
    Erf,
    Flatten,
    Gelu,
    GlobalAvgPool,
    LayerNorm,
    LeakyRelu,
    Relu,
    Residual,
    serial,
)
from ntkscope.infinite.sphere import gaussian, harmonics, sphere

__all__ = [
    "Activation",
    "AvgPool",
    "Conv",
    "Dense",
    "Erf",
    "Flatten",
    "Gelu",
    "GlobalAvgPool",
    "LayerNorm",
    "LeakyRelu",
    "Relu",
    "Residual",
    "boolean_cube",
    "dynamics",
    "finite",
    "from_module",
    "gaussian",
    "harmonics",
    "kernel",
    "kernel_regression",
    "kernels",
    "max_learning_rate",
    "module_rule",
    "radial",
    "sample",
    "serial",
    "sphere",
]

check_room(__name__)
