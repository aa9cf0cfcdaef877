"""How attributions of a surrogate are distributed over the training points: the statements of section 4 as numbers."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from ntkscope.explain import attribute, class_summary, concentration
from ntkscope.linalg import Gram
from ntkscope.machines import KernelMachine

NAMES = ("mean_in_iqr", "top5_share", "top1_percent_share", "participation", "own_class_most")


def figures(
    machine: KernelMachine, K: Gram, y: Int64[np.ndarray, " n"], y_test: Int64[np.ndarray, " m"]
) -> dict[str, float]:
    """Means over the test points in the rows of `K`, whose labels are `y_test`.

    `mean_in_iqr`: share of (point, neuron, training class) whose mean attribution lies between the quartiles.
    `top5_share`, `top1_percent_share`: of Σ|A| to the correct neuron. `participation`: (Σ|A|)² / (n Σ A²).
    `own_class_most`: share of points where the correct class contributes most to its own neuron.
    """
    rows = []
    for values, label in zip(attribute(machine, K.to(device="cpu")), y_test):
        found = class_summary(values, y)
        mass = concentration(values[:, label], k=5)
        own = int(np.nanargmax(found.mean[:, label])) == label
        inside = found.mean_inside[found.count > 0].mean()
        rows.append([inside, float(mass.top), float(mass.top_percent), float(mass.participation), float(own)])
    return dict(zip(NAMES, np.mean(rows, axis=0).tolist()))
