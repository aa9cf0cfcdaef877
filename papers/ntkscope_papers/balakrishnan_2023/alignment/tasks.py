"""What the networks of `silent-alignment` learn, how they start and how they are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope import models
from ntkscope.core import Part, Split, UsageError
from ntkscope.data.subsets import stratified
from ntkscope_papers.balakrishnan_2023.polynomials.data import hidden_polynomial
from ntkscope_papers.balakrishnan_2023.polynomials.networks import network as hidden_network
from ntkscope_papers.shared.images import load_images

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Polynomial:
    """A hidden polynomial. `fitted`: whether kernel machines are fitted on the way; `shown`: the epoch of its figures.
    `authors`: width and weight decay of the report's public code, with its start and its last weights, not the best ones."""

    name: str
    degree: int
    correlated: bool = False
    fitted: bool = True
    shown: int = 1
    authors: tuple[int, float] | None = None

    def splits(self, config: Any, seeds: Sequence[int], root: str | None) -> list[Split]:
        """Drawn anew for each seed."""
        options: dict[str, Any] = {"dimension": config.dimension, "target": config.target, "noise": config.noise}
        sizes = {"train": config.train_items, "validation": config.validation_items, "test": config.test_items}
        return [
            hidden_polynomial(seed=seed, degree=self.degree, correlated=self.correlated, **options, **sizes)
            for seed in seeds
        ]

    def network(self, config: Any, dimension: int, seed: int) -> nn.Module:
        """One hidden ReLU layer with PyTorch's own start."""
        if self.authors is not None:
            return hidden_network(dimension, self.authors[0], seed, mirrored=True)
        return models.build("mlp", in_features=dimension, classes=1, widths=config.width, depth=1, seed=seed)

    @property
    def recipe(self) -> dict[str, Any]:
        """Of `fit_ensemble`: AdaDelta on the absolute error."""
        ending = {"weight_decay": self.authors[1], "restore": False, "min_delta": 1e-4} if self.authors else {}
        return {"optimizer": "adadelta", "loss": "l1", **ending}

    def rates(self, config: Any) -> tuple[float, ...]:
        """Learning rates; networks of the first are judged, the others stand beside them."""
        return tuple(config.rates if self.authors is None else config.rates[:1])


@dataclass(frozen=True)
class Images:
    """Two classes as a regression on ±1. `start`: of the weights, "small" or "standard"; `data`: which images."""

    data: str
    start: str
    fitted: bool = True

    @property
    def name(self) -> str:
        return f"{self.data}/{self.start}"

    def splits(self, config: Any, seeds: Sequence[int], root: str | None) -> list[Split]:
        """The same for all seeds."""
        return [pictures(config, self, root)] * len(seeds)

    def network(self, config: Any, dimension: int, seed: int) -> nn.Module:
        """One hidden ReLU layer with PyTorch's own start; "small": weights N(0, `config.small`² / fan-in) and no biases."""
        options = {"classes": 1, "widths": config.width, "depth": 1, "seed": seed}
        sigma_w = config.small if self.start == "small" else None
        return models.build("mlp", in_features=dimension, sigma_w=sigma_w, **options)

    @property
    def recipe(self) -> dict[str, Any]:
        """Of `fit_ensemble`: SGD on the squared error."""
        return {"optimizer": "sgd", "loss": "mse"}

    def rates(self, config: Any) -> tuple[float, ...]:
        return (config.image_lr,)


Task = Polynomial | Images
POLYNOMIALS = (
    Polynomial("d3", 3, fitted=False),
    Polynomial("d6", 6, fitted=False),
    Polynomial("d7", 7, shown=2),
    Polynomial("d8", 8),
    Polynomial("d11-correlated", 11, correlated=True, shown=16),
    Polynomial("d12-correlated", 12, correlated=True),
)
STARTS = ("small", "standard")
PICTURES = ("mnist", "cifar10")
IMAGES = tuple(Images(name, start) for name in PICTURES for start in STARTS)
TASKS: tuple[Task, ...] = (*POLYNOMIALS, *IMAGES)
BY_AUTHORS = (  # github.com/Bala-A87/UGRC, Code/configs/nn/hidden-func-poly
    Polynomial("authors/d8", 8, authors=(256, 10.0)),
    Polynomial("authors/d12-correlated", 12, correlated=True, authors=(128, 10.0)),
)


def pictures(config: Any, one: Images, root: str | None) -> Split:
    """Classes 0 and 1, flattened, every pixel less its mean over the training images, of mean squared length 1 per pixel."""
    source = config.pictures[PICTURES.index(one.data)]
    two: dict[str, Any] = {} if source == "digits" else {"classes": (0, 1)}
    whole = load_images(source, root=root, train=None, test=None, **two)
    wanted = {"train": config.train_items + config.validation_items, "test": config.test_items}
    parts = {}
    for name, limit in wanted.items():
        part: Part = getattr(whole, name)
        part = part.take(part.y < 2)
        kept = stratified(part.y.numpy().astype(np.int64), limit, 0, "silent alignment", one.data, name)
        if len(kept) < limit:
            raise UsageError(f"{source} has {len(kept)} {name} images of classes 0 and 1; expected at least {limit}")
        parts[name] = part.take(torch.from_numpy(kept))
    held = stratified(
        parts["train"].y.numpy().astype(np.int64), config.validation_items, 0, "silent alignment", one.data, "held"
    )
    mask = torch.zeros(len(parts["train"]), dtype=torch.bool)
    mask[torch.from_numpy(held)] = True
    train = parts["train"].take(~mask)
    mean = train.x.flatten(1).mean(0)
    scale = float((train.x.flatten(1) - mean).square().mean().sqrt())

    def ready(part: Part) -> Part:
        return Part((part.x.flatten(1) - mean) / scale, 2 * part.y.float() - 1)

    return Split(ready(train), ready(parts["test"]), ready(parts["train"].take(mask)), name=one.data)


def stacked(splits: Sequence[Split], part: str, what: str, device: torch.device) -> Float64[Tensor, "k n ..."]:
    """Inputs or targets of every seed in float64; (1, n, …) where all seeds share one split."""
    different = splits[:1] if all(split is splits[0] for split in splits) else splits
    return torch.stack([getattr(getattr(split, part), what).to(device, torch.float64) for split in different])
