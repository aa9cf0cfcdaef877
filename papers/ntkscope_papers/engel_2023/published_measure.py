"""The measure and the surrogate that the surrogate paper's tables were made with, as the authors' public code has them.

They differ from what the paper's text says. On two classes τ is of the score of the *fixed* class 1, not of the correct
class, so most of it is which class a point belongs to: a predictor that knows the labels and nothing else scores 0.5. Points at
which a probability is exactly 0 or 1 are left out. The surrogate is scikit-learn's SGDClassifier with balanced
classes and its default stopping, so its τ depends on its seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import kendalltau, rankdata
from sklearn.linear_model import SGDClassifier

from ntkscope.machines import KernelPair
from ntkscope.measures.faithfulness import probabilities
from ntkscope_papers.engel_2023.surrogate import Labels, Logits, faithful

Values = Float[np.ndarray, " n"]
COSINES = ("trntk", "proj-trntk", "proj-pntk", "em", "ck-cosine")  # the others are divided by their standard deviation


@dataclass(frozen=True)
class Unsaturated:
    """τ-b over the points at which neither probability is exactly 0 or 1; NaN where fewer than two are left."""

    tau: float
    used: int
    left_out: int

    def to_json(self) -> dict[str, Any]:
        return {"tau": self.tau, "used": self.used, "left out": self.left_out}


def unsaturated(p: Values, q: Values) -> Unsaturated:
    """τ of two models' probabilities, the saturated points left out; a probability that is not a number leaves none.

    >>> unsaturated(np.array([0.1, 0.5, 0.9, 1.0]), np.array([0.2, 0.3, 0.4, 0.1]))
    Unsaturated(tau=1.0, used=3, left_out=1)
    """
    kept = (p > 0) & (p < 1) & (q > 0) & (q < 1)  # false for NaN
    used = int(kept.sum())
    tau = float(kendalltau(p[kept], q[kept]).statistic) if used > 1 else float("nan")
    return Unsaturated(tau, used, len(p) - used)


def fixed_class(scores: Values, network: Values) -> Unsaturated:
    """τ of class 1's score, both arguments its log-odds, as the two-class rows of Table 1 were measured.

    The network's probability is a sigmoid in single precision, which is 1 from log-odds of 17 on. The surrogate's is a softmax
    over the *test points*: no probability, but a monotone map, so it matters only by the points whose share
    underflows to 0, which are left out, and where it overflows, which leaves none (the authors drop such networks).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        raised = np.exp(np.asarray(scores, dtype=np.float64))
        return unsaturated(raised / raised.sum(), sigmoid(network))


def sigmoid(network: Values) -> Values:
    """In single precision."""
    with np.errstate(over="ignore"):
        found: np.ndarray = 1 / (1 + np.exp(-np.asarray(network, dtype=np.float32)))
    return found


def label_floor(y: Labels, network: Values) -> float:
    """The expected τ of class 1's score for a predictor that knows each label and orders points of one label at random.

    `(2 AUC - 1) · 2 n₀ n₁ / (n (n - 1))` with the AUC of the network's own scores: pairs of one class add nothing on average.

    >>> label_floor(np.array([0, 0, 1, 1]), np.array([1.0, 2.0, 3.0, 4.0]))  # every pair of two classes, 4 of 6
    0.6666666666666666
    """
    n1 = int((y == 1).sum())
    n0, n = len(y) - n1, len(y)
    if not (n0 and n1):
        return float("nan")
    area = (rankdata(network)[y == 1].sum() - n1 * (n1 + 1) / 2) / (n0 * n1)
    return float((2 * area - 1) * 2 * n0 * n1 / (n * (n - 1)))


def floor_on_used(y: Labels, network: Values) -> float:
    """`label_floor` on the points that the network does not saturate."""
    q = sigmoid(network)
    kept = (q > 0) & (q < 1)
    return label_floor(y[kept], network[kept])


def stochastic_scores(pair: KernelPair, y: Labels, alpha: float, seeds: Sequence[int]) -> Iterator[Logits]:
    """Scores of the test points by the authors' SGDClassifier for every seed, one column per class; of two classes (-f, f)/2.

    Kernels that are not cosines are divided by the standard deviation of their entries, as in the authors' code.
    """
    train, test = pair.train.numpy(), pair.test.numpy()
    if pair.name not in COSINES:
        scale = float(train.std()) or 1.0
        train, test = train / scale, test / scale
    many, cores = len(np.unique(y)) > 2, os.cpu_count() or 1

    def scores(seed: int) -> Logits:
        fitted = SGDClassifier(
            loss="log_loss",
            penalty="l2",
            alpha=alpha,
            class_weight="balanced",
            random_state=seed,
            n_jobs=cores if many else None,  # threads: one-vs-rest fits side by side
        ).fit(train, y)
        found = np.asarray(fitted.decision_function(test), dtype=np.float64)
        return found if many else np.stack([-found, found], axis=1) / 2

    with ThreadPoolExecutor(1 if many else max(1, min(len(seeds), cores))) as pool:
        yield from map(scores, seeds) if many else pool.map(scores, seeds)


def shares_of_classes(scores: Logits) -> Logits:
    """Probabilities as scikit-learn makes them of one-vs-rest scores: sigmoids divided by their sum, or all alike where each
    underflows to 0; of two classes a sigmoid.

    >>> shares_of_classes(np.array([[0.0, 0.0, -1e9], [-1e9, -1e9, -1e9]])).round(3).tolist()
    [[0.5, 0.5, 0.0], [0.333, 0.333, 0.333]]
    """
    if scores.shape[1] == 2:
        return probabilities(scores)
    with np.errstate(over="ignore"):
        each = 1 / (1 + np.exp(-scores))
    each[each.sum(1) == 0] = 1.0
    found: np.ndarray = each / each.sum(1, keepdims=True)
    return found


@dataclass(frozen=True, eq=False)
class Compared:
    """The test points that surrogates are compared with their network on."""

    network: Logits
    y: Labels

    def measured(self, scores: Logits, *, ovr: bool = False) -> dict[str, Any]:
        """Both measures of one surrogate: τ-b of the correct class's log-odds, and τ as published; TAD in points.

        `ovr`: the scores are one-vs-rest, so their probabilities are scikit-learn's; otherwise a softmax.
        """
        p = shares_of_classes(scores) if ovr else probabilities(scores)
        own = np.arange(len(self.y)), self.y
        logits = np.log(np.maximum(p, 1e-300)) if ovr and scores.shape[1] > 2 else scores
        figures = faithful(logits, self.network, self.y, bootstrap=0)
        found: dict[str, Any] = {"tau": figures["tau"], "tad": figures["tad"], "pearson": figures["pearson"]}
        q = probabilities(self.network.astype(np.float32).astype(np.float64)).astype(np.float32)
        found["unsaturated"] = unsaturated(p[own], q[own]).to_json()
        if scores.shape[1] == 2:
            margins = [z[:, 1] - z[:, 0] for z in (scores, self.network)]
            found["fixed class"] = fixed_class(*margins).to_json()
        return found


def stochastic_fits(
    pair: KernelPair, y: Labels, compared: Compared, alpha: float, seeds: Sequence[int]
) -> dict[str, Any]:
    """Both measures of the authors' classifier for every seed: {seed: measures} and the ridge."""
    fits = stochastic_scores(pair, y, alpha, seeds)
    rows = {str(seed): compared.measured(scores, ovr=True) for seed, scores in zip(seeds, fits)}
    return {"alpha": alpha, "seeds": rows}


def as_committed(p: Float[np.ndarray, "n c"], q: Float[np.ndarray, "n c"]) -> Unsaturated:
    """τ as the authors' notebook on poisoning has it: it indexes with one-hot labels, which takes class 0 from every place but
    one and class 1 from that one, so c - 1 copies of class 0 and one of class 1 are compared, whatever the labels.
    """
    copies = p.shape[1] - 1
    return unsaturated(*(np.concatenate([np.repeat(one[:, 0], copies), one[:, 1]]) for one in (p, q)))


def spread(fits: Mapping[str, Any], *path: str) -> dict[str, float] | None:
    """Mean, least and largest over the seeds of one number of `stochastic_fits`, those that are not a number left out."""
    values: list[float] = []
    for row in fits["seeds"].values():
        value = row
        for key in path:
            value = value[key]
        if value is not None and np.isfinite(value):
            values.append(float(value))
    if not values:
        return None
    return {"mean": float(np.mean(values)), "least": min(values), "largest": max(values), "n": len(values)}


def spreads(several: Iterable[Mapping[str, Any] | None], *path: str) -> list[dict[str, float]]:
    """`spread` of each network that has fits with that number."""
    return [one for fits in several if fits and (one := spread(fits, *path))]
