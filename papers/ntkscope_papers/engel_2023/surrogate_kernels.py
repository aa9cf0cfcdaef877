"""Table 2 of the surrogate paper: six kernels of a network side by side, and what their rows look like.

The authors' code normalises the conjugate kernel, which the text does not say; both are here, "ck" and "ck-cosine". Four
legs per network; estimated seconds on one H200: of the first "exact" 430, "projected" 200, "embedding" 150, of each other
one 130, 60 and 60; training (55 s) is part of the leg that comes first in a folder. "looks" takes none, and needs the arrays
of the others in its folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import Claim, Record, Split, UsageError
from ntkscope.explain import attribute
from ntkscope_papers.engel_2023 import attribution, similarity
from ntkscope_papers.engel_2023.kernel_pairs import COSINE, SIX, kernel_pairs, with_cosine
from ntkscope_papers.engel_2023.published_measure import Compared, stochastic_fits
from ntkscope_papers.engel_2023.side_by_side import side_by_side
from ntkscope_papers.engel_2023.surrogate import SENSITIVITY, Surrogate, log_odds_pair
from ntkscope_papers.engel_2023.table2_claims import NAME, PUBLISHED, judge
from ntkscope_papers.engel_2023.table2_figures import boxes, draw, panel
from ntkscope_papers.framework import experiment as framework
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.framework.results import once
from ntkscope_papers.shared.images import build_network, chosen_points, load_images, residual_recipe
from ntkscope_papers.shared.networks import logits_of, trained

GROUPS = {"exact": ("trntk", "trntk0"), "projected": ("proj-trntk", "proj-pntk"), "embedding": ("em", "ck")}


@dataclass(frozen=True)
class SurrogateKernels(Experiment):
    """Surrogate paper, Table 2: six kernels side by side on ResNet-18 and CIFAR-10, their neighbours and attributions.

    `*_points`: how many training points a kernel has; comparisons between kernels use the points they all share.

    Networks after the first have `further` points in every kernel. `sgd_seeds`: fits of the authors' SGDClassifier per
    kernel, on `sgd_points` training points. `sketch`: the kind of projection. The paper's has dense entries (normal or signs);
    a factored one of the same dimension has the same error (0.0034 of a cosine on this network, both) at a tenth of the time,
    so it is the default here.
    """

    name = NAME
    free = ("seeds", "memory", "ridges", "further")

    dataset: str = "cifar10"
    model: str = "resnet18"
    width: float = 1.0
    train_items: int | None = None
    test_items: int | None = None
    epochs: int = 40
    batch: int = 512
    lr: float = 0.4
    augment: bool = True
    kernels: tuple[str, ...] = SIX
    exact_points: int = 20_000
    feature_points: int = 50_000
    embedding_points: int = 50_000
    dim: int = 10240
    sketch: str = "kronecker"
    precision: str = "bf16"
    memory: str = "96GiB"
    alpha: float = 1e-4
    seeds: int = 5
    inspected: int = 200
    ridges: bool = True
    further: int = 5000
    sgd_seeds: int = 5
    sgd_alpha: float = 1e-4
    sgd_points: int = 5000
    compared_points: int = 2000

    smoke = {
        "dataset": "digits",
        "model": "small_cnn",
        "train_items": 600,
        "test_items": 200,
        "epochs": 8,
        "batch": 50,
        "lr": 0.1,
        "augment": False,
        "exact_points": 150,
        "feature_points": 200,
        "embedding_points": 200,
        "dim": 256,
        "precision": "exact",
        "memory": "2GiB",
        "inspected": 40,
        "seeds": 2,
        "further": 100,
        "sgd_seeds": 2,
        "sgd_points": 100,
        "compared_points": 60,
    }

    def points(self, kernel: str, s: int = 0) -> int:
        """How many training points the kernel of network s has."""
        if kernel in ("trntk", "trntk0"):
            most = self.exact_points
        else:
            most = self.embedding_points if kernel == "em" else self.feature_points
        return most if s == 0 else min(self.further, most)

    def common(self, s: int = 0) -> int:
        """How many points every kernel of network s has."""
        return min(self.points(kernel, s) for kernel in self.kernels)

    def measure(self, run: framework.Run) -> None:
        split = load_images(self.dataset, root=run.root, train=self.train_items, test=self.test_items)
        run.record.put(data_fingerprint=split.fingerprint)
        run_legs(
            run.record,
            legs(Run(self, run.record, split, run.seed, run.device, run.progress)),
            self.legs,
            progress=run.progress,
        )

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return PUBLISHED

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


@dataclass(frozen=True, eq=False)
class Run:
    """What a leg needs besides its own name."""

    config: SurrogateKernels
    record: Record
    split: Split
    seed: int
    device: torch.device
    progress: bool
    models: dict[int, nn.Module] = field(default_factory=dict)

    def model(self, s: int) -> nn.Module:
        """Network s, trained once."""
        if s not in self.models:
            config, number = self.config, self.seed + s
            self.models.clear()
            self.models[s] = trained(
                self.record,
                f"{config.model}-{s}",
                partial(build_network, config.model, self.split, width=config.width, seed=number),
                self.split.train,
                residual_recipe(epochs=config.epochs, batch=config.batch, lr=config.lr, augment=config.augment),
                device=self.device,
                seed=number,
                progress=self.progress,
            )
        return self.models[s]


def kernels_of(run: Run, s: int, names: Sequence[str]) -> dict[str, Any]:
    """Some kernels of network s, each measured on its own points and on those that all kernels have."""
    config, split, model, seed = run.config, run.split, run.model(s), run.seed + s
    network, y_test = logits_of(model, split.test.x).numpy(), split.test.y.numpy()
    x_test = split.test.x.to(run.device)
    common = chosen_points(split.train.y, config.common(s), seed)
    compared = Compared(network, y_test)
    lacking = [k for k in names if any(key not in run.record.metrics for key in _results(config, s, k))]
    for points in sorted({config.points(k, s) for k in lacking}):
        index = chosen_points(split.train.y, points, seed)
        part = split.train.take(torch.from_numpy(index))
        y, places = part.y.numpy(), np.searchsorted(index, common)
        for pair in with_cosine(
            kernel_pairs(
                [k for k in lacking if config.points(k, s) == points],
                model,
                part.x.to(run.device),
                x_test,
                dim=config.dim,
                sketch=config.sketch,
                precision=config.precision if run.device.type == "cuda" else "exact",
                memory=config.memory,
                seed=seed,
                progress=run.progress,
            )
        ):
            whole = Surrogate(pair, y, config.alpha, seed)
            _measured(run, s, whole, whole.restricted(places), compared, split.train.x[torch.from_numpy(common)])
    return {"kernels": list(names)}


def _results(config: SurrogateKernels, s: int, name: str) -> list[str]:
    """What the record has of a kernel once it is done; a leg that was killed computes the others alone."""
    rows = ("", "/common", "/sgd", "/looks", *(("/ridges",) if config.ridges else ()))
    found = [f"{s}/{k}{row}" for k in (name, *((COSINE,) if name == "ck" else ())) for row in rows]
    return [*found, *((f"{s}/side by side",) if name == "trntk" else ())]


def _measured(run: Run, s: int, whole: Surrogate, few: Surrogate, compared: Compared, x_train: Tensor) -> None:
    """One kernel: its row, the row on common points, other ridges, fits by SGD, what its rows look like."""
    config, record, name = run.config, run.record, whole.pair.name
    network, y_test = compared.network, compared.y
    x_test = run.split.test.x.to(run.device)

    def row() -> dict[str, Any]:
        record.array(f"log-odds-{s}-{name}", log_odds_pair(whole.logits, network, y_test))
        return whole.row(network, y_test)

    def seen() -> dict[str, float]:
        nearest = similarity.top(few.pair.test.dense())
        record.array(f"top5-{s}-{name}", nearest)
        record.array(f"nearest-{s}-{name}", panel(run.split.test.x, x_train, nearest))
        if name == "trntk":
            record.array(f"figure2-{s}", boxes(attribute(few.machine, few.pair.test[:1]).item(0), few.y))
        return _looks(config, few, network, y_test, x_test, x_train)

    def fits() -> dict[str, Any]:
        smaller = few.restricted(chosen_points(torch.from_numpy(few.y), config.sgd_points, run.seed + s))
        return stochastic_fits(smaller.pair, smaller.y, compared, config.sgd_alpha, range(config.sgd_seeds))

    once(record, f"{s}/{name}", row)
    once(record, f"{s}/{name}/common", partial(few.row, network, y_test))
    once(record, f"{s}/{name}/sgd", fits)
    if config.ridges:
        once(record, f"{s}/{name}/ridges", partial(_ridges, few, network, y_test))
    if name == "trntk":
        once(record, f"{s}/side by side", partial(_compared_fits, run, s, few, compared, x_train))
    once(record, f"{s}/{name}/looks", seen)


def _compared_fits(run: Run, s: int, few: Surrogate, compared: Compared, x_train: Tensor) -> dict[str, Any]:
    """Fits of the trace-NTK to labels and to the network's logits, and influence."""
    places = chosen_points(torch.from_numpy(few.y), run.config.compared_points, run.seed + s)
    own = logits_of(run.model(s), x_train[torch.from_numpy(places)]).numpy()
    return side_by_side(few.pair.take(places), few.y[places], own, compared, alpha=run.config.alpha)


def all_looks(run: Run, s: int) -> dict[str, Any]:
    """What the rows of every kernel look like, and how many of the five nearest points each shares with the trace-NTK."""
    record, looks = run.record, {}
    kernels = [k for k in (*run.config.kernels, COSINE) if f"{s}/{k}/looks" in record.metrics]
    missing = [k for k in run.config.kernels if k not in kernels]
    if missing:
        raise UsageError(
            f"leg {s}/looks needs the kernels {', '.join(missing)} of network {s}; expected their legs to be run first"
        )
    tops = {k: record.arrays[f"top5-{s}-{k}"] for k in kernels}
    for k in kernels:
        for name, value in record.metrics[f"{s}/{k}/looks"].items():
            if name != "seconds":
                looks[name if name in attribution.NAMES else f"{name}/{k}"] = value
    if "trntk" in tops:
        looks |= {f"shared/{k}": similarity.shared(tops["trntk"], found) for k, found in tops.items() if k != "trntk"}
    return looks


def legs(run: Run) -> list[Leg]:
    """Per network: tangent kernels, projections, embeddings, and what needs all of them."""
    found = []
    for s in range(run.config.seeds):
        for group, names in GROUPS.items():
            wanted = [k for k in names if k in run.config.kernels]
            if wanted:
                found.append(Leg(f"{s}/{group}", partial(kernels_of, run, s, wanted)))
        found.append(Leg(f"{s}/looks", partial(all_looks, run, s)))
    return found


def _ridges(one: Surrogate, network: np.ndarray, y_test: np.ndarray) -> dict[str, dict[str, float]]:
    """Faithfulness with other ridge strengths: how much the ranking of kernels depends on the ridge."""
    rows = [replace(one, alpha=alpha).row(network, y_test) for alpha in SENSITIVITY]
    return {f"{row['alpha']:g}": {name: row[name] for name in ("tau", "tad", "agreement")} for row in rows}


def _looks(
    config: SurrogateKernels, one: Surrogate, network: np.ndarray, y_test: np.ndarray, x_test: Tensor, x_train: Tensor
) -> dict[str, float]:
    """Properties of the kernel's rows on some training and test points; for the trace-NTK, its attributions too."""
    few, queries, pair = slice(0, 2000), slice(0, 1000), one.pair
    rows = pair.test[queries]
    border = 4 if x_test.shape[2] >= 16 else 1
    nearby = x_train[few].to(x_test.device)
    looks = {
        "row_participation": similarity.participation_ratio(rows.dense()),
        "spread": similarity.within_class_spread(pair.train[few, few].dense(), one.y[few]),
        "border": similarity.border_correlation(rows[:, few].dense(), x_test[queries], nearby, border=border),
    }
    if pair.name == "trntk":
        right = np.flatnonzero(network.argmax(1) == y_test)[: config.inspected]
        looks |= attribution.figures(one.machine, pair.test[right], one.y, y_test[right])
    return looks
