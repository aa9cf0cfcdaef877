"""Definitions, identities and limits of the surrogate paper: Eq. 1 to 6, its measures, the pNTK's bound, attacked images.

Seconds on CPU but for the legs `attack/…`: one network each, estimated 60 seconds on one H200 (resnet20: an hour on one core).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ntkscope import models
from ntkscope.core import Record
from ntkscope_papers.engel_2023 import definition_claims as claims
from ntkscope_papers.engel_2023.adversarial import ATTACKS, under_attack
from ntkscope_papers.engel_2023.definition_claims import ATTACK, KERNELS, MEASURES, NAME, SURROGATE, WIDTH
from ntkscope_papers.engel_2023.definitions import kernels, measures, surrogate, width_bound
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.framework.results import under
from ntkscope_papers.shared.images import build_network, load_images, pretrained_file, residual_recipe
from ntkscope_papers.shared.networks import trained


@dataclass(frozen=True)
class SurrogateDefinitions(Experiment):
    """Surrogate paper, Eq. 1 to 6: definitions and identities with their errata, the pNTK's width bound, attacked images.

    `networks`: that are attacked, pretrained or "small_cnn", which is trained here; `strength` in units of brightness.
    """

    name = NAME
    statements = claims_of(claims)
    free = ("memory",)

    trials: int = 200
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    width_seeds: int = 10
    dataset: str = "cifar10"
    networks: tuple[str, ...] = ("resnet20", "resnet56")
    train_items: int | None = None
    test_items: int | None = None
    points: int = 2000
    items: int = 500
    strength: float = 8 / 255
    steps: int = 10
    memory: str = "4GiB"

    smoke = {
        "trials": 20,
        "widths": (16, 32, 64),
        "width_seeds": 2,
        "dataset": "digits",
        "networks": ("small_cnn",),
        "train_items": 300,
        "test_items": 100,
        "points": 60,
        "items": 30,
        "strength": 0.2,
    }

    def measure(self, run: Run) -> None:
        legs = [
            Leg(KERNELS, partial(kernels, run.seed)),
            Leg(SURROGATE, partial(surrogate, run.seed)),
            Leg(MEASURES, partial(measures, run.seed, self.trials)),
            Leg(WIDTH, partial(width_bound, self.widths, self.width_seeds, run.seed)),
        ]
        legs += [
            Leg(f"{ATTACK}/{name}", partial(attack, self, run.record, name, run.root, run.seed, run.device))
            for name in self.networks
        ]
        run_legs(run.record, legs, self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def attack(
    config: SurrogateDefinitions, record: Record, name: str, root: str | None, seed: int, device: torch.device
) -> dict[str, Any]:
    """One network under attack."""
    pretrained = name != "small_cnn"
    options: dict[str, Any] = {"normalise": "imagenet"} if pretrained else {}
    split = load_images(config.dataset, root=root, train=config.train_items, test=config.test_items, **options)
    if pretrained:
        model = models.load_weights(models.build(name), pretrained_file(name, root)).to(device).eval()
    else:
        how = residual_recipe(epochs=8, batch=50, lr=0.1, augment=False)
        build = partial(build_network, name, split, seed=seed)
        model = trained(record, name, build, split.train, how, device=device, seed=seed)
    return under_attack(
        model,
        split,
        points=config.points,
        items=config.items,
        strength=config.strength,
        steps=config.steps,
        seed=seed,
        memory=config.memory,
    )


def draw(record: Record) -> dict[str, Any]:
    """The pNTK's error by width; accuracy of networks and surrogates under attack, and τ of the surrogates."""
    figure, (width, attacks, order) = drawing.canvas(1, 3, width=4.4)
    found = record.metrics.get(WIDTH)
    if found:
        width.loglog(found["widths"], found["error"], "o-", color=drawing.COLOURS[0], label="measured")
        drawing.power_law(width, found["widths"], found["error"][0], -0.5, "width^-1/2")
        drawing.log_widths(width, found["widths"], "|pNTK ⊗ I - eNTK| / |eNTK|")
    series: dict[str, Any] = {}
    taus: dict[str, Any] = {}
    for name, one in under(record, f"{ATTACK}/").items():
        series[name] = ([one["svm"][a]["network_accuracy"] for a in ATTACKS], None)
        for kind in ("svm", "glm"):
            series[f"{name}, {kind}"] = ([one[kind][a]["surrogate_accuracy"] for a in ATTACKS], None)
            taus[f"{name}, {kind}"] = ([one[kind][a]["tau"] for a in ATTACKS], None)
    if series:
        drawing.compare_bars(attacks, ATTACKS, series, label="accuracy")
        drawing.compare_bars(order, ATTACKS, taus, label="Kendall τ")
    return {"definitions": figure}
