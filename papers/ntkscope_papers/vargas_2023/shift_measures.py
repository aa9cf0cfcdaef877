"""What is measured of P and M: areas under the curve, planes of principal components, two ways to filter P."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ntkscope.core import Part, Record, numpy_generator
from ntkscope.explain.two_sample.density_ratio import kernel_density_ratio
from ntkscope.explain.two_sample.pooled import Pooled, pool
from ntkscope.explain.two_sample.shift import Shift, shift
from ntkscope_papers.vargas_2023.tweets import Vectors, balanced, handle_only, masked

STRENGTH = 0.1  # inverse penalty of every logistic regression on standardised vectors
CLIP = 0.999  # of the density ratios: beyond this quantile a tweet is always kept
ROWS = 2048  # of a matrix of distances at a time
Labels = Int64[np.ndarray, " n"]


def told(found: Shift) -> dict[str, Any]:
    """What a record keeps of a comparison."""
    effects = {name: [round(float(value), 5) for value in values] for name, values in found.effects.items()}
    return {**effects, "p": {name: float(value) for name, value in found.p.items()}, "verdict": found.verdict}


def seen(first: Vectors, second: Vectors, permutations: int, seed: int) -> dict[str, Any]:
    """P against M in one embedding."""
    return told(shift(None, first, second, permutations=permutations, seed=seed))


def counts(processed: Part, manual: Part) -> dict[str, Any]:
    """Sizes and classes, tweets that are one handle, and texts that occur with both labels once handles are masked."""
    sizes = {
        name: np.bincount(part.y.numpy(), minlength=2).tolist() for name, part in (("P", processed), ("M", manual))
    }
    texts, y = processed.extras["text"], processed.y.tolist()
    alone = [sum(handle_only(text) for text, label in zip(texts, y) if label == k) for k in (0, 1)]
    labels: dict[str, set[int]] = {}
    for text, label in zip(texts, y):
        labels.setdefault(masked(text), set()).add(label)
    both = sorted(text for text, several in labels.items() if len(several) > 1)
    return {
        "negative and positive": sizes,
        "one handle and nothing else, negative and positive": alone,
        "inputs with both labels": len(both),
        "for example": both[:5],
    }


def keep_plane(record: Record, name: str, first: Vectors, second: Vectors) -> Pooled:
    """Both samples on their first two components, kept in the record for its figures."""
    pooled = pool(first, second)
    scores = pooled.components(2).astype(np.float32)
    record.array(f"{name}-P", scores[: len(first)])
    record.array(f"{name}-M", scores[len(first) :])
    return pooled


def regression() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, class_weight="balanced", max_iter=1000))


def energy_distance(a: Vectors, b: Vectors, device: torch.device) -> float:
    """`2 E|a - b| - E|a - a'| - E|b - b'|`, without items paired with themselves; O(n m d). Székely and Rizzo (2004).

    >>> energy_distance(np.array([[0.0], [0.0]]), np.array([[1.0], [1.0]]), torch.device("cpu"))
    2.0
    """
    x, y = (torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in (a, b))

    def total(one: torch.Tensor, other: torch.Tensor) -> float:
        return sum(float(torch.cdist(rows, other).sum()) for rows in one.split(ROWS))

    n, m = len(x), len(y)
    return 2 * total(x, y) / (n * m) - total(x, x) / (n * (n - 1)) - total(y, y) / (m * (m - 1))


def confident(scores: Float64[np.ndarray, " n"], labels: Labels, share: float) -> Bool[np.ndarray, " n"]:
    """The items with the highest scores, equally many of each class: `share` of the smaller class.

    >>> confident(np.array([0.9, 0.1, 0.5, 0.6]), np.array([0, 0, 1, 1]), 0.5).tolist()
    [True, False, False, True]
    """
    count = int(share * np.bincount(labels).min())
    kept = np.zeros(len(labels), dtype=bool)
    for k in np.unique(labels):
        members = np.flatnonzero(labels == k)
        kept[members[np.argsort(-scores[members], kind="stable")[:count]]] = True
    return kept


def filtered(
    P: Vectors, M: Vectors, y_P: Labels, y_M: Labels, share: float, seed: int, device: torch.device
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """P filtered by a probe of one half of M, downstream accuracy on the other half; both halves take both parts.

    The filter knows labels of M, so accuracies on the tweets it was made from would be too good. Beside the results, P and the
    filtered tweets on two components, for figures.
    """
    draw = numpy_generator(seed, "filter")
    scores = pool(P, M).components(2)
    plane_P, plane_M = scores[: len(P)], scores[len(P) :]
    half = np.isin(np.arange(len(M)), balanced(torch.from_numpy(y_M), [np.bincount(y_M).min() // 2], seed, "halves")[0])
    apart = {"plane": energy_distance(plane_M, plane_P, device), "all": energy_distance(M, P, device)}
    rows = []
    for fitted in (half, ~half):
        own = regression().fit(M[fitted], y_M[fitted]).predict_proba(P)[np.arange(len(P)), y_P]
        kept = confident(own, y_P, share)
        random = confident(draw.random(len(P)), y_P, share)
        accuracy = {
            name: float(regression().fit(P[which], y_P[which]).score(M[~fitted], y_M[~fitted]))
            for name, which in (("filtered", kept), ("random", random))
        }
        rows.append(
            {
                "filtered": accuracy["filtered"],
                "random": accuracy["random"],
                "agree": float((own[kept] > 0.5).mean()),
                "plane": energy_distance(plane_P[kept], plane_P, device),
                "all": energy_distance(P[kept], P, device),
                "random plane": energy_distance(plane_P[random], plane_P, device),
            }
        )
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    planes = {"before": plane_P.astype(np.float32), "after": plane_P[kept].astype(np.float32)}
    results = {
        "kept": int(kept.sum()),
        "of": len(P),
        "kept that the probe agrees with": means["agree"],
        "accuracy on M": {"filtered": means["filtered"], "as many at random": means["random"]},
        "energy distance to P": {
            "in PC1–2": {"filtered": means["plane"], "as many at random": means["random plane"], "M": apart["plane"]},
            "in all dimensions": {"filtered": means["all"], "M": apart["all"]},
        },
    }
    return results, planes


def subsample(P: Vectors, M: Vectors, y_P: Labels, y_M: Labels, seed: int) -> dict[str, Any]:
    """Tweets of P accepted with probability proportional to the ratio of both densities in the plane of PC1–2."""
    scores = pool(P, M).components(2)
    plane_P, plane_M = scores[: len(P)], scores[len(P) :]
    ratio = kernel_density_ratio(scores, len(P))
    most = float(np.quantile(ratio.a, CLIP))
    kept = ratio.accepted(seed, most=most)
    weights = np.minimum(ratio.a, most)  # where P has next to no tweets the ratio itself is next to infinite
    (half,) = balanced(torch.from_numpy(y_M), [np.bincount(y_M).min() // 2], seed, "halves")
    others = np.setdiff1d(np.arange(len(M)), half)
    part = kernel_density_ratio(np.concatenate([plane_P, plane_M[half]]), len(P))
    kept_half = part.accepted(seed, most=float(np.quantile(part.a, CLIP)))
    few: dict[str, Any] = {"tests": ("ks",), "permutations": 19, "level": 0.05, "seed": seed}
    before = shift(None, plane_P[:: max(1, len(P) // 4000)], plane_M, **few)
    in_plane, whole = shift(None, plane_P[kept], plane_M, **few), shift(None, P[kept], M, **few)
    held = shift(None, plane_P[kept_half], plane_M[others], **few)
    draw = numpy_generator(seed, "subsample")
    random = np.concatenate(
        [draw.permutation(np.flatnonzero(y_P == k))[: int((y_P[kept] == k).sum())] for k in np.unique(y_P)]
    )
    accuracy = {
        name: float(regression().fit(P[which], y_P[which]).score(M, y_M))
        for name, which in (("accepted", kept), ("as many at random", random))
    }
    return {
        "accepted": len(kept),
        "of": len(P),
        "effective size": float(weights.sum() ** 2 / np.square(weights).sum()),
        "AUC in PC1–2 before": told(before)["auc_pc12_qda"],
        "AUC in PC1–2": told(in_plane)["auc_pc12_qda"],
        "AUC in PC1–2, tweets of M not used": told(held)["auc_pc12_qda"],
        "AUC in all dimensions": told(whole)["auc"],
        "accuracy on M": accuracy,
    }
