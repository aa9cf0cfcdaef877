"""Infinitely wide networks: their NNGP and NTK from a PyTorch module or a small vocabulary, predictions, spectra."""

from ntkscope.core.checked import check_room
from ntkscope.infinite.boolean_cube import Spectrum, boolean_cube, radial
from ntkscope.infinite.dynamics import (
    Dynamics,
    MaxLearningRate,
    Prediction,
    dynamics,
    kernel_regression,
    max_learning_rate,
)
from ntkscope.infinite.finite import finite
from ntkscope.infinite.layer import Layer, Nonlinearity
from ntkscope.infinite.limit import Kernels, from_module, kernel, kernels
from ntkscope.infinite.registry import LAYERS, MODULES, module_rule
from ntkscope.infinite.rules import (
    Abs,
    Activation,
    AvgPool,
    Concat,
    Conv,
    Cos,
    Dense,
    Erf,
    Flatten,
    Gelu,
    GlobalAvgPool,
    Identity,
    LayerNorm,
    LeakyRelu,
    Rbf,
    Relu,
    Residual,
    Serial,
    Sin,
    Sum,
    serial,
)
from ntkscope.infinite.sampling import sample
from ntkscope.infinite.sphere import gaussian, harmonics, sphere

__all__ = [
    "Abs",
    "Activation",
    "AvgPool",
    "Concat",
    "Conv",
    "Cos",
    "Dense",
    "Dynamics",
    "Erf",
    "Flatten",
    "Gelu",
    "GlobalAvgPool",
    "Identity",
    "Kernels",
    "LAYERS",
    "Layer",
    "LayerNorm",
    "LeakyRelu",
    "MODULES",
    "MaxLearningRate",
    "Nonlinearity",
    "Prediction",
    "Rbf",
    "Relu",
    "Residual",
    "Serial",
    "Sin",
    "Spectrum",
    "Sum",
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

check_room(
    __name__,
    classes="Abs Activation AvgPool Concat Conv Cos Dense Erf Gelu LayerNorm LeakyRelu Rbf Relu Serial Sin Sum",
)
