"""The kernels of the surrogate paper between training points, and between test and training points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from ntkscope.core import UsageError
from ntkscope.machines import KernelPair
from ntkscope.machines import kernel_pairs as computed_pairs
from ntkscope_papers.framework import Run

SIX = ("trntk", "trntk0", "proj-trntk", "proj-pntk", "em", "ck")
COSINE = "ck-cosine"  # the conjugate kernel as cosines, which the authors' code compares
TITLES = {
    "trntk": "trNTK",
    "trntk0": "trNTK0",
    "proj-trntk": "proj-trNTK",
    "proj-pntk": "proj-pNTK",
    "em": "Em",
    "ck": "CK",
    COSINE: "CK, cosines",
}
# outputs of the residual stages or blocks and the final embedding, by the class of the network
LAYERS: dict[str, tuple[str, ...]] = {
    "ResNet": ("layer1", "layer2", "layer3", "layer4", "flatten"),
    "CifarResNet": ("layer1", "layer2", "layer3", "flatten"),
    "PoisonCNN": ("pool1", "pool2", "pool3", "bn7", "bn8"),
}


def kernel_pairs(
    names: Iterable[str],
    model: nn.Module,
    x_train: Any,
    x_test: Any,
    *,
    dim: int = 10240,
    sketch: str = "rademacher",
    precision: str = "exact",
    layers: Sequence[str] | None = None,
    **shared: Any,
) -> Iterator[KernelPair]:
    """The kernels one after the other, as Engel et al. (2023) define them, each scaled to a mean diagonal of 1.

    Cosine normalisation of a test-training entry uses the test point's own norm and the training point's own norm. CK has
    no bias feature, Em is normalised layer by layer. `sketch` is the kind of projection, `precision` that of tangent
    kernels on a GPU; `shared` options (memory, seed, progress) go to every kernel.

    >>> import torch
    >>> x = torch.eye(3)
    >>> pair = next(kernel_pairs(["trntk"], nn.Linear(3, 2), x, x[:1]))
    >>> pair.train.shape, pair.test.shape, pair.train.diagonal().tolist()
    ((3, 3), (1, 3), [1.0, 1.0, 1.0])
    """
    tangent: dict[str, Any] = {"precision": precision}
    projected: dict[str, Any] = {"dim": dim, "kind": sketch, "precision": precision}
    how: dict[str, dict[str, Any]] = {
        "trntk": tangent,
        "trntk0": tangent,
        "proj-trntk": projected,
        "proj-pntk": projected,
        "em": {"normalize": True, "layers": layers or LAYERS.get(type(model).__name__)},
        "ck": {"bias": False},
    }
    wanted = list(names)
    unknown = [name for name in wanted if name not in how]
    if unknown:
        raise UsageError(f"got the kernels {', '.join(unknown)}; expected some of {', '.join(SIX)}")
    options = {"memory": "4GiB", **shared}
    for pair in computed_pairs({name: how[name] for name in wanted}, model, x_train, x_test, **options):
        yield pair.scaled()


def pairs_of(
    config: Any, run: Run, names: Iterable[str], model: nn.Module, x_train: Any, x_test: Any, seed: int, **options: Any
) -> Iterator[KernelPair]:
    """`kernel_pairs` by the settings of an experiment, and after the conjugate kernel the same as cosines.

    An input on which it vanishes keeps a row of zeros.
    """
    options |= {
        "dim": config.dim,
        "sketch": config.sketch,
        "precision": config.precision if run.device.type == "cuda" else "exact",
        "memory": config.memory,
        "seed": seed,
        "progress": run.progress,
    }
    for pair in kernel_pairs(names, model, x_train, x_test, **options):
        yield pair
        if pair.name == "ck":
            yield pair.normalized(COSINE, zeros=True)
