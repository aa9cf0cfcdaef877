"""What is measured of P and M: tests and areas under the curve, planes of principal components, two ways to filter P."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ntkscope.core import Record, numpy_generator
from ntkscope.explain.density_ratio import kernel_density_ratio
from ntkscope.explain.pooled import Pooled, pool
from ntkscope.explain.shift import SHIFT, Shift, shift
from ntkscope.kernels import kernel
from ntkscope_papers.shared.sentences import on
from ntkscope_papers.vargas_2023.tweet_embeddings import Vectors, hidden_states
from ntkscope_papers.vargas_2023.tweets import Tweets, balanced, classifier, handle_only, masked

STRENGTH = 0.1  # inverse penalty of every logistic regression on standardised vectors
FOLDS = 5
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


def counts(found: Tweets) -> dict[str, Any]:
    """Sizes and classes, tweets that are one handle, and texts that occur with both labels once handles are masked."""
    sizes = {
        name: np.bincount(part.y.numpy(), minlength=2).tolist()
        for name, part in (("P", found.processed), ("M", found.manual))
    }
    texts, y = found.processed.extras["text"], found.processed.y.tolist()
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


def kernel_identity(encoder: str, found: Tweets, seed: int, device: torch.device) -> dict[str, float]:
    """Scores on ten components from the doubly centred kernel and from the centred activations: the largest difference."""
    (index,) = balanced(found.manual.y, [30], seed, "identity")
    x = on(found.manual.take(torch.from_numpy(index)).x, device)
    model = classifier(encoder, "mean", seed).double().to(device).eval()
    gram = kernel("ck", model, x, bias=False, dtype=torch.float64).dense().double().cpu().numpy()
    features = hidden_states(model.get_submodule("encoder"), x, layers=[-1])[-1, "mean"]
    n = len(gram)
    centring = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(centring @ gram @ centring)
    top = slice(-1, -11, -1)
    by_kernel = vectors[:, top] * np.sqrt(values[top])
    U, s, _ = np.linalg.svd(features - features.mean(0), full_matrices=False)
    by_activations = U[:, :10] * s[:10]
    signs = np.sign((by_kernel * by_activations).sum(0))
    return {"largest difference": float(np.abs(by_kernel * signs - by_activations).max() / s[0]), "items": n}


def one_sided(pairs: int, permutations: int, seed: int) -> dict[str, Any]:
    """Pairs that agree in the directions of large variance and differ in one of small variance, several times."""
    plane, whole, areas = 0, 0, []
    for world in range(pairs):
        draw = numpy_generator(seed, "one-sided", str(world))
        deviations = np.array([10.0, 7.0, *np.full(17, 1.0), 0.3])
        a, b = (draw.normal(size=(300, 20)) * deviations for _ in range(2))
        b[:, -1] += 0.3
        turn = np.linalg.qr(draw.normal(size=(20, 20)))[0]
        found = shift(None, a @ turn, b @ turn, tests=("c2st",), permutations=permutations, seed=seed)
        inside = shift(None, found.plane[:300], found.plane[300:], permutations=permutations, seed=seed)
        plane, whole = plane + (inside.verdict == SHIFT), whole + (found.verdict == SHIFT)
        areas.append([found.effects["auc_pc12"][0], found.effects["auc"][0]])
    means = np.mean(areas, axis=0)
    return {
        "pairs": pairs,
        "found in PC1–2": plane,
        "found by C2ST": whole,
        "AUC in PC1–2, full": means.round(4).tolist(),
    }


def plane(first: Vectors, second: Vectors, record: Record, permutations: int, seed: int) -> dict[str, Any]:
    """The first two components of both samples (kept for the figures), and what the first alone tells.

    With twice as many rearrangements, so that p can be below 1e-3.
    """
    pooled = keep_plane(record, "plane", first, second)
    line = pooled.components(1)
    alone = shift(
        None, line[: len(first)], line[len(first) :], tests=("ks",), permutations=2 * permutations + 1, seed=seed
    )
    return {
        "first component": {"auc": told(alone)["auc"], "ks": told(alone)["ks"], "p": alone.p["ks"]},
        "shares of variance": pooled.shares[:2].round(4).tolist(),
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


def linear_separability(first: Vectors, second: Vectors, seed: int) -> dict[str, Any]:
    """Balanced accuracy of a cross-validated logistic regression of P against M, and with the labels shuffled."""
    X, y = np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)])
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    draw = numpy_generator(seed, "shuffled samples")

    def accuracy(labels: Labels) -> float:
        return float(balanced_accuracy_score(labels, cross_val_predict(regression(), X, labels, cv=folds)))

    shuffled = [accuracy(draw.permutation(y)) for _ in range(FOLDS)]
    return {"balanced accuracy": accuracy(y), "labels shuffled": float(np.mean(shuffled)), "shuffles": shuffled}


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
    P: Vectors,
    M: Vectors,
    y_P: Labels,
    y_M: Labels,
    share: float,
    seed: int,
    device: torch.device,
    record: Record | None = None,
) -> dict[str, Any]:
    """P filtered by a probe of one half of M, downstream accuracy on the other half; both halves take both parts.

    The filter knows labels of M, so accuracies on the tweets it was made from would be too good. With a `record`, the planes of
    P and of the filtered tweets are kept for its figures.
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
    if record is not None:
        record.array("filter-before", plane_P.astype(np.float32))
        record.array("filter-after", plane_P[kept].astype(np.float32))
    return {
        "kept": int(kept.sum()),
        "of": len(P),
        "kept that the probe agrees with": means["agree"],
        "accuracy on M": {"filtered": means["filtered"], "as many at random": means["random"]},
        "energy distance to P": {
            "in PC1–2": {"filtered": means["plane"], "as many at random": means["random plane"], "M": apart["plane"]},
            "in all dimensions": {"filtered": means["all"], "M": apart["all"]},
        },
    }


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
