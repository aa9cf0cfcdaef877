"""The kernels of the surrogate paper between training points, and between test and training points."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ntkscope.core import UsageError
from ntkscope.core.tree import join, length
from ntkscope.kernels import kernel
from ntkscope.linalg import Gram

SIX = ("trntk", "trntk0", "proj-trntk", "proj-pntk", "em", "ck")
TITLES = {
    "trntk": "trNTK",
    "trntk0": "trNTK0",
    "proj-trntk": "proj-trNTK",
    "proj-pntk": "proj-pNTK",
    "em": "Em",
    "ck": "CK",
}
FEATURED = ("proj-trntk", "proj-pntk", "ck")  # held by their features: train and test in one pass
# outputs of the residual stages or blocks and the final embedding, by the class of the network
LAYERS: dict[str, tuple[str, ...]] = {
    "ResNet": ("layer1", "layer2", "layer3", "layer4", "flatten"),
    "CifarResNet": ("layer1", "layer2", "layer3", "flatten"),
    "PoisonCNN": ("pool1", "pool2", "pool3", "bn7", "bn8"),
}


@dataclass(frozen=True, eq=False)
class Pair:
    """One kernel, divided by its mean diagonal over the training points, so that one ridge means the same for all.

    `train` is (n, n), `test` (m, n); `seconds` what both took, `scale` the number they were divided by.
    """

    name: str
    train: Float[Tensor, "n n"]
    test: Float[Tensor, "m n"]
    seconds: float
    scale: float
    how: Mapping[str, Any] = field(default_factory=dict)


def kernel_pairs(
    names: Iterable[str],
    model: nn.Module,
    x_train: Any,
    x_test: Any,
    *,
    dim: int = 10240,
    sketch: str = "rademacher",
    precision: str = "exact",
    memory: str | int | float = "4GiB",
    seed: int = 0,
    layers: Sequence[str] | None = None,
    progress: bool = False,
) -> Iterator[Pair]:
    """The kernels one after the other, as Engel et al. (2023) define them; exact and normalised trace-NTK share one run.

    Cosine normalisation of a test-training entry uses the test point's own norm and the training point's own norm. CK has
    no bias feature, Em is normalised layer by layer. `sketch` is the kind of projection, `precision` that of tangent
    kernels on a GPU.

    >>> x = torch.eye(3)
    >>> pair = next(kernel_pairs(["trntk"], nn.Linear(3, 2), x, x[:1]))
    >>> pair.train.shape, pair.test.shape, pair.train.diagonal().tolist()
    (torch.Size([3, 3]), torch.Size([1, 3]), [1.0, 1.0, 1.0])
    """
    wanted = list(names)
    unknown = [name for name in wanted if name not in SIX]
    if unknown:
        raise UsageError(f"kernel {', '.join(unknown)} came; expected some of {', '.join(SIX)}")
    shared: dict[str, Any] = {"memory": memory, "progress": progress}
    exact = [name for name in wanted if name in ("trntk", "trntk0")]
    if exact:
        began = clock(model)
        options = {**shared, "precision": precision}
        square, cross = kernel("trntk0", model, x_train, **options), kernel("trntk0", model, x_test, x_train, **options)
        seconds = clock(model) - began
        for name in exact:
            sides = (square.normalized(), cross.normalized()) if name == "trntk" else (square, cross)
            yield _pair(name, *sides, seconds, {"precision": precision})
        del square, cross, sides
    for name in wanted:
        if name in FEATURED:
            began = clock(model)
            how: dict[str, Any] = (
                {"bias": False} if name == "ck" else {"dim": dim, "kind": sketch, "precision": precision}
            )
            both = kernel(name, model, join([x_train, x_test]), seed=seed, **shared, **how)
            n = length(x_train)
            square, cross = both[:n, :n], both[n:, :n]
            yield _pair(name, square, cross, clock(model) - began, how)
            del both, square, cross
        elif name == "em":
            began = clock(model)
            how = {"normalize": True, "layers": layers or LAYERS.get(type(model).__name__)}
            square = kernel("em", model, x_train, **shared, **how)
            cross = kernel("em", model, x_test, x_train, **shared, **how)
            yield _pair(name, square, cross, clock(model) - began, how)
            del square, cross


def _pair(name: str, square: Gram, cross: Gram, seconds: float, how: Mapping[str, Any]) -> Pair:
    scale = float(square.diagonal().double().mean())
    if name == "trntk":
        return Pair(name, square.dense(), cross.dense(), seconds, 1.0, how)
    return Pair(name, square.dense() / scale, cross.dense() / scale, seconds, scale, how)


def clock(model: nn.Module) -> float:
    """Seconds now, after the device has done what it was asked."""
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
