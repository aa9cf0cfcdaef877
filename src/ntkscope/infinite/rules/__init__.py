"""One kind of layer per file: what it does to covariances, and which modules of PyTorch it stands for."""

from ntkscope.core.checked import check_room
from ntkscope.infinite.rules.concat import Concat
from ntkscope.infinite.rules.conv import Conv
from ntkscope.infinite.rules.dense import Dense
from ntkscope.infinite.rules.erf import Erf
from ntkscope.infinite.rules.flatten import Flatten
from ntkscope.infinite.rules.gelu import Gelu
from ntkscope.infinite.rules.hermite import Activation
from ntkscope.infinite.rules.identity import Identity
from ntkscope.infinite.rules.layer_norm import LayerNorm
from ntkscope.infinite.rules.pooling import AvgPool, GlobalAvgPool
from ntkscope.infinite.rules.relu import Abs, LeakyRelu, Relu
from ntkscope.infinite.rules.residual import Residual, Sum
from ntkscope.infinite.rules.serial import Serial, serial
from ntkscope.infinite.rules.sine import Rbf, Sin

__all__ = [
    "Abs",
    "Activation",
    "AvgPool",
    "Concat",
    "Conv",
    "Dense",
    "Erf",
    "Flatten",
    "Gelu",
    "GlobalAvgPool",
    "Identity",
    "LayerNorm",
    "LeakyRelu",
    "Rbf",
    "Relu",
    "Residual",
    "Serial",
    "Sin",
    "Sum",
    "serial",
]

check_room(
    __name__,
    classes="Abs Activation AvgPool Concat Conv Dense Erf Gelu LayerNorm LeakyRelu Rbf Relu Serial Sin Sum",
)
