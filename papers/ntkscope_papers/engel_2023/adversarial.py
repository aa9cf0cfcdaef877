"""Gradient attacks on a network, and what kernel surrogates of it say of the attacked images (the paper's appendix G)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ntkscope.core import Part, Split
from ntkscope.machines import fit_machine
from ntkscope_papers.engel_2023.kernel_pairs import kernel_pairs
from ntkscope_papers.engel_2023.surrogate import faithful
from ntkscope_papers.shared.images import chosen_points
from ntkscope_papers.shared.networks import logits_of

ATTACKS = ("clean", "fgsm", "pgd")
SURROGATES: dict[str, dict[str, Any]] = {
    "svm": {"C": 1.0, "tol": 1e-4},
    "glm": {"alpha": 1e-4, "tol": 1e-9, "max_iter": 500},
}


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


def under_attack(
    model: nn.Module, split: Split, *, points: int, items: int, strength: float, steps: int, seed: int, memory: str
) -> dict[str, Any]:
    """Accuracy and τ of a network's SVM and GLM surrogates on clean images, FGSM and PGD; `strength` in units of brightness."""
    device = next(model.parameters()).device
    few = chosen_points(split.test.y, items, seed)
    test, part = (
        whole.take(torch.from_numpy(at))
        for whole, at in ((split.test, few), (split.train, chosen_points(split.train.y, points, seed)))
    )
    x, y = test.x.to(device), test.y.to(device)
    mean, std = (
        torch.as_tensor(split.extras.get(name, default), dtype=x.dtype, device=device).reshape(-1, 1, 1)
        for name, default in (("mean", 0.0), ("std", 1.0))
    )
    box = ((0 - mean) / std, (1 - mean) / std)
    moved = {
        "clean": x,
        "fgsm": attacked(model, x, y, strength / std, box),
        "pgd": attacked(model, x, y, strength / std, box, steps=steps),
    }
    (pair,) = kernel_pairs(["trntk"], model, part.x.to(device), torch.cat(list(moved.values())), memory=memory)
    network = logits_of(model, torch.cat(list(moved.values()))).numpy()
    labels, n = test.y.numpy().astype(np.int64), len(few)
    found: dict[str, Any] = {"train_items": len(part), "items": n, "strength": strength, "steps": steps}
    for name, options in SURROGATES.items():
        scores = fit_machine(pair, part.y.numpy(), name, classes=network.shape[1], **options).logits(pair.test)
        found[name] = {
            attack: _compared(scores, network, labels, slice(k * n, (k + 1) * n)) for k, attack in enumerate(ATTACKS)
        }
    return found


def _compared(scores: np.ndarray, network: np.ndarray, y: np.ndarray, at: slice) -> dict[str, float]:
    figures = faithful(scores[at], network[at], y, bootstrap=0)
    return {name: figures[name] for name in ("network_accuracy", "surrogate_accuracy", "tau", "agreement")}


__all__ = ["ATTACKS", "SURROGATES", "Part", "attacked", "under_attack"]
