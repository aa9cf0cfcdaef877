"""Properties of kernel rows: neighbours, how spread out their mass is, what they respond to, how they are attributed."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ntkscope.explain import attribute, class_summary, concentration
from ntkscope.linalg import Gram
from ntkscope.machines import KernelMachine

ATTRIBUTIONS = ("mean_in_iqr", "top5_share", "top1_percent_share", "participation", "own_class_most")


def top(K: Float[Tensor, "m n"], k: int = 5) -> Int64[np.ndarray, "m k"]:
    """The k most similar training points of every row, most similar first, by signed similarity.

    >>> top(torch.tensor([[0.1, 0.9, -2.0]]), 2).tolist()
    [[1, 0]]
    """
    return K.topk(min(k, K.shape[1]), dim=1).indices.cpu().numpy().astype(np.int64)


def shared(a: Int64[np.ndarray, "m k"], b: Int64[np.ndarray, "m k"]) -> float:
    """How many of the k neighbours two kernels share, mean over rows.

    >>> shared(np.array([[1, 2]]), np.array([[2, 3]]))
    1.0
    """
    return float((a[:, :, None] == b[:, None, :]).any(2).sum(1).mean())


def participation_ratio(K: Float[Tensor, "m n"]) -> float:
    """(Σ|k|)² / (n Σ k²), mean over rows: 1 when all entries are alike, 1/n when one has everything.

    >>> participation_ratio(torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0, 0.0, 0.0, 0.0]]))
    0.625
    """
    sums, squares = K.double().abs().sum(1), K.double().square().sum(1)
    return float((sums.square() / (K.shape[1] * squares)).mean())


def within_class_spread(K: Float[Tensor, "n n"], y: Int64[np.ndarray, " n"]) -> float:
    """Variance of cosine similarities between points of one class over the variance between all points.

    >>> within_class_spread(torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), np.array([0, 0, 1]))
    0.0
    """
    norms = K.diagonal().double().sqrt()
    cosine = K.double() / torch.outer(norms, norms)
    labels = torch.as_tensor(np.ascontiguousarray(y), device=K.device)
    off = ~torch.eye(len(K), dtype=torch.bool, device=K.device)
    same = (labels[:, None] == labels[None, :]) & off
    return float(cosine[same].var(correction=0) / cosine[off].var(correction=0))


def border_correlation(
    K: Float[Tensor, "m n"], x1: Float[Tensor, "m c h w"], x2: Float[Tensor, "n c h w"], *, border: int = 4
) -> float:
    """Pearson correlation of a kernel's entries with minus the distance of the mean border colours of the two images."""

    def frame(x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[2:], dtype=torch.bool, device=x.device)
        mask[border:-border, border:-border] = False
        return x[:, :, mask].double().mean(2)

    alike = -torch.cdist(frame(x1), frame(x2))
    stacked = torch.stack([K.double().to(alike.device).flatten(), alike.flatten()])
    return float(torch.corrcoef(stacked)[0, 1])


def attribution_figures(
    machine: KernelMachine, K: Gram, y: Int64[np.ndarray, " n"], y_test: Int64[np.ndarray, " m"]
) -> dict[str, float]:
    """The statements of section 4 as numbers: means over the test points in the rows of `K`, whose labels are `y_test`.

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
    return dict(zip(ATTRIBUTIONS, np.mean(rows, axis=0).tolist()))
