"""Table 2 of the surrogate paper: six kernels of a network side by side, and what their rows look like.

The authors' code normalises the conjugate kernel, which the text does not say; both are here, "ck" and "ck-cosine". Four
legs per network; estimated seconds on one H200: of the first "exact" 230, "projected" 140, "embedding" 100, of each other
one 130, 60 and 60; training (40 s) is part of the leg that comes first in a folder. "looks" takes none, and needs the arrays
of the others in its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkscope.core import Record, Split, UsageError
from ntkscope.explain import attribute
from ntkscope_papers.engel_2023 import similarity, table2_claims
from ntkscope_papers.engel_2023.kernel_pairs import COSINE, SIX, TITLES, pairs_of
from ntkscope_papers.engel_2023.published_measure import Compared, stochastic_fits
from ntkscope_papers.engel_2023.side_by_side import side_by_side
from ntkscope_papers.engel_2023.surrogate import Surrogate, log_odds_figure, log_odds_pair
from ntkscope_papers.engel_2023.table2_claims import TAD, TAU
from ntkscope_papers.engel_2023.table2_figures import boxes, draw_attributions, draw_nearest, panel
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
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

    name = "surrogate-kernels"
    statements = claims_of(table2_claims)
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

    def measure(self, run: Run) -> None:
        run.record.put(data_fingerprint=run.data[0].fingerprint)
        super().measure(run)

    def prepare(self, run: Run) -> tuple[Split, Callable[[int], nn.Module]]:
        """The images, and network s, trained once; the last one is held."""
        split = load_images(self.dataset, root=run.root, train=self.train_items, test=self.test_items)
        how = residual_recipe(epochs=self.epochs, batch=self.batch, lr=self.lr, augment=self.augment)

        @lru_cache(1)
        def network(s: int) -> nn.Module:
            build = partial(build_network, self.model, split, width=self.width, seed=run.seed + s)
            return trained(run, f"{self.model}-{s}", build, split.train, how, seed=run.seed + s)

        return split, network

    def groups(self) -> Iterator[tuple[int, str]]:
        for s in range(self.seeds):
            yield from ((s, group) for group, names in GROUPS.items() if set(names) & set(self.kernels))

    @leg("{}/{}", over=groups)
    def group(self, run: Run, s: int, group: str) -> dict[str, Any]:
        """Tangent kernels, projections or embeddings of network s."""
        names = [k for k in GROUPS[group] if k in self.kernels]
        self.measure_kernels(run, s, names)
        return {"kernels": names}

    def results(self, s: int, name: str) -> list[str]:
        """What the record has of a kernel once it is done; a leg that was killed computes the others alone."""
        rows = ("", "/common", "/sgd", "/looks", *(("/ridges",) if self.ridges else ()))
        found = [f"{s}/{k}{row}" for k in (name, *((COSINE,) if name == "ck" else ())) for row in rows]
        return [*found, *((f"{s}/side by side",) if name == "trntk" else ())]

    def measure_kernels(self, run: Run, s: int, names: Sequence[str]) -> None:
        """Some kernels of network s, each measured on its own points and on those that all kernels have."""
        split, network = run.data
        model, seed = network(s), run.seed + s
        compared = Compared(logits_of(model, split.test.x).numpy(), split.test.y.numpy())
        common = chosen_points(split.train.y, self.common(s), seed)
        lacking = [k for k in names if any(key not in run.record.metrics for key in self.results(s, k))]
        for points in sorted({self.points(k, s) for k in lacking}):
            index = chosen_points(split.train.y, points, seed)
            part = split.train.take(torch.from_numpy(index))
            wanted = [k for k in lacking if self.points(k, s) == points]
            x, x_test = part.x.to(run.device), split.test.x.to(run.device)
            for pair in pairs_of(self, run, wanted, model, x, x_test, seed):
                whole = Surrogate(pair, part.y.numpy(), self.alpha, seed)
                few = whole.restricted(np.searchsorted(index, common))
                self.measure_kernel(run, s, whole, few, compared, split.train.x[torch.from_numpy(common)])

    def measure_kernel(
        self, run: Run, s: int, whole: Surrogate, few: Surrogate, compared: Compared, x_train: Tensor
    ) -> None:
        """One kernel: its row, the row on common points, other ridges, fits by SGD, what its rows look like."""
        record, name, seed = run.record, whole.pair.name, run.seed + s
        split, model = run.data
        network, y_test = compared.network, compared.y
        labels = torch.from_numpy(few.y)

        def row() -> dict[str, Any]:
            record.array(f"log-odds-{s}-{name}", log_odds_pair(whole.logits, network, y_test))
            return whole.row(network, y_test)

        def seen() -> dict[str, float]:
            nearest = similarity.top(few.pair.test.dense())
            record.array(f"top5-{s}-{name}", nearest)
            record.array(f"nearest-{s}-{name}", panel(split.test.x, x_train, nearest))
            if name == "trntk":
                record.array(f"figure2-{s}", boxes(attribute(few.machine, few.pair.test[:1]).item(0), few.y))
            return self.looks_of(few, compared, split.test.x.to(run.device), x_train)

        def by_sgd() -> dict[str, Any]:
            smaller = few.restricted(chosen_points(labels, self.sgd_points, seed))
            return stochastic_fits(smaller.pair, smaller.y, compared, self.sgd_alpha, range(self.sgd_seeds))

        def fits() -> dict[str, Any]:
            places = chosen_points(labels, self.compared_points, seed)
            own = logits_of(model(s), x_train[torch.from_numpy(places)]).numpy()
            return side_by_side(few.pair.take(places), few.y[places], own, compared, alpha=self.alpha)

        once(record, f"{s}/{name}", row)
        once(record, f"{s}/{name}/common", lambda: few.row(network, y_test))
        once(record, f"{s}/{name}/sgd", by_sgd)
        if self.ridges:
            once(record, f"{s}/{name}/ridges", lambda: few.ridges(network, y_test, "tau", "tad", "agreement"))
        if name == "trntk":
            once(record, f"{s}/side by side", fits)
        once(record, f"{s}/{name}/looks", seen)

    def looks_of(self, one: Surrogate, compared: Compared, x_test: Tensor, x_train: Tensor) -> dict[str, float]:
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
            right = np.flatnonzero(compared.network.argmax(1) == compared.y)[: self.inspected]
            looks |= similarity.attribution_figures(one.machine, pair.test[right], one.y, compared.y[right])
        return looks

    @leg("{}/looks", over=lambda self: range(self.seeds))
    def looks(self, run: Run, s: int) -> dict[str, Any]:
        """What the rows of every kernel look like, and how many of the five nearest points each shares with the trace-NTK."""
        record, looks = run.record, {}
        kernels = [k for k in (*self.kernels, COSINE) if f"{s}/{k}/looks" in record.metrics]
        missing = [k for k in self.kernels if k not in kernels]
        if missing:
            raise UsageError(
                f"leg {s}/looks needs the kernels {', '.join(missing)} of network {s}; expected their legs to be run first"
            )
        tops = {k: record.arrays[f"top5-{s}-{k}"] for k in kernels}
        for k in kernels:
            for name, value in record.metrics[f"{s}/{k}/looks"].items():
                if name != "seconds":
                    looks[name if name in similarity.ATTRIBUTIONS else f"{name}/{k}"] = value
        if "trntk" in tops:
            looks |= {
                f"shared/{k}": similarity.shared(tops["trntk"], found) for k, found in tops.items() if k != "trntk"
            }
        return looks

    @figure
    def tables(self, record: Record) -> dict[str, Figure]:
        """Of a network with most kernels: bars beside the published ones, τ by ridge, log-odds, Figure 2, neighbours."""
        every, metrics, arrays = (*self.kernels, COSINE), record.metrics, record.arrays
        s = max(
            range(self.seeds), key=lambda s: (sum(f"{s}/{k}" in metrics for k in every), f"figure2-{s}" in arrays, -s)
        )
        rows = {k: metrics[f"{s}/{k}"] for k in every if f"{s}/{k}" in metrics}
        drawn, (taus, tads) = drawing.canvas(1, 2, width=5.4)
        for axis, key, published, label in (
            (taus, "tau", TAU, "Kendall τ"),
            (tads, "tad", TAD, "accuracy differential, points"),
        ):
            half = [(row["intervals"][key][1] - row["intervals"][key][0]) / 2 for row in rows.values() if key == "tau"]
            series: dict[str, Any] = {
                "measured": ([row[key] for row in rows.values()], half or None),
                "published": ([published.get("ck" if k == COSINE else k) for k in rows], None),
            }
            drawing.compare_bars(axis, [TITLES[k] for k in rows], series, label=label)
        ridges, (axis,) = drawing.canvas(1, 1, width=6.4)
        for k in rows:
            others = metrics.get(f"{s}/{k}/ridges", {})
            points = {float(ridge): row["tau"] for ridge, row in others.items() if isinstance(row, Mapping)}
            points[self.alpha] = metrics[f"{s}/{k}/common"]["tau"]
            axis.plot(*zip(*sorted(points.items())), marker="o", markersize=4, label=TITLES[k])
        x, y = "ridge strength, kernels divided by their mean diagonal", "Kendall τ, common training points"
        drawing.label(axis, x=x, y=y, log="x")
        if rows:
            axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        titles = {f"{s}-{k}": f"{TITLES[k]}: τ = {row['tau']:.3f}" for k, row in rows.items()}
        found = {"table2": drawn, "ridges": ridges, **log_odds_figure("log-odds", record, titles, columns=3)}
        if f"figure2-{s}" in arrays:
            found["figure2"] = draw_attributions(arrays[f"figure2-{s}"])
        nearest = {k: arrays[f"nearest-{s}-{k}"] for k in rows if f"nearest-{s}-{k}" in arrays}
        return found | ({"nearest": draw_nearest(nearest)} if nearest else {})
