"""Table 2 of the surrogate paper: six kernels of one network side by side, and what their rows look like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntkscope.core import Claim, Record, Split
from ntkscope.experiments import _attribution as attribution
from ntkscope.experiments import _drawing as drawing
from ntkscope.experiments import _similarity as similarity
from ntkscope.experiments._images import build_network, chosen_points, load_images, residual_recipe
from ntkscope.experiments._kernel_pairs import SIX, TITLES, kernel_pairs
from ntkscope.experiments._network import logits_of, trained
from ntkscope.experiments._published import Published
from ntkscope.experiments._results import averaged, once
from ntkscope.experiments._surrogate import SENSITIVITY, Surrogate, log_odds_pair
from ntkscope.experiments.registry import experiment

TAU = {"trntk": 0.776, "trntk0": 0.658, "proj-trntk": 0.737, "proj-pntk": 0.407, "em": 0.768, "ck": 0.630}
TAD = {"trntk": -0.30, "trntk0": -0.52, "proj-trntk": -0.20, "proj-pntk": -0.30, "em": -0.32, "ck": -0.20}

PUBLISHED = (
    Published("surrogate-table2-resnet18", "Table 2", {"tau": TAU, "TAD points": TAD}, "all |TAD| <= 1.5 points"),
    Published("surrogate-table2-trntk-best", "Section 4, Table 2", "trNTK has the highest tau", ">= others - 0.02", seeds=3),
    Published("surrogate-normalisation-helps", "Section 4, Tables 2 and 3", {"gain": 0.118}, "gain > 0 on clean data", seeds=5),
    Published("surrogate-projection-close-to-exact", "Section 5, Table 2", {"drop": 0.039}, "|difference| <= 0.05"),
    Published("surrogate-proj-pntk-weakest-clean", "Table 2", {"gap to proj-trNTK": 0.330}, "gap > 0"),
    Published("surrogate-embedding-inconsistent", "Section 4", {"gap to trNTK": 0.008}, "report the gap"),
    Published("surrogate-top5-overlap", "Section 5", "neighbours by proj-trNTK are near trNTK's", ">= 3 of 5, the most"),
    Published("surrogate-attribution-mean-in-iqr", "Figure 2", "always", ">= 0.95 of image, neuron, class triples"),
    Published("surrogate-attribution-not-sparse", "Section 4", "no small set dominates", "top-5 share < 5 %, spread > 0.1"),
    Published("surrogate-attribution-centred-by-class", "Section 4", "a neuron's own class adds most", ">= 90 % of images"),
    Published("surrogate-normalisation-smooths", "Section 3", "normalising spreads kernel mass", "participation rises"),
    Published("surrogate-ck-collapses-class-variance", "Section 5", "CK sees class only", "spread of CK < trNTK"),
    Published("surrogate-embedding-background", "Section 5", "Em follows background", "border correlation Em > trNTK", seeds=3),
)  # fmt: skip
BY_ID = {claim.id: claim for claim in PUBLISHED}


@dataclass(frozen=True)
class SurrogateKernels:
    """`*_points`: how many training points a kernel has; comparisons between kernels use the points they all share.

    `sketch`: the kind of projection. The paper's has dense entries (normal or signs); a factored one of the same dimension has
    the same error (0.0034 of a cosine on this network, both) at a tenth of the time, so it is the default here.
    """

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
    seeds: int = 1
    inspected: int = 200
    ridges: bool = True

    @classmethod
    def paper(cls) -> SurrogateKernels:
        return cls()

    @classmethod
    def smoke(cls) -> SurrogateKernels:
        return cls(
            dataset="digits",
            model="small_cnn",
            train_items=600,
            test_items=200,
            epochs=8,
            batch=50,
            lr=0.1,
            augment=False,
            exact_points=150,
            feature_points=200,
            embedding_points=200,
            dim=256,
            precision="exact",
            memory="2GiB",
            inspected=40,
        )

    def points(self, kernel: str) -> int:
        """How many training points the kernel has."""
        if kernel in ("trntk", "trntk0"):
            return self.exact_points
        return self.embedding_points if kernel == "em" else self.feature_points

    @property
    def common(self) -> int:
        return min(self.points(kernel) for kernel in self.kernels)


def judge(config: SurrogateKernels, record: Record, difference: str) -> Iterator[Claim]:
    """Every claim of Table 2 and section 5 from the record's results."""
    seeds = range(config.seeds)
    own = {k: averaged(record.metrics[f"{s}/{k}"] for s in seeds) for k in config.kernels}
    alike = {k: averaged(record.metrics[f"{s}/{k}/common"] for s in seeds) for k in config.kernels}
    tau = {k: value["tau"] for k, value in alike.items()}
    looks = averaged(record.metrics[f"{s}/looks"] for s in seeds)
    many = f"{config.seeds} network(s), projections: {config.sketch}"
    on = f"{many}; tau compared on the {config.common} training points every kernel has"

    def claim(name: str, measured: Any, holds: bool | None, note: str = on) -> Claim:
        return BY_ID[f"surrogate-{name}"].judged(measured, holds, difference=difference, note=note, seeds=config.seeds)

    table = {
        "tau": {k: round(own[k]["tau"], 4) for k in own},
        "TAD points": {k: round(own[k]["tad"], 3) for k in own},
        "tau, common points": {k: round(tau[k], 4) for k in tau},
        "network accuracy %": round(100 * own[config.kernels[0]]["network_accuracy"], 2),
        "training points": {k: config.points(k) for k in own},
    }
    others = {k: record.metrics.get(f"0/{k}/ridges") for k in config.kernels}
    table["tau by ridge, common points"] = {
        k: {ridge: round(row["tau"], 4) for ridge, row in found.items() if isinstance(row, Mapping)}
        for k, found in others.items()
        if found
    }
    yield claim("table2-resnet18", table, all(abs(v["tad"]) <= 1.5 for v in own.values()), many)
    rivals = [tau[k] for k in tau if k != "trntk"]
    compared = "trntk" in tau and bool(rivals)
    best = compared and tau["trntk"] >= max(rivals) - 0.02
    yield claim("table2-trntk-best", _rounded(tau) if compared else None, best)
    yield _gap(claim, "normalisation-helps", tau, "trntk", "trntk0", lambda gap: gap > 0)
    yield _gap(claim, "projection-close-to-exact", tau, "trntk", "proj-trntk", lambda gap: abs(gap) <= 0.05)
    yield _gap(claim, "proj-pntk-weakest-clean", tau, "proj-trntk", "proj-pntk", lambda gap: gap > 0)
    yield _gap(claim, "embedding-inconsistent", tau, "trntk", "em", lambda gap: None)
    overlap = {k: looks[f"shared/{k}"] for k in config.kernels if f"shared/{k}" in looks}
    best = bool(overlap) and overlap.get("proj-trntk", 0) >= max(3, *overlap.values())
    yield claim("top5-overlap", _rounded(overlap) or None, best)
    yield claim("attribution-mean-in-iqr", looks.get("mean_in_iqr"), looks.get("mean_in_iqr", 0) >= 0.95)
    sparse = {key: round(looks[key], 4) for key in ("top5_share", "participation") if key in looks}
    holds = bool(sparse) and sparse["top5_share"] < 0.05 and sparse["participation"] > 0.1
    yield claim("attribution-not-sparse", sparse or None, holds)
    yield claim("attribution-centred-by-class", looks.get("own_class_most"), looks.get("own_class_most", 0) >= 0.9)
    for name, key, sign in (
        ("normalisation-smooths", "row_participation", ("trntk", "trntk0")),
        ("ck-collapses-class-variance", "spread", ("trntk", "ck")),
        ("embedding-background", "border", ("em", "trntk")),
    ):
        found = {k: looks[f"{key}/{k}"] for k in config.kernels if f"{key}/{k}" in looks}
        both = all(k in found for k in sign)
        yield claim(name, _rounded(found) if both else None, both and found[sign[0]] > found[sign[1]])


def draw(record: Record) -> dict[str, Any]:
    """τ and accuracy differential beside the published ones; log-odds of each surrogate against the network's."""
    kernels = list(record.config["kernels"])
    first = {k: record.metrics[f"0/{k}"] for k in kernels}
    figure, axes = drawing.canvas(1, 2, width=5.4)
    names = [TITLES[k] for k in kernels]
    errors = [_half_width(first[k], "tau") for k in kernels]
    measured: list[float | None] = [first[k]["tau"] for k in kernels]
    drawing.compare_bars(
        axes[0],
        names,
        {"measured": (measured, errors), "published": ([TAU[k] for k in kernels], None)},
        label="Kendall τ",
    )
    tads: list[float | None] = [first[k]["tad"] for k in kernels]
    drawing.compare_bars(
        axes[1],
        names,
        {"measured": (tads, None), "published": ([TAD[k] for k in kernels], None)},
        label="accuracy differential, points",
    )
    ridges, axis = drawing.canvas(1, 1, width=6.4)
    for k in kernels:
        others = record.metrics.get(f"0/{k}/ridges", {})
        points = {float(ridge): row["tau"] for ridge, row in others.items() if isinstance(row, Mapping)}
        points[record.config["alpha"]] = record.metrics[f"0/{k}/common"]["tau"]
        axis[0].plot(*zip(*sorted(points.items())), marker="o", markersize=4, label=TITLES[k])
    axis[0].set_xscale("log")
    axis[0].set_xlabel("ridge strength, kernels divided by their mean diagonal", fontsize=9)
    axis[0].set_ylabel("Kendall τ, common training points", fontsize=9)
    axis[0].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    scatter, panels = drawing.canvas(2, 3, width=3.6, height=3.2)
    for axis in panels[len(kernels) :]:
        axis.set_axis_off()
    for axis, k in zip(panels, kernels):
        odds = record.arrays[f"log-odds-0-{k}"]
        drawing.scatter_log_odds(axis, odds[0], odds[1], f"{TITLES[k]}: τ = {first[k]['tau']:.3f}")
    return {"table2": figure, "ridges": ridges, "log-odds": scatter}


@experiment(
    "surrogate-kernels",
    config=SurrogateKernels,
    published=PUBLISHED,
    judge=judge,
    draw=draw,
    free=("seeds", "memory", "ridges"),
)
def run(
    config: SurrogateKernels, record: Record, *, device: torch.device, root: str | None, seed: int, progress: bool
) -> None:
    """Surrogate paper, Table 2: six kernels side by side on ResNet-18 and CIFAR-10, their neighbours and attributions."""
    split = load_images(config.dataset, root=root, train=config.train_items, test=config.test_items)
    record.put(data_fingerprint=split.fingerprint)
    how = residual_recipe(epochs=config.epochs, batch=config.batch, lr=config.lr, augment=config.augment)
    with record.stage("networks", total=config.seeds, progress="auto" if progress else False) as stage:
        for s in range(config.seeds):
            number = seed + s

            def build(number: int = number) -> nn.Module:
                return build_network(config.model, split, width=config.width, seed=number)

            key = f"{config.model}-{s}"
            model = trained(record, key, build, split.train, how, device=device, seed=number, progress=progress)
            _network(config, record, s, model, split, device, number, progress)
            stage.advance(max(0, s + 1 - stage.done))


def _network(
    config: SurrogateKernels,
    record: Record,
    s: int,
    model: nn.Module,
    split: Split,
    device: torch.device,
    seed: int,
    progress: bool,
) -> None:
    """All kernels of one network."""
    network, y_test = logits_of(model, split.test.x).numpy(), split.test.y.numpy()
    x_test = split.test.x.to(device)
    common = chosen_points(split.train.y, config.common, seed)
    looks: dict[str, float] = {}
    tops: dict[str, np.ndarray] = {}
    for points in sorted({config.points(k) for k in config.kernels}):
        names = [k for k in config.kernels if config.points(k) == points]
        if all(f"{s}/{k}/looks" in record.metrics for k in names):
            continue
        index = chosen_points(split.train.y, points, seed)
        part = split.train.take(torch.from_numpy(index))
        y, places = part.y.numpy(), np.searchsorted(index, common)
        for pair in kernel_pairs(
            names,
            model,
            part.x.to(device),
            x_test,
            dim=config.dim,
            sketch=config.sketch,
            precision=config.precision if device.type == "cuda" else "exact",
            memory=config.memory,
            seed=seed,
            progress=progress,
        ):
            whole = Surrogate(pair, y, config.alpha, seed)
            few = whole.restricted(places)

            def row(one: Surrogate = whole) -> dict[str, Any]:
                odds = log_odds_pair(one.logits, network, y_test)
                record.array(f"log-odds-{s}-{one.pair.name}", odds)
                return one.row(network, y_test)

            def seen(one: Surrogate = few) -> dict[str, float]:
                record.array(f"top5-{s}-{one.pair.name}", similarity.top(one.pair.test.dense()))
                return _looks(config, one, network, y_test, x_test, split.train.x[torch.from_numpy(common)])

            once(record, f"{s}/{pair.name}", row)
            once(record, f"{s}/{pair.name}/common", partial(few.row, network, y_test))
            if config.ridges:
                once(record, f"{s}/{pair.name}/ridges", partial(_ridges, few, network, y_test))
            once(record, f"{s}/{pair.name}/looks", seen)
    for k in config.kernels:
        tops[k] = record.arrays[f"top5-{s}-{k}"]
        for name, value in record.metrics[f"{s}/{k}/looks"].items():
            if name != "seconds":
                looks[name if name in attribution.NAMES else f"{name}/{k}"] = value
    if "trntk" in tops:
        looks |= {f"shared/{k}": similarity.shared(tops["trntk"], found) for k, found in tops.items() if k != "trntk"}
    once(record, f"{s}/looks", lambda: looks)


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


def _gap(claim: Any, name: str, tau: Mapping[str, float], one: str, other: str, check: Any) -> Claim:
    if not (one in tau and other in tau):
        return claim(name, None, None, "a kernel of the two was left out")
    gap = tau[one] - tau[other]
    return claim(name, {one: round(tau[one], 4), other: round(tau[other], 4), "gap": round(gap, 4)}, check(gap))


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in values.items()}


def _half_width(result: Mapping[str, Any], name: str) -> float:
    low, high = result["intervals"][name]
    return float(high - low) / 2
