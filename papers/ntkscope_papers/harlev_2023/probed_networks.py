"""The residual networks whose layers are probed: which layers, how they are made, and their halves in the paper's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from ntkscope import models
from ntkscope.core import Split, UsageError
from ntkscope_papers.shared.images import WIDENED, load_images

TRAINED_HERE = "a network trained here in place of the paper's weights, which are not available"


@dataclass(frozen=True)
class Probed:
    """A network and its layers, in order.

    `early`: how many come before the collapse of the paper ("pool to block 4"); `late`: the place of the first after it
    ("block 5", in other networks the last stage); `last`: of the first that needs two or three components. `accuracy`:
    published, in percent. `pretrained`: weights are read, not trained here.
    """

    name: str
    layers: tuple[str, ...]
    early: int
    late: int
    last: int
    accuracy: float
    pretrained: bool


def _blocks(stages: int, blocks: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"layer{stage}.{block}" for stage in range(1, stages + 1) for block in blocks)


NETWORKS = {
    network.name: network
    for network in (
        Probed("resnet18", ("maxpool", *_blocks(4, (0, 1))), 5, 5, 6, 92.5, False),
        Probed("resnet20", ("relu", *_blocks(3, (0, 1, 2))), 5, 7, 8, 91.73, True),
        Probed("resnet56", ("relu", *_blocks(3, (2, 5, 8))), 5, 7, 8, 93.39, True),
    )
}


def probed(name: str) -> Probed:
    """The network of that name, with its layers."""
    if name not in NETWORKS:
        raise UsageError(f"got the network {name!r}; expected one of {', '.join(NETWORKS)}")
    return NETWORKS[name]


def images(config: Any, pretrained: bool, root: str | None) -> Split:
    """The images of `config`, normalised as pretrained weights need it, where they are used."""
    how: dict[str, Any] = {"train": config.train_items, "test": config.test_items, "enlarge": config.enlarge}
    how |= {"normalise": "imagenet"} if pretrained else {}
    return load_images(config.dataset, root=root, **how)


def build(config: Any, split: Split, seed: int, name: str = "resnet18") -> nn.Module:
    """A residual network with the pooling after the stem that the published one has."""
    options: dict[str, Any] = {"classes": len(split.classes), "in_channels": split.train.x.shape[1], "seed": seed}
    options |= {"width": config.width, "max_pool": True} if name in WIDENED else {}
    return models.build(name, **options)
