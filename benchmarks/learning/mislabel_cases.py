"""Training data with planted wrong labels: digits of MNIST, and CIFAR-10 images as features of a published network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

import ntkscope as ns
from ntkscope.core import Part, generator
from ntkscope.core.errors import DataNotFound
from ntkscope.data.transforms.label_noise import label_noise
from ntkscope.models.resnet_cifar import pretrained

NOISE, CLASSES = 0.05, 10
FALLBACK = "scikit-learn's digits (MNIST is not here)"
BACKBONE, POOL = "resnet20", 5000  # images per side, of which a seed draws its training points and its test items


@dataclass(frozen=True, eq=False)
class Case:
    """Training points with planted wrong labels, clean test items, and what they are.

    `clean_network`: logits of the training points by a network that was trained on 50,000 clean labels, where there is one.
    """

    part: Part
    planted: np.ndarray
    test: Part
    source: str
    clean_network: Tensor | None = None


def digits(n: int, seed: int) -> Case:
    """`n` digits of MNIST with 5 % wrong labels; scikit-learn's small digits where MNIST is not there."""
    try:
        split, source = ns.data.load("mnist", max_train=n, max_test=2000, seed=seed), "MNIST"
    except DataNotFound:
        split, source = ns.data.load("digits", seed=seed), FALLBACK
    part = split.train.take(torch.arange(min(n, len(split.train))))
    noisy = label_noise(part, NOISE, CLASSES, seed=seed)
    return Case(noisy, noisy.extras["noisy"].numpy(), split.test, source)


def features(side: str, n: int, seed: int) -> Case:
    """`n` CIFAR-10 images as the 64 features of the published ResNet-20, 5 % of their labels wrong.

    `side`: "train" for images that ResNet-20 was trained on (with their clean labels), "test" for images it never saw.
    """
    part, logits = _encoded(side)
    order = torch.randperm(len(part), generator=generator(seed, "mislabel", side))
    chosen, rest = order[:n], order[n:]
    noisy = label_noise(part.take(chosen), NOISE, CLASSES, seed=seed)
    seen = "images the backbone was trained on" if side == "train" else "images the backbone never saw"
    return Case(
        noisy, noisy.extras["noisy"].numpy(), part.take(rest), f"CIFAR-10 features, {seen}", logits[chosen].double()
    )


@cache
def _encoded(side: str) -> tuple[Part, Tensor]:
    """Features and labels of one side of CIFAR-10, with the published network's logits."""
    split = ns.data.load("cifar10", normalise="imagenet", max_train=POOL, max_test=POOL)
    part = split.train if side == "train" else split.test
    network = list(pretrained(BACKBONE).children())  # applied in order, the readout last
    encoder, readout = nn.Sequential(*network[:-1]), network[-1]
    assert isinstance(part.x, Tensor)
    with torch.no_grad():
        x = torch.cat([encoder(block) for block in part.x.split(250)])
        return Part(x, part.y), readout(x)
