"""What fits of one kernel to labels, to the network's own logits, and leave-one-out influence each say of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int64

from ntkscope.explain import attribute, influence
from ntkscope.machines import KernelPair, fit_machine
from ntkscope_papers.engel_2023 import similarity
from ntkscope_papers.engel_2023.published_measure import Compared
from ntkscope_papers.engel_2023.surrogate import TOLERANCE, Labels, Logits, faithful

NAMES = ("tau", "agreement", "agreement_wrong", "r2_logits", "tad")


def side_by_side(
    pair: KernelPair, y: Labels, trained: Logits, compared: Compared, *, alpha: float, inspected: int = 100
) -> dict[str, Any]:
    """Faithfulness of the fit to labels and of the fit to the network's logits on the training points, `trained`.

    "shared": how many of the five training points that add most to the predicted class the two fits name both, and how many of
    them are among the five whose removal lowers it most (leave-one-out of the fit to logits), mean over test points.
    """
    classes = compared.network.shape[1]
    label = fit_machine(pair, y, alpha=alpha, tol=TOLERANCE, max_iter=500, classes=classes)
    distilled = fit_machine(pair, None, target="logits", network=trained, classes=classes)
    found: dict[str, Any] = {}
    for name, machine in (("labels", label), ("logits", distilled)):
        figures: Mapping[str, Any] = faithful(machine.logits(pair.test), compared.network, compared.y, bootstrap=0)
        found[name] = {key: figures[key] for key in NAMES}
    few = min(inspected, len(compared.y))
    some, predicted = pair.test[:few], compared.network[:few].argmax(1)
    tops = [_tops(attribute(machine, some), predicted) for machine in (label, distilled)]
    strength = distilled.alpha if np.isfinite(distilled.alpha) and distilled.alpha > 0 else None
    removed = _tops(influence(pair.train, some, trained, alpha=strength), predicted)
    found["shared"] = {
        "labels, logits": similarity.shared(tops[0], tops[1]),
        "labels, influence": similarity.shared(tops[0], removed),
        "logits, influence": similarity.shared(tops[1], removed),
    }
    return {**found, "train_items": len(y), "inspected": few, "alpha of logits": distilled.alpha}


def _tops(scores: Any, predicted: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, "m 5"]:
    """The five training points with the largest scores for the predicted class of each test point."""
    rows = [np.argsort(-scores.item(i)[:, c], kind="stable")[:5] for i, c in enumerate(predicted)]
    return np.stack(rows).astype(np.int64)
