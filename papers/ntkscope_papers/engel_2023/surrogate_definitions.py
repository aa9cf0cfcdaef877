"""Definitions, identities and limits of the surrogate paper: Eq. 1 to 6, its measures, the pNTK's bound, attacked images.

Seconds on CPU but for the legs `attack/…`: one network each, estimated 60 seconds on one H200 (resnet20: an hour on one core).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ntkscope.core import Record, Split
from ntkscope.machines import fit_machine
from ntkscope_papers.engel_2023 import definition_claims, definitions
from ntkscope_papers.engel_2023.kernel_pairs import kernel_pairs
from ntkscope_papers.engel_2023.surrogate import faithful
from ntkscope_papers.framework import Experiment, Run, drawing, figure, leg
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.results import under
from ntkscope_papers.shared.images import build_network, chosen_points, load_images, pretrained_network, residual_recipe
from ntkscope_papers.shared.networks import logits_of, trained

ATTACKS = ("clean", "fgsm", "pgd")
SURROGATES: dict[str, dict[str, Any]] = {
    "svm": {"C": 1.0, "tol": 1e-4},
    "glm": {"alpha": 1e-4, "tol": 1e-9, "max_iter": 500},
}


@dataclass(frozen=True)
class SurrogateDefinitions(Experiment):
    """Surrogate paper, Eq. 1 to 6: definitions and identities with their errata, the pNTK's width bound, attacked images.

    `networks`: that are attacked, pretrained or "small_cnn", which is trained here; `strength` in units of brightness.
    """

    name = "surrogate-definitions"
    statements = claims_of(definition_claims)
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

    @leg()
    def kernels(self, run: Run) -> dict[str, Any]:
        return definitions.kernels(run.seed)

    @leg()
    def surrogate(self, run: Run) -> dict[str, Any]:
        return definitions.surrogate(run.seed)

    @leg()
    def measures(self, run: Run) -> dict[str, Any]:
        return definitions.measures(run.seed, self.trials)

    @leg()
    def width(self, run: Run) -> dict[str, Any]:
        return definitions.width_bound(self.widths, self.width_seeds, run.seed)

    def network(self, run: Run, name: str) -> tuple[nn.Module, Split]:
        """The network `name`, read or trained, and its images."""
        pretrained = name != "small_cnn"
        options: dict[str, Any] = {"normalise": "imagenet"} if pretrained else {}
        split = load_images(self.dataset, root=run.root, train=self.train_items, test=self.test_items, **options)
        if pretrained:
            return pretrained_network(name, run), split
        how = residual_recipe(epochs=8, batch=50, lr=0.1, augment=False)
        build = partial(build_network, name, split, seed=run.seed)
        return trained(run, name, build, split.train, how, seed=run.seed), split

    @leg("attack/{}", over=lambda self: self.networks)
    def attack(self, run: Run, name: str) -> dict[str, Any]:
        """Accuracy and τ of a network's SVM and GLM surrogates on clean images, FGSM and PGD (the paper's appendix G)."""
        model, split = self.network(run, name)
        test, part = (
            whole.take(torch.from_numpy(chosen_points(whole.y, count, run.seed)))
            for whole, count in ((split.test, self.items), (split.train, self.points))
        )
        x, y = test.x.to(run.device), test.y.to(run.device)
        mean, std = (
            torch.as_tensor(split.extras.get(name, default), dtype=x.dtype, device=run.device).reshape(-1, 1, 1)
            for name, default in (("mean", 0.0), ("std", 1.0))
        )
        box, reach = ((0 - mean) / std, (1 - mean) / std), self.strength / std
        moved = torch.cat([x, attacked(model, x, y, reach, box), attacked(model, x, y, reach, box, steps=self.steps)])
        (pair,) = kernel_pairs(["trntk"], model, part.x.to(run.device), moved, memory=self.memory)
        network, labels, n = logits_of(model, moved).numpy(), test.y.numpy().astype(np.int64), len(test)
        found: dict[str, Any] = {"train_items": len(part), "items": n, "strength": self.strength, "steps": self.steps}
        for kind, options in SURROGATES.items():
            scores = fit_machine(pair, part.y.numpy(), kind, classes=network.shape[1], **options).logits(pair.test)
            found[kind] = {}
            for k, name in enumerate(ATTACKS):
                at = slice(k * n, (k + 1) * n)
                figures = faithful(scores[at], network[at], labels, bootstrap=0)
                found[kind][name] = {
                    key: figures[key] for key in ("network_accuracy", "surrogate_accuracy", "tau", "agreement")
                }
        return found

    @figure
    def definitions(self, record: Record) -> Figure:
        """The pNTK's error by width; accuracy of networks and surrogates under attack, and τ of the surrogates."""
        drawn, (width, attacks, order) = drawing.canvas(1, 3, width=4.4)
        found = record.metrics.get("width")
        if found:
            width.loglog(found["widths"], found["error"], "o-", color=drawing.COLOURS[0], label="measured")
            drawing.power_law(width, found["widths"], found["error"][0], -0.5, "width^-1/2")
            drawing.log_widths(width, found["widths"], "|pNTK ⊗ I - eNTK| / |eNTK|")
        series: dict[str, Any] = {}
        taus: dict[str, Any] = {}
        for name, one in under(record, "attack/").items():
            series[name] = ([one["svm"][a]["network_accuracy"] for a in ATTACKS], None)
            for kind in ("svm", "glm"):
                series[f"{name}, {kind}"] = ([one[kind][a]["surrogate_accuracy"] for a in ATTACKS], None)
                taus[f"{name}, {kind}"] = ([one[kind][a]["tau"] for a in ATTACKS], None)
        if series:
            drawing.compare_bars(attacks, ATTACKS, series, label="accuracy")
            drawing.compare_bars(order, ATTACKS, taus, label="Kendall τ")
        return drawn


def attacked(
    model: nn.Module,
    x: Float[Tensor, "n c h w"],
    y: Int64[Tensor, " n"],
    reach: Float[Tensor, "c 1 1"],
    box: tuple[Tensor, Tensor],
    *,
    steps: int = 1,
) -> Float[Tensor, "n c h w"]:
    """Images within `reach` of `x` and inside `box` that raise the network's loss: one signed step, or several of a quarter.

    One step is FGSM (Goodfellow et al. 2015), several are PGD from the image itself (Madry et al. 2018).
    """
    size = reach if steps == 1 else reach / 4
    moved = x.clone()
    for _ in range(steps):
        moved.requires_grad_(True)
        loss = cross_entropy(model(moved), y, reduction="sum")
        (slope,) = torch.autograd.grad(loss, moved)
        with torch.no_grad():
            moved = moved + size * slope.sign()
            moved = torch.minimum(torch.maximum(moved, x - reach), x + reach)
            moved = torch.minimum(torch.maximum(moved, box[0]), box[1])
    return moved.detach()
