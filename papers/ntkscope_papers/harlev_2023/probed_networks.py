"""The residual networks whose layers are probed: which layers, how they are made, and their halves in the paper's words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ntkscope import models
from ntkscope.core import Record, Split, UsageError
from ntkscope_papers.shared.images import WIDENED, load_images, pretrained_file, residual_recipe
from ntkscope_papers.shared.networks import trained


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


def images(config: Any, network: Probed, root: str | None) -> Split:
    """The images of `config`, normalised as the network's weights need it."""
    how: dict[str, Any] = {"train": config.train_items, "test": config.test_items, "enlarge": config.enlarge}
    how |= {"normalise": "imagenet"} if network.pretrained else {}
    return load_images(config.dataset, root=root, **how)


def build(config: Any, split: Split, seed: int, name: str = "resnet18") -> nn.Module:
    """A residual network with the pooling after the stem that the published one has."""
    options: dict[str, Any] = {"classes": len(split.classes), "in_channels": split.train.x.shape[1], "seed": seed}
    options |= {"width": config.width, "max_pool": True} if name in WIDENED else {}
    return models.build(name, **options)


def ready(
    config: Any, record: Record, network: Probed, split: Split, root: str | None, seed: int, device: torch.device
) -> nn.Module:
    """The network in evaluation mode: read from the data folder, or trained once and read from the record's folder."""
    if network.pretrained:
        model = models.load_weights(models.build(network.name), pretrained_file(network.name, root))
        return model.to(device).eval()
    how = residual_recipe(epochs=config.epochs, batch=config.batch, lr=config.lr, augment=config.augment)
    make = partial(build, config, split, seed, network.name)
    return trained(record, f"{network.name}-{seed}", make, split.train, how, device=device, seed=seed)
