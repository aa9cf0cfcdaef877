"""Distribution shift between the two parts of Sentiment140: Figures 12 to 15, sections 4 to 7, with MiniLM in place of GPT-2.

P are tweets labelled by their emoticons, M tweets on chosen topics labelled by hand. Both are seen through every layer and
pooling of MiniLM, and through untrained encoders of four sizes; tests and areas under the curve are those of
`ns.explain.shift`. Two ways to make P more like M: tweets whose label a probe of M confirms, and rejection sampling by the
density ratio of Figure 13a.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import stats
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from torch import nn

from ntkscope.core import Part, Record, numpy_generator
from ntkscope.explain.two_sample.shift import SHIFT, shift
from ntkscope.kernels import kernel
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.results import under
from ntkscope_papers.shared.sentences import on
from ntkscope_papers.vargas_2023 import shift_claims as claims
from ntkscope_papers.vargas_2023 import shift_measures as measures
from ntkscope_papers.vargas_2023.tweets import balanced, classifier, hidden_states, pretrained, tweets, untrained

FOLDS = 5
MOST = 4000  # points of a density
Both = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Embedded:
    """P, a sample of it, and M, with their vectors from the pretrained encoder, each computed when it is first asked for."""

    processed: Part
    sample: Part
    manual: Part
    encoder: str
    poolings: tuple[str, ...]
    device: torch.device

    @cached_property
    def layers(self) -> dict[tuple[int, str], Both]:
        """The sample of P and M, every layer and pooling."""
        return both(pretrained(self.encoder, self.device), self.sample, self.manual, poolings=self.poolings)

    @cached_property
    def whole(self) -> Both:
        """All of P and M, last layer, mean over tokens."""
        return both(pretrained(self.encoder, self.device), self.processed, self.manual, layers=[-1])[-1, "mean"]


def both(encoder: nn.Module, first: Part, second: Part, **how: Any) -> dict[tuple[int, str], Both]:
    """The vectors of two samples, by layer and pooling; see `hidden_states`."""
    one, two = (hidden_states(encoder, part.x, **how) for part in (first, second))
    return {key: (one[key], two[key]) for key in one}


@dataclass(frozen=True)
class SentimentShift(Experiment):
    """Distribution shift, Figures 12 to 15: tweets labelled by emoticons against tweets labelled by hand, through encoders.

    `items`: tweets of P compared with M; `pool`: tweets of P that are filtered; `blocks`: the encoder's layers; `share`: of
    the tweets that the filter keeps; `filters`: halvings of M; `pairs`: synthetic samples equal in PC1–2.
    """

    name = "sentiment-shift"
    statements = claims_of(claims)
    free = ("draws", "filters", "permutations")

    dataset: str = "sentiment140"
    encoder: str = "minilm"
    blocks: int = 6
    length: int = 48
    items: int = 2000
    pool: int | None = None
    poolings: tuple[str, ...] = ("mean", "cls", "max", "last")
    sizes: tuple[str, ...] = ("2x128", "4x256", "6x384", "12x768")
    std: float = 0.02
    draws: int = 3
    permutations: int = 999
    share: float = 0.69
    filters: int = 10
    pairs: int = 10

    smoke = {
        "dataset": "made-up",
        "encoder": "tiny",
        "blocks": 2,
        "length": 6,
        "items": 60,
        "pool": 200,
        "poolings": ("mean", "cls"),
        "sizes": ("1x8", "2x16"),
        "draws": 1,
        "permutations": 59,
        "filters": 2,
        "pairs": 2,
    }

    def prepare(self, run: Run) -> Embedded:
        found = tweets(self.dataset, self.encoder, root=run.root, length=self.length, limit=self.pool)
        (sample,) = balanced(found.processed.y, [self.items // 2], run.seed, "sample")
        some = found.processed.take(torch.from_numpy(sample))
        return Embedded(found.processed, some, found.manual, self.encoder, self.poolings, run.device)

    @leg("counts")
    def counts(self, run: Run) -> dict[str, Any]:
        return measures.counts(run.data.processed, run.data.manual)

    @leg("identity")
    def kernel_identity(self, run: Run) -> dict[str, float]:
        """Scores on ten components from the doubly centred kernel and from the centred activations: the largest difference."""
        manual = run.data.manual
        (index,) = balanced(manual.y, [30], run.seed, "identity")
        x = on(manual.take(torch.from_numpy(index)).x, run.device)
        model = classifier(self.encoder, "mean", run.seed).double().to(run.device).eval()
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

    @leg("one-sided")
    def one_sided(self, run: Run) -> dict[str, Any]:
        """Pairs that agree in the directions of large variance and differ in one of small variance, several times."""
        plane, whole, areas = 0, 0, []
        for world in range(self.pairs):
            draw = numpy_generator(run.seed, "one-sided", str(world))
            deviations = np.array([10.0, 7.0, *np.full(17, 1.0), 0.3])
            a, b = (draw.normal(size=(300, 20)) * deviations for _ in range(2))
            b[:, -1] += 0.3
            turn = np.linalg.qr(draw.normal(size=(20, 20)))[0]
            found = shift(None, a @ turn, b @ turn, tests=("c2st",), permutations=self.permutations, seed=run.seed)
            inside = shift(None, found.plane[:300], found.plane[300:], permutations=self.permutations, seed=run.seed)
            plane, whole = plane + (inside.verdict == SHIFT), whole + (found.verdict == SHIFT)
            areas.append([found.effects["auc_pc12"][0], found.effects["auc"][0]])
        means = np.mean(areas, axis=0)
        return {
            "pairs": self.pairs,
            "found in PC1–2": plane,
            "found by C2ST": whole,
            "AUC in PC1–2, full": means.round(4).tolist(),
        }

    @leg("layer/{}", over=lambda self: range(self.blocks + 1))
    def layer(self, run: Run, k: int) -> dict[str, Any]:
        """By pooling; below the first block the first token is the same vector for every tweet and says nothing."""
        vectors: dict[str, Both] = {how: run.data.layers[k, how] for how in self.poolings}
        varies = {how: bool((np.concatenate(pair) != pair[0][0]).any()) for how, pair in vectors.items()}
        return {how: measures.seen(*pair, self.permutations, run.seed) for how, pair in vectors.items() if varies[how]}

    @leg("untrained/{}/{}", over=lambda self: product(self.sizes, range(self.draws)))
    def untrained(self, run: Run, size: str, d: int) -> dict[str, Any]:
        """The sample of P and M through an untrained encoder."""
        encoder = untrained(self.encoder, size, self.std, run.seed + d, run.device)
        first, second = both(encoder, run.data.sample, run.data.manual, layers=[-1])[-1, "mean"]
        if d == 0:
            measures.keep_plane(run.record, f"plane-{size}", first, second)
        return measures.seen(first, second, self.permutations, run.seed)

    @leg("plane")
    def plane(self, run: Run) -> dict[str, Any]:
        """The first two components of both samples (kept for the figures), and what the first alone tells.

        With twice as many rearrangements, so that p can be below 1e-3.
        """
        first, second = run.data.layers[self.blocks, "mean"]
        pooled = measures.keep_plane(run.record, "plane", first, second)
        line = pooled.components(1)
        many = 2 * self.permutations + 1
        alone = shift(None, line[: len(first)], line[len(first) :], tests=("ks",), permutations=many, seed=run.seed)
        effects = measures.told(alone)
        return {
            "first component": {"auc": effects["auc"], "ks": effects["ks"], "p": alone.p["ks"]},
            "shares of variance": pooled.shares[:2].round(4).tolist(),
        }

    @leg("linear")
    def linear_separability(self, run: Run) -> dict[str, Any]:
        """Balanced accuracy of a cross-validated logistic regression of P against M, and with the labels shuffled."""
        first, second = run.data.layers[self.blocks, "mean"]
        X, y = np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)])
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=run.seed)
        draw = numpy_generator(run.seed, "shuffled samples")

        def accuracy(labels: np.ndarray) -> float:
            return float(balanced_accuracy_score(labels, cross_val_predict(measures.regression(), X, labels, cv=folds)))

        shuffled = [accuracy(draw.permutation(y)) for _ in range(FOLDS)]
        return {"balanced accuracy": accuracy(y), "labels shuffled": float(np.mean(shuffled)), "shuffles": shuffled}

    @leg("filter/{}", over=lambda self: range(self.filters))
    def filtered(self, run: Run, s: int) -> dict[str, Any]:
        """Tweets of P whose label a probe of M confirms."""
        (P, M), y_P, y_M = run.data.whole, run.data.processed.y.numpy(), run.data.manual.y.numpy()
        results, planes = measures.filtered(P, M, y_P, y_M, self.share, run.seed + s, run.device)
        if s == 0:
            for name, points in planes.items():
                run.record.array(f"filter-{name}", points)
        return results

    @leg("subsample")
    def subsample(self, run: Run) -> dict[str, Any]:
        (P, M), y_P, y_M = run.data.whole, run.data.processed.y.numpy(), run.data.manual.y.numpy()
        return measures.subsample(P, M, y_P, y_M, run.seed)

    @figure
    def separation(self, record: Record) -> Figure:
        """Areas under the curve by layer and pooling, and of untrained encoders by size."""
        drawn, axes = drawing.canvas(1, 3, width=4.2)
        layers = {int(key): row for key, row in under(record, "layer/").items()}
        for axis, effect, title in zip(axes, ("auc", "auc_pc12_qda"), ("all dimensions, linear", "PC1–2, quadratic")):
            for i, pooling in enumerate(self.poolings):
                at = sorted(k for k, row in layers.items() if pooling in row)
                values = np.array([layers[k][pooling][effect] for k in at]).reshape(-1, 3)
                colour = drawing.COLOURS[i % len(drawing.COLOURS)]
                axis.plot(at, values[:, 0], "o-", markersize=3, linewidth=1.2, color=colour, label=pooling)
                axis.fill_between(at, values[:, 1], values[:, 2], alpha=0.15, color=colour)
            drawing.label(axis, title=title, x="layer", legend=True)
        for i, (effect, label) in enumerate((("auc", "all dimensions"), ("auc_pc12_qda", "PC1–2"))):
            for k, size in enumerate(self.sizes):
                for d, row in enumerate(under(record, f"untrained/{size}/").values()):
                    value, low, high = row[effect]
                    name = label if k == d == 0 else None
                    error = [[max(value - low, 0)], [max(high - value, 0)]]
                    axes[2].errorbar(
                        k + 0.12 * d, value, yerr=error, fmt="o", markersize=3, color=drawing.COLOURS[i], label=name
                    )
        axes[2].set_xticks(range(len(self.sizes)), self.sizes)
        drawing.label(axes[2], title="untrained encoders", legend=True)
        for axis in axes:
            axis.axhline(0.5, color="#999999", linewidth=0.6)
            axis.set_ylim(0.4, 1.02)
            axis.set_ylabel("area under the ROC curve, P against M")
        return drawn

    @figure
    def densities(self, record: Record) -> dict[str, Figure]:
        """Figures 12 to 15, of what is in the record."""
        found: dict[str, Figure] = {}
        views = {"MiniLM": "plane"} | {f"untrained {size}": f"plane-{size}" for size in self.sizes}
        views = {title: name for title, name in views.items() if f"{name}-P" in record.arrays}
        if "MiniLM" in views:
            found |= {"figure12": _first(record), "figure13a": _planes({"": _samples(record, "plane")})}
        if views:
            found["figure15"] = _planes({title: _samples(record, name) for title, name in views.items()})
        if "filter-before" in record.arrays:
            pair = {"P": record.arrays["filter-before"], "filtered": record.arrays["filter-after"]}
            found["figure14"] = _planes({"": {name: np.asarray(points, float) for name, points in pair.items()}})
        if under(record, "filter/"):
            found["filter"] = _filters(record)
        return found


def _samples(record: Record, plane: str) -> dict[str, np.ndarray]:
    return {name: np.asarray(record.arrays[f"{plane}-{name}"], dtype=np.float64) for name in "PM"}


def _first(record: Record) -> Figure:
    drawn, (axis,) = drawing.canvas(1, 1, width=5)
    samples = _samples(record, "plane")
    both = np.concatenate([points[:, 0] for points in samples.values()])
    at = np.linspace(both.min(), both.max(), 300)
    for i, (name, points) in enumerate(samples.items()):
        density = stats.gaussian_kde(points[:, 0])(at)
        axis.fill_between(at, density, alpha=0.3, color=drawing.COLOURS[i])
        axis.plot(at, density, color=drawing.COLOURS[i], linewidth=1.2, label=f"{name} ({len(points):,} tweets)")
    drawing.label(axis, x="first principal component", y="density", legend=True)
    return drawn


def _planes(panels: dict[str, dict[str, np.ndarray]]) -> Figure:
    """Densities of two samples in a plane, one panel for each title."""
    drawn, axes = drawing.canvas(1, len(panels), width=4.4, height=4.2)
    for axis, (title, samples) in zip(axes, panels.items()):
        both = np.concatenate(list(samples.values()))
        low, high = np.quantile(both, 0.002, axis=0), np.quantile(both, 0.998, axis=0)
        low, high = low - 0.15 * (high - low), high + 0.15 * (high - low)  # else densities end at a wall
        x, y = (np.linspace(low[k], high[k], 60) for k in (0, 1))
        grid = np.stack([each.ravel() for each in np.meshgrid(x, y)])
        for i, (name, points) in enumerate(samples.items()):
            few, colour = points[:: -(-len(points) // MOST)], drawing.COLOURS[i]
            axis.scatter(*few.T, s=3, alpha=0.15, linewidths=0, color=colour, rasterized=True)
            density = stats.gaussian_kde(few.T)(grid).reshape(60, 60)
            axis.contour(x, y, density, levels=5, colors=colour, linewidths=1)
            axis.plot([], [], color=colour, label=f"{name} ({len(points):,} tweets)")
        drawing.label(axis, title=title, x="first principal component", y="second", legend=True)
    return drawn


def _filters(record: Record) -> Figure:
    """Energy distances to P, of filtered tweets, as many at random, and M."""
    drawn, (axis,) = drawing.canvas(1, 1, width=4.8)
    rows = [row["energy distance to P"]["in PC1–2"] for row in under(record, "filter/").values()]
    for i, name in enumerate(rows[0]):
        axis.bar(i, max(float(np.mean([row[name] for row in rows])), 0.0), 0.6, color=drawing.COLOURS[i])
    axis.set_xticks(range(len(rows[0])), list(rows[0]))
    axis.set_ylabel("energy distance to P in PC1–2")
    return drawn
