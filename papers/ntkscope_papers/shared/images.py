"""Image data and networks for the experiments; real data and the small data of smoke runs use the same call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor, nn

from ntkscope import data, models
from ntkscope.core import Part, Split, numpy_generator
from ntkscope.core.errors import DataNotFound
from ntkscope.data._files import places
from ntkscope.data.subsets import stratified
from ntkscope.training.losses import CrossEntropy
from ntkscope.training.resnet18_cifar10 import RECIPE
from ntkscope.training.schedules import Triangular
from ntkscope_papers.framework import Run

SIZED = ("small_cnn", "poison_cnn")  # networks that need the image size
WIDENED = ("resnet18", "resnet34", "mobilenetv2", "poison_cnn")


def load_images(
    dataset: str, *, root: str | None, train: int | None, test: int | None, enlarge: int = 1, **options: Any
) -> Split:
    """A split of images, at most `train` and `test` of them, every pixel `enlarge` x `enlarge` times."""

    def part(part: Part, which: str, limit: int | None) -> Part:
        kept = stratified(part.y.numpy().astype(np.int64), limit, 0, "experiment", dataset, which)
        part = part if limit is None else part.take(torch.from_numpy(kept))
        x = part.x if enlarge == 1 else part.x.repeat_interleave(enlarge, 2).repeat_interleave(enlarge, 3)
        return Part(x, part.y, part.extras)

    split = data.load(dataset, root=root, **options)
    return split.replace(train=part(split.train, "train", train), test=part(split.test, "test", test))


def build_network(name: str, split: Split, *, width: float | int = 1, seed: int = 0, **further: Any) -> nn.Module:
    """The network `name` for the images of `split`; `further` options are the network's own."""
    channels, size = split.train.x.shape[1:3]
    options: dict[str, Any] = {"classes": len(split.classes), "in_channels": channels, "seed": seed, **further}
    options |= {"image_size": size} if name in SIZED else {}
    options |= {"width": width} if name in WIDENED and width != 1 else {}
    return models.build(name, **options)


def residual_recipe(*, epochs: int, batch: int, lr: float, augment: bool) -> dict[str, Any]:
    """How the residual networks are trained: the recipe of ResNet-18 on CIFAR-10, its length and step as given.

    Without the recipe's label smoothing: it destroys the ranking that Kendall's τ measures. With 0.1 the middle half of
    CIFAR-10's test points has log-odds between 2.22 and 2.36, and τ of the exact trNTK surrogate on 20,000 points was
    0.21 where agreement was 98.3 % and the best monotone map had R² 0.94.
    """
    how = {**RECIPE.fit, "epochs": epochs, "batch_size": batch, "lr": lr, "loss": CrossEntropy()}
    return how if augment else {**how, "augment": None}


def poison_recipe(*, epochs: int, batch: int, lr: float) -> dict[str, Any]:
    """How the network of the poisoning study is trained: SGD with Nesterov momentum, a triangular step, no augmentation.

    The authors' public code keeps a step of 0.01; the triangle takes fewer epochs to the same accuracy.
    """
    return {
        "optimizer": "sgd",
        "lr": lr,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 5e-4,
        "loss": CrossEntropy(),
        "batch_size": batch,
        "drop_last": True,
        "schedule": Triangular(peak=0.2),
        "augment": None,
        "epochs": epochs,
        "autocast": "bfloat16",
        "channels_last": True,
    }


def pretrained_network(name: str, run: Run) -> nn.Module:
    """The network `name` with its weights among the data, in evaluation mode."""
    searched = places(run.root, ["resnet_cifar10"])
    for path in (place / f"{name}.safetensors" for place in searched):
        if path.is_file():
            return models.load_weights(models.build(name), path).to(run.device).eval()
    raise DataNotFound(
        f"no {name}.safetensors in {', '.join(map(str, searched))}; put it there, or choose other networks with --set"
    )


def chosen_points(y: Shaped[Tensor, " n"], points: int, seed: int) -> Int64[np.ndarray, " k"]:
    """Indices of `points` random items, ascending, stratified by class; for one seed, smaller samples lie in larger ones.

    Items are ordered by their random rank within their class over the size of the class; a sample is the beginning.

    >>> y = torch.arange(100) % 4
    >>> few, more = chosen_points(y, 5, 0), chosen_points(y, 9, 0)
    >>> set(few) <= set(more), sorted(set(y[few].tolist()))
    (True, [0, 1, 2, 3])
    """
    labels = y.numpy()
    draw = numpy_generator(seed, "kernel points")
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        place[members] = (draw.permutation(len(members)) + draw.random(len(members))) / len(members)
    return np.sort(np.argsort(place, kind="stable")[: min(points, len(labels))]).astype(np.int64)
