"""Table 1 of the surrogate paper, residual networks on CIFAR-10: trained here, and two pretrained ones.

One leg per network; estimated seconds on one H200 with training: resnet18 150, resnet34 220, mobilenetv2 250, pretrained
ones 60.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ntkscope import models
from ntkscope.core import Claim, Record, Split
from ntkscope_papers.engel_2023.kernel_pairs import kernel_pairs
from ntkscope_papers.engel_2023.published_measure import Compared, spread, stochastic_fits
from ntkscope_papers.engel_2023.side_by_side import side_by_side
from ntkscope_papers.engel_2023.surrogate import SENSITIVITY, Surrogate, log_odds_pair
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework import experiment as framework
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment
from ntkscope_papers.framework.legs import Leg, not_run, run_legs
from ntkscope_papers.framework.results import averaged, summary
from ntkscope_papers.shared.images import build_network, chosen_points, load_images, pretrained_file, residual_recipe
from ntkscope_papers.shared.networks import logits_of, trained

NAME = "surrogate-resnet"
# network test accuracy %, TAD points, tau
TABLE = {"resnet18": (93.07, -0.28, 0.776), "resnet34": (93.33, -0.29, 0.786), "mobilenetv2": (93.91, -0.4, 0.700)}
COLUMNS = ("network accuracy %", "TAD points", "tau")
PRETRAINED = ("resnet20", "resnet56")  # weights read from resnet_cifar10/ among the data

ROWS = {
    name: Published(
        f"surrogate-table1-{name}-cifar10",
        "Table 1",
        dict(zip(COLUMNS, row)),
        "tau >= 0.6, at the optimum and by SGD, and |TAD| <= 1.5 points",
    )
    for name, row in TABLE.items()
}
FLOOR = Published(
    "surrogate-table1-tau-floor",
    "Section 4, Table 1",
    {"least tau": 0.700},
    "least tau >= 0.6, at the optimum and by SGD",
)
SMALL = Published("surrogate-table1-tad-small", "Section 4, Table 1", {"TAD from": -2.2, "to": 0.03}, "-4 <= TAD <= 1")
IDEAL = Published(
    "surrogate-ideal-surrogate",
    "Eq. 2",
    "the whole softmax vector is reproduced",
    "mean total variation <= 0.1 on every network",
)


@dataclass(frozen=True)
class SurrogateResnet(Experiment):
    """Surrogate paper, Table 1: the trace-NTK surrogate of ResNet-18, ResNet-34, MobileNetV2 and of pretrained ResNets.

    `networks`: those of Table 1 are trained here; `pretrained` ones are read from the data folder.
    """

    name = NAME
    free = ("seeds", "memory", "pretrained")

    dataset: str = "cifar10"
    networks: tuple[str, ...] = ("resnet18", "resnet34", "mobilenetv2")
    pretrained: tuple[str, ...] = PRETRAINED
    width: float = 1.0
    train_items: int | None = None
    test_items: int | None = None
    epochs: int = 24
    batch: int = 512
    lr: float = 0.4
    augment: bool = True
    points: int = 5000
    precision: str = "bf16"
    memory: str = "96GiB"
    alpha: float = 1e-4
    seeds: int = 3
    sgd_seeds: int = 5
    sgd_alpha: float = 1e-4
    compared_points: int = 2000

    smoke = {
        "dataset": "digits",
        "networks": ("resnet18", "mobilenetv2"),
        "pretrained": (),
        "width": 0.0625,
        "train_items": 300,
        "test_items": 100,
        "epochs": 5,
        "batch": 50,
        "lr": 0.1,
        "augment": False,
        "points": 60,
        "precision": "exact",
        "memory": "2GiB",
        "seeds": 1,
        "sgd_seeds": 2,
        "compared_points": 40,
    }

    def measure(self, run: framework.Run) -> None:
        run_legs(
            run.record,
            legs(Run(self, run.record, run.root, run.seed, run.device, run.progress)),
            self.legs,
            progress=run.progress,
        )

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return (*ROWS.values(), FLOOR, SMALL, IDEAL)

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


@dataclass(frozen=True, eq=False)
class Run:
    """What a leg needs besides its own name."""

    config: SurrogateResnet
    record: Record
    root: str | None
    seed: int
    device: torch.device
    progress: bool
    splits: dict[bool, Split] = field(default_factory=dict)  # by whether they are normalised for pretrained weights

    def split(self, pretrained: bool) -> Split:
        """The images, read once."""
        config = self.config
        if pretrained not in self.splits:
            options: dict[str, Any] = {"normalise": "imagenet"} if pretrained else {}
            self.splits[pretrained] = load_images(
                config.dataset, root=self.root, train=config.train_items, test=config.test_items, **options
            )
        return self.splits[pretrained]


def ready(run: Run, name: str, s: int, split: Split) -> nn.Module:
    """The network: read from the data folder, or trained once and read from the record's folder."""
    config = run.config
    if name in config.pretrained:
        return models.load_weights(models.build(name), pretrained_file(name, run.root)).to(run.device).eval()
    how = residual_recipe(epochs=config.epochs, batch=config.batch, lr=config.lr, augment=config.augment)
    build = partial(build_network, name, split, width=config.width, seed=run.seed + s)
    options: dict[str, Any] = {"device": run.device, "seed": run.seed + s, "progress": run.progress}
    return trained(run.record, f"{name}-{s}", build, split.train, how, **options)


def measured_row(run: Run, name: str, s: int) -> dict[str, Any]:
    """The trace-NTK surrogate of one network: at the default ridge and at others, by SGD, and the fit to its logits."""
    config, seed = run.config, run.seed + s
    split = run.split(name in config.pretrained)
    model = ready(run, name, s, split)
    part = split.train.take(torch.from_numpy(chosen_points(split.train.y, config.points, seed)))
    compared = Compared(logits_of(model, split.test.x).numpy(), split.test.y.numpy())
    (pair,) = kernel_pairs(
        ["trntk"],
        model,
        part.x.to(run.device),
        split.test.x.to(run.device),
        precision=config.precision if run.device.type == "cuda" else "exact",
        memory=config.memory,
        seed=seed,
        progress=run.progress,
    )
    y, network, y_test = part.y.numpy(), compared.network, compared.y
    one = Surrogate(pair, y, config.alpha, seed)
    run.record.array(f"log-odds-{name}-{s}", log_odds_pair(one.logits, network, y_test))
    others = [Surrogate(pair, y, alpha, seed).row(network, y_test) for alpha in SENSITIVITY]
    few = chosen_points(part.y, config.compared_points, seed)
    own = logits_of(model, part.x[torch.from_numpy(few)]).numpy()
    return {
        **one.row(network, y_test),
        "other ridges": {f"{row['alpha']:g}": {"tau": row["tau"], "tad": row["tad"]} for row in others},
        "stochastic": stochastic_fits(pair, y, compared, config.sgd_alpha, range(config.sgd_seeds)),
        "side by side": side_by_side(pair.take(few), y[few], own, compared, alpha=config.alpha),
    }


def legs(run: Run) -> list[Leg]:
    config = run.config
    wanted = [(name, s) for s in range(config.seeds) for name in config.networks]
    wanted += [(name, 0) for name in config.pretrained]
    return [Leg(f"{name}/{s}", partial(measured_row, run, name, s)) for name, s in wanted]


def found_rows(record: Record, names: Sequence[str], seeds: int) -> dict[str, list[Mapping[str, Any]]]:
    """The results of every network that the record has, by name; those without any are left out."""
    rows = {k: [record.metrics[f"{k}/{s}"] for s in range(seeds) if f"{k}/{s}" in record.metrics] for k in names}
    return {k: found for k, found in rows.items() if found}


def judge(config: SurrogateResnet, record: Record, difference: str) -> Iterator[Claim]:
    """The rows of Table 1 and what is said of all of them."""
    several = found_rows(record, config.networks, config.seeds)
    everything = {**several, **found_rows(record, config.pretrained, 1)}
    for name, published in ROWS.items():
        if name not in several:
            left_out = name not in config.networks
            yield published.judged(
                None, None, note="this network was left out" if left_out else not_run(NAME, [f"{name}/0"])
            )
            continue
        found = several[name]
        row = averaged(_plain(found))
        fits = by_sgd(found)
        tau = summary(one["mean"] for one in fits)["mean"] if fits else row["tau"]
        measured: dict[str, Any] = {
            "network accuracy %": round(100 * row["network_accuracy"], 2),
            "TAD points": round(row["tad"], 3),
            "tau": round(row["tau"], 4),
            "tau, ties discordant": round(row["tau_literal"], 4),
            "tau by ridge": {k: round(v["tau"], 4) for k, v in row["other ridges"].items()},
            "tau by SGD, over seeds": [[round(one[k], 4) for k in ("least", "mean", "largest")] for one in fits],
        }
        if "side by side" in row:
            measured["fit to labels, to logits"] = [
                round(row["side by side"][k]["tau"], 4) for k in ("labels", "logits")
            ]
        holds = row["tau"] >= 0.6 and tau >= 0.6 and abs(row["tad"]) <= 1.5
        many = f"{len(found)} network(s), {config.points} training points in the kernel"
        yield published.judged(measured, holds, difference=difference, note=many)
    yield from _of_all(config, everything, difference)


def by_sgd(found: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Mean, least and largest τ as published over the seeds of SGD, of each network that has them."""
    spreads = (spread(each["stochastic"], "unsaturated", "tau") for each in found if "stochastic" in each)
    return [one for one in spreads if one]


def _plain(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Without the fits by SGD, some of which may have no τ."""
    return [{key: value for key, value in one.items() if key != "stochastic"} for one in found]


def _of_all(
    config: SurrogateResnet, found: Mapping[str, Sequence[Mapping[str, Any]]], difference: str
) -> Iterator[Claim]:
    """What is said of every row; these speak of the pretrained networks too."""
    rows = {k: averaged(_plain(one)) for k, one in found.items()}
    lacks = [f"{k}/0" for k in (*config.networks, *config.pretrained) if k not in rows]
    if lacks:
        for published in (FLOOR, SMALL, IDEAL):
            yield published.judged(None, None, note=not_run(NAME, lacks))
        return
    tau = {k: round(row["tau"], 4) for k, row in rows.items()}
    fits = {k: by_sgd(one) for k, one in found.items()}
    means = {k: summary(fit["mean"] for fit in one)["mean"] for k, one in fits.items() if one}
    least = min([*(row["tau"] for row in rows.values()), *means.values()], default=0.0)
    sgd = {k: round(mean, 4) for k, mean in means.items()}
    tad = {k: round(row["tad"], 3) for k, row in rows.items()}
    distance = {k: round(row["total_variation"], 4) for k, row in rows.items()}
    other = f"pretrained={config.pretrained!r} instead of {PRETRAINED!r}" if config.pretrained != PRETRAINED else ""
    both = "; ".join(text for text in (difference, other) if text)
    many = f"{config.points} training points in the kernel; the two-class rows are in surrogate-small"
    yield FLOOR.judged({"at the optimum": tau, "by SGD": sgd}, least >= 0.6, difference=both, note=many)
    yield SMALL.judged(tad or None, all(-4 <= value <= 1 for value in tad.values()), difference=both, note=many)
    yield IDEAL.judged(distance or None, all(value <= 0.1 for value in distance.values()), difference=both, note=many)


def draw(record: Record) -> dict[str, Any]:
    """Of the first network of each kind: τ and accuracy differential beside the published ones, log-odds against the network's.

    Bars: standard deviations over the seeds of SGD."""
    every = [*record.config["networks"], *record.config["pretrained"]]
    rows = {k: record.metrics[f"{k}/0"] for k in every if f"{k}/0" in record.metrics}
    names = list(rows)
    figure, axes = drawing.canvas(1, 2, width=4.8)
    fits = [_taus_by_sgd(rows[k]) for k in names]
    for axis, key, column, label in (
        (axes[0], "tau", 2, "Kendall τ"),
        (axes[1], "tad", 1, "accuracy differential, points"),
    ):
        series: dict[str, Any] = {"at the optimum": ([rows[k][key] for k in names], None)}
        if key == "tau":
            means = [float(np.mean(one)) if one else None for one in fits]
            series["by SGD"] = (means, [float(np.std(one)) if one else 0.0 for one in fits])
        series["published"] = ([TABLE[k][column] if k in TABLE else None for k in names], None)
        drawing.compare_bars(axis, names, series, label=label)
    shown = [k for k in names if f"log-odds-{k}-0" in record.arrays]
    if not shown:
        return {"table1": figure}
    scatter, panels = drawing.canvas(1, len(shown), width=3.4, height=3.2)
    for axis, k in zip(panels, shown):
        odds = record.arrays[f"log-odds-{k}-0"]
        drawing.scatter_log_odds(axis, odds[0], odds[1], f"{k}: τ = {rows[k]['tau']:.3f}")
    return {"table1": figure, "log-odds": scatter}


def _taus_by_sgd(row: Mapping[str, Any]) -> list[float]:
    """τ as published of one network for every seed of SGD that has one."""
    seeds = row["stochastic"]["seeds"].values() if "stochastic" in row else ()
    return [tau for one in seeds if np.isfinite(tau := float(one["unsaturated"]["tau"]))]
