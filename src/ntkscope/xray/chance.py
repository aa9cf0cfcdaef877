"""Chance: whether a network's predictions have anything to do with the labels, before an X-ray explains them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import nn

from ntkscope.core import UsageError
from ntkscope.data.subsets import stratified
from ntkscope.measures.regression import r_squared
from ntkscope.xray.items import Items
from ntkscope.xray.network import class_logits, outputs

ASKED = 256  # items of each side on which the network is asked
SLIGHT = 0.1  # of the way from chance to perfect: random weights get up to 0.09 on scikit-learn's digits, in 120 draws


USELESS = 0.05  # R² of the best output up to which a regression predicts no better than the mean


@dataclass(frozen=True)
class Standing:
    """A network's accuracy on some items, and what its predictions would get if the labels were shuffled."""

    accuracy: float
    chance: float
    items: int

    @classmethod
    def of(cls, predicted: Int64[np.ndarray, " n"], y: Int64[np.ndarray, " n"]) -> Standing:
        """Chance is Σ_k (share of predictions k) (share of labels k), as in Cohen's κ; a constant prediction has it exactly.

        >>> Standing.of(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]))
        Standing(accuracy=0.75, chance=0.5, items=4)
        """
        classes = int(max(predicted.max(), y.max())) + 1
        shares = [np.bincount(labels, minlength=classes) / len(y) for labels in (predicted, y)]
        return cls(float((predicted == y).mean()), float(shares[0] @ shares[1]), len(y))

    @property
    def at_chance(self) -> bool:
        """Within two standard errors of chance; or a tenth of the way to perfect, and less than twice as good.

        Random features depend on the input, so random predictions depend a little on the class.

        >>> Standing(0.15, 0.1, 1000).at_chance, Standing(0.3, 0.1, 1000).at_chance, Standing(0.01, 0.001, 10_000).at_chance
        (True, False, False)
        """
        above, error = self.accuracy - self.chance, math.sqrt(self.chance * (1 - self.chance) / self.items)
        return above <= 2 * error or (above < SLIGHT * (1 - self.chance) and self.accuracy < 2 * self.chance)


def check_trained(model: nn.Module, train: Items, test: Items, *, seed: int, device: Any) -> None:
    """Raise an error if the network is at chance on training items and on test items alike; a few of each are asked."""
    if train.y.is_floating_point():
        _check_regression(model, train, test, seed=seed, device=device)
        return
    found = []
    for what, items in (("training", train), ("test", test)):
        y = items.y.numpy()
        rows = stratified(y, max(ASKED, len(np.unique(y))), seed, "xray", "chance", what)
        taken = items.take(torch.from_numpy(rows))
        predicted = class_logits(outputs(model, taken.x, device)).argmax(1).numpy()
        found.append((what, Standing.of(predicted, y[rows])))
        if not found[-1][1].at_chance:
            return
    said = " and ".join(
        f"{100 * one.accuracy:.1f} % of {one.items} {what} items (chance: {100 * one.chance:.1f} %)"
        for what, one in found
    )
    raise UsageError(
        f"got a network that is right on {said}; expected a trained one: load its weights (on the command line --weights),"
        " check that inputs are prepared as in its training and classes are numbered in the order of its outputs, or X-ray it"
        " as it is with untrained=True (--untrained)"
    )


def _check_regression(model: nn.Module, train: Items, test: Items, *, seed: int, device: Any) -> None:
    """The same for real targets: an error if no output is predicted better than by its mean, on training and on test items."""
    found = []
    for what, items in (("training", train), ("test", test)):
        rows = stratified(items.strata, ASKED, seed, "xray", "chance", what)
        taken = items.take(torch.from_numpy(rows))
        values = r_squared(outputs(model, taken.x, device), taken.y)
        best = float(np.nanmax(values)) if not np.isnan(values).all() else math.nan
        if best > USELESS:
            return
        found.append(f"R² {best:.2f} on {len(rows)} {what} items")
    raise UsageError(
        f"got a network that predicts the targets no better than their mean ({' and '.join(found)}"
        f"{', of its best output' if train.y.shape[1] > 1 else ''}); expected a trained one: load its weights (on the command"
        " line --weights), check that inputs are prepared as in its training and that the targets have the unit, the scale and"
        " the order of its outputs, or X-ray it as it is with untrained=True (--untrained)"
    )
