"""The small two-class networks of Table 1: their data, architectures and training, in three readings.

"softmax": two outputs, standard parametrisation, cross-entropy, Adam 1e-3; the default that the ledger of claims writes
down for what the paper leaves unstated. "sigmoid": one output in the NTK parametrisation, squared error of its sigmoid, SGD;
the step is larger and the steps are fewer than the authors'. "authors": what the authors' public code does, row by row, on
the images and with the steps it has. Two rows train f - f₀, the network minus its own start. Their Fashion-MNIST batches
come in the order of the data, all of one class first; here, as everywhere else, they are shuffled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ntkscope import data, models
from ntkscope.core import Part, Split
from ntkscope_papers.shared.images import load_images

READINGS = ("softmax", "sigmoid", "authors")
DATA = {"mlp-mnist2": "mnist2", "cnn-mnist2": "mnist2", "cnn-cifar2": "cifar2", "cnn-fmnist2": "fmnist2"}


@dataclass(frozen=True)
class Recipe:
    """How the authors trained one row; `threshold`: the output above which they call class 1."""

    optimizer: str
    batch: int
    epochs: int
    loss: Callable[[Tensor, Tensor], Tensor]
    test_per_class: int
    centred: bool = False  # the network minus its own start is trained
    threshold: float = 0.0
    lr: float = 1e-3


def squared_error_of_sigmoid(outputs: Tensor, y: Tensor) -> Tensor:
    """(σ(f) - y)² per item, for one output and labels 0 and 1."""
    return (torch.sigmoid(outputs[:, 0]) - y.to(outputs.dtype)).square()


def centred_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Logistic loss of f - f₀ per item; the columns of `y` are the label and f₀."""
    return binary_cross_entropy_with_logits(outputs[:, 0] - y[:, 1], y[:, 0], reduction="none")


def centred_squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """(f - f₀ - label)² per item; the columns of `y` are the label and f₀."""
    return (outputs[:, 0] - y[:, 1] - y[:, 0]).square()


RECIPES = {
    "mlp-mnist2": Recipe("sgd", 4, 100, squared_error_of_sigmoid, 980),
    "cnn-mnist2": Recipe("sgd", 4, 100, squared_error_of_sigmoid, 980),
    "cnn-cifar2": Recipe("adam", 64, 200, centred_cross_entropy, 1000, centred=True),
    "cnn-fmnist2": Recipe("adam", 4, 200, centred_squared_error, 1000, centred=True, threshold=0.5),
}


@dataclass(frozen=True)
class Training:
    """Data, networks and training of one row in one reading, by the settings of `config`."""

    config: Any
    row: str
    reading: str

    def images(self, root: str | None, seed: int) -> Split:
        """A random sample of `train_items` in standard units, or what the authors took, in [0, 1]."""
        config = self.config
        if config.dataset is not None:
            split = load_images(config.dataset, root=root, train=None, test=None)
            train, test = (part.take(part.y < 2) for part in (split.train, split.test))
            limited = train.take(range(min(config.train_items, len(train))))
            return split.replace(train=limited, test=test.take(range(min(config.test_items or len(test), len(test)))))
        if self.reading != "authors":
            options: dict[str, Any] = {"max_train": config.train_items, "max_test": config.test_items}
            return data.load(DATA[self.row], root=root, seed=seed, **options)
        whole = data.load(DATA[self.row], root=root, normalise="unit")
        tests = RECIPES[self.row].test_per_class if config.test_items is None else config.test_items // 2
        return whole.replace(train=_first(whole.train, config.train_items // 2), test=_first(whole.test, tests))

    def build(self, split: Split, seed: int) -> nn.Module:
        """The untrained network."""
        channels, size = split.train.x.shape[1:3]
        inputs = channels * size * size
        if self.row.startswith("mlp"):
            if self.reading == "softmax":
                return models.build("mlp", in_features=inputs, classes=2, widths=100, depth=2, seed=seed)
            scales = {"sigma_w": [(inputs / 100) ** 0.5, 1, 1, 10], "sigma_b": [0.1, 0.1, 0.1, 1]}
            options: dict[str, Any] = {"classes": 1, "widths": 100, "depth": 3, "ntk": True, "seed": seed, **scales}
            return models.build("mlp", in_features=inputs, **options)
        common: dict[str, Any] = {"in_channels": channels, "image_size": size, "seed": seed}
        if self.reading == "softmax":
            return models.build("small_cnn", classes=2, channels=self.config.channels, **common)
        colour = self.row == "cnn-cifar2" if self.reading == "authors" else channels > 1
        common |= {"pool": "max" if colour else "avg", "hidden": (128, 64), "ntk": True}
        common |= {"convolutions": 2 if self.reading == "authors" and colour else 1}
        return models.build("small_cnn", classes=1, channels=self.config.sigmoid_channels, **common)

    @property
    def how(self) -> dict[str, Any]:
        """The settings of training."""
        config = self.config
        if self.reading == "softmax":
            return {"optimizer": "adam", "lr": 1e-3, "batch_size": config.batch, "epochs": config.epochs}
        if self.reading == "sigmoid":
            return {
                "optimizer": "sgd",
                "lr": config.sigmoid_lr,
                "batch_size": config.sigmoid_batch,
                "epochs": config.sigmoid_epochs,
                "loss": squared_error_of_sigmoid,
            }
        recipe = RECIPES[self.row]
        return {
            "optimizer": recipe.optimizer,
            "lr": recipe.lr,
            "batch_size": recipe.batch,
            "epochs": max(1, round(config.authors_share * recipe.epochs)),
            "loss": recipe.loss,
        }

    @property
    def centred(self) -> bool:
        """Whether what is trained is the network minus its own start."""
        return self.reading == "authors" and RECIPES[self.row].centred

    @property
    def threshold(self) -> float:
        """The output above which class 1 is called."""
        return RECIPES[self.row].threshold if self.reading == "authors" else 0.0

    def part(self, split: Split, seed: int) -> Part:
        """What the network of a seed is trained on."""
        return with_start(split.train, self.build(split, seed).eval()) if self.centred else split.train


def _first(part: Part, each: int) -> Part:
    """The first `each` items of class 0, then those of class 1."""
    return part.take(torch.cat([torch.nonzero(part.y == c)[:each, 0] for c in (0, 1)]))


def with_start(part: Part, start: nn.Module) -> Part:
    """The part with two targets per item: its label, and the untrained network's output f₀."""
    return Part(part.x, torch.stack([part.y.to(torch.float32), _outputs(start, part.x)], dim=1))


def _outputs(model: nn.Module, x: Tensor, batch: int = 1000) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(x[at : at + batch])[:, 0] for at in range(0, len(x), batch)]).float()


def class_logits(
    outputs: Float64[np.ndarray, "n c"], start: Float64[np.ndarray, "n c"] | None = None, threshold: float = 0.0
) -> Float64[np.ndarray, "n 2"]:
    """Logits of two classes; one output is the log-odds of class 1, its start subtracted and the threshold moved to 0.

    >>> class_logits(np.array([[3.0]]), np.array([[1.0]]), 0.5).tolist()
    [[0.0, 1.5]]
    """
    if outputs.shape[1] == 2:
        return outputs
    odds = (outputs if start is None else outputs - start) - threshold
    return np.concatenate([np.zeros_like(odds), odds], axis=1)
