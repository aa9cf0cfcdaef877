"""Table 3 of the surrogate paper: a poisoned network, its surrogates, and kernels as filters for poisoned inputs.

One leg per trigger and network, estimated 270 seconds on one H200 (150 without a trigger).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ntkscope.core import Record, Split, derive_seed
from ntkscope.data import Trigger, badnets, stamp
from ntkscope.explain import forensics
from ntkscope.machines import KernelPair
from ntkscope.measures.faithfulness import probabilities
from ntkscope_papers.engel_2023 import table3_claims
from ntkscope_papers.engel_2023.kernel_pairs import COSINE, SIX, TITLES, pairs_of
from ntkscope_papers.engel_2023.published_measure import (
    Compared,
    as_committed,
    shares_of_classes,
    spread,
    stochastic_scores,
)
from ntkscope_papers.engel_2023.surrogate import Surrogate, faithful
from ntkscope_papers.engel_2023.table3_claims import TABLE
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.results import once, summary
from ntkscope_papers.shared.images import build_network, chosen_points, load_images, poison_recipe
from ntkscope_papers.shared.networks import logits_of, trained


@dataclass(frozen=True)
class Poisoning(Experiment):
    """Surrogate paper, Table 3: BadNets on CIFAR-10, six kernels as surrogates and as filters; a second trigger beside it.

    `triggers`: "square" is the paper's, "random" another shape, place and colour drawn from the seed; "none" is the
    same network trained on clean data, for comparison. `sgd_seeds`: fits of the authors' SGDClassifier per kernel. `sketch`:
    the kind of projection, as in surrogate-kernels.
    """

    name = "poisoning"
    statements = claims_of(table3_claims)
    free = ("seeds", "memory")

    dataset: str = "cifar10"
    model: str = "poison_cnn"
    width: float = 1.0
    enlarge: int = 1
    train_items: int | None = None
    test_items: int | None = None
    epochs: int = 24
    batch: int = 128
    lr: float = 0.05
    fraction: float = 0.1
    target: int = 0
    triggers: tuple[str, ...] = ("square", "random", "none")
    kernels: tuple[str, ...] = SIX
    points: int = 5000
    dim: int = 10240
    sketch: str = "kronecker"
    precision: str = "bf16"
    memory: str = "96GiB"
    alpha: float = 1e-4
    seeds: int = 3
    sgd_seeds: int = 5
    sgd_alpha: float = 1e-2

    smoke = {
        "dataset": "digits",
        "width": 0.125,
        "enlarge": 2,
        "train_items": 1000,
        "test_items": 100,
        "epochs": 8,
        "batch": 50,
        "points": 300,
        "dim": 128,
        "precision": "exact",
        "memory": "2GiB",
        "seeds": 1,
        "sgd_seeds": 2,
    }

    def measure(self, run: Run) -> None:
        run.record.put(data_fingerprint=run.data.fingerprint)
        super().measure(run)

    def prepare(self, run: Run) -> Split:
        sizes: dict[str, Any] = {"train": self.train_items, "test": self.test_items, "enlarge": self.enlarge}
        return load_images(self.dataset, root=run.root, **sizes)

    @leg("{1}/{0}", over=lambda self: product(range(self.seeds), self.triggers))
    def network(self, run: Run, s: int, kind: str) -> dict[str, Any]:
        """One network: trained, attacked, and examined with every kernel."""
        record, split, seed, key = run.record, run.data, run.seed + s, f"{kind}/{s}"
        worn = trigger(kind, split, seed)
        train = badnets(split.train, self.fraction, self.target, trigger=worn, seed=seed) if worn else split.train
        mask = train.extras["poisoned"].numpy() if worn else np.zeros(len(train), dtype=bool)
        how = poison_recipe(epochs=self.epochs, batch=self.batch, lr=self.lr)
        build = partial(build_network, self.model, split, width=self.width, seed=seed)
        model = trained(run, key, build, train, how, seed=seed)
        x_test = torch.cat([split.test.x, stamp(split.test, worn, seed=seed).x]) if worn else split.test.x
        logits, y = logits_of(model, x_test).numpy(), split.test.y.numpy()
        once(record, f"{key}/network", lambda: self.success(logits, y, worn))
        index = chosen_points(train.y, self.points, seed)
        part = train.take(torch.from_numpy(index))
        made_of = {"ck": ("ck", COSINE)}
        wanted = [k for k in self.kernels if any(f"{key}/{one}" not in record.metrics for one in made_of.get(k, (k,)))]
        for pair in pairs_of(self, run, wanted, model, part.x.to(run.device), x_test.to(run.device), seed):
            one = Surrogate(pair, part.y.numpy(), self.alpha, seed)
            once(record, f"{key}/{pair.name}", partial(self.figures_of, one, logits, y, mask[index]))
        return {"kernels": list(self.kernels)}

    def success(self, network: np.ndarray, y: np.ndarray, worn: Trigger | None) -> dict[str, Any]:
        """Accuracy on clean images and, with a trigger, how many stamped images of other classes go to the target."""
        n = len(y)
        found: dict[str, Any] = {"clean_accuracy": float((network[:n].argmax(1) == y).mean())}
        if worn is not None:
            found["attack_success"] = float((network[n:].argmax(1)[y != self.target] == self.target).mean())
            found["trigger"] = asdict(worn)
        return found

    def figures_of(self, one: Surrogate, network: np.ndarray, y: np.ndarray, mask: np.ndarray) -> dict[str, Any]:
        """Faithfulness on clean and on stamped images at the optimum and by SGD, and the kernel as a filter."""
        n, logits = len(y), one.logits
        sides = {"clean": slice(0, n), "poisoned": slice(n, 2 * n)} if len(network) > n else {"clean": slice(0, n)}
        found: dict[str, Any] = one.said()
        for side, at in sides.items():
            found[side] = faithful(logits[at], network[at], y, seed=one.seed)
        found["sgd"] = self.by_sgd(one, {side: (at, Compared(network[at], y)) for side, at in sides.items()})
        if len(sides) == 1:
            return found
        target = np.full_like(y, self.target)
        found["poisoned, target label"] = faithful(logits[n:], network[n:], target, seed=one.seed)
        truth = np.arange(2 * n) >= n
        found["filter"] = forensics.score(forensics.flag(one.pair.test, mask), truth).to_json()
        found["filter, cosine"] = forensics.score(forensics.flag(_cosine(one.pair), mask), truth).to_json()
        return found

    def by_sgd(self, one: Surrogate, sides: Mapping[str, tuple[slice, Compared]]) -> dict[str, Any]:
        """Both measures for every seed on every set of images, and τ as the authors' notebook has it as committed."""
        seeds = range(self.sgd_seeds)
        found: dict[str, Any] = {side: {"seeds": {}} for side in sides}
        for seed, scores in zip(seeds, stochastic_scores(one.pair, one.y, self.sgd_alpha, seeds)):
            for side, (at, compared) in sides.items():
                row = compared.measured(scores[at], ovr=True)
                q = probabilities(compared.network)
                row["as committed"] = as_committed(shares_of_classes(scores[at]), q).to_json()
                found[side]["seeds"][str(seed)] = row
        return {"alpha": self.sgd_alpha, **found}

    @figure
    def table3(self, record: Record) -> Figure:
        """F1 of the filters for both triggers; with the paper's, τ on clean and on stamped images, at the optimum and by SGD.

        Bars: standard errors over networks.
        """
        names = [TITLES[k] for k in self.kernels]
        drawn, (filters, clean, stamped) = drawing.canvas(1, 3, width=4.4)
        whole = {
            kind: [s for s in range(self.seeds) if all(f"{kind}/{s}/{k}" in record.metrics for k in self.kernels)]
            for kind in ("square", "random")
        }

        def bars(kind: str, value: Callable[[Any], float | None]) -> tuple[list[float | None], list[float]]:
            every = [[value(record.metrics[f"{kind}/{s}/{k}"]) for s in whole[kind]] for k in self.kernels]
            rows = [[one for one in row if one is not None] for row in every]
            found = [summary(row) if row else None for row in rows]
            return [one["mean"] if one else None for one in found], [one["sem"] if one else 0.0 for one in found]

        shown = {"square": "yellow square", "random": "second trigger"}
        f1: dict[str, Any] = {
            title: bars(kind, lambda row: row["filter"]["f1"]) for kind, title in shown.items() if whole[kind]
        }
        if f1:
            drawing.compare_bars(filters, names, f1, label="F1 of the filter: 3 of 5 neighbours")
        for axis, side, column, label in (
            (clean, "clean", 2, "Kendall τ, clean images"),
            (stamped, "poisoned", 4, "Kendall τ, stamped images"),
        ):
            series: dict[str, Any] = {}
            if whole["square"]:
                series["at the optimum"] = bars("square", partial(_tau, side=side))
                series["by SGD"] = bars("square", partial(_tau_by_sgd, side=side))
            series["published"] = ([TABLE[k][column] for k in self.kernels], None)
            drawing.compare_bars(axis, names, series, label=label)
        return drawn


def second_trigger(seed: int, side: int) -> Trigger:
    """A trigger drawn at random, of another shape and another place than the paper's.

    >>> found = second_trigger(0, 32)
    >>> found.pattern != "square", found.place != Trigger().corner(32, 32)
    (True, True)
    """
    draw = 0
    while True:
        found = Trigger.random(derive_seed(seed, "second trigger", draw), height=side, width=side, sizes=(4, 5, 6))
        if found.pattern != "square" and found.corner(side, side) != Trigger().corner(side, side):
            return found
        draw += 1


def trigger(kind: str, split: Split, seed: int) -> Trigger | None:
    """The trigger in the units of the images."""
    if kind == "none":
        return None
    found = Trigger() if kind == "square" else second_trigger(seed, split.train.x.shape[2])
    return found.in_units(split.extras["mean"], split.extras["std"]) if "mean" in split.extras else found


def _cosine(pair: KernelPair) -> torch.Tensor:
    """The test kernel over the norms of the training points: neighbours by angle, whatever the kernel's own scale."""
    norms = pair.train.dense().diagonal().sqrt()
    return pair.test.dense() / torch.where(norms > 0, norms, 1.0)


def _tau(row: Any, side: str) -> float:
    return float(row[side]["tau"])


def _tau_by_sgd(row: Any, side: str) -> float | None:
    """τ as published, its mean over the seeds of SGD."""
    found = spread(row["sgd"][side], "unsaturated", "tau") if "sgd" in row else None
    return found["mean"] if found else None
