"""Table 1 of the surrogate paper, residual networks on CIFAR-10: trained here, and two pretrained ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ntkscope import models
from ntkscope.core import Claim, Record, Split
from ntkscope.experiments import _drawing as drawing
from ntkscope.experiments._images import build_network, chosen_points, load_images, pretrained_file, residual_recipe
from ntkscope.experiments._kernel_pairs import kernel_pairs
from ntkscope.experiments._network import logits_of, trained
from ntkscope.experiments._published import Published
from ntkscope.experiments._results import averaged, once
from ntkscope.experiments._surrogate import SENSITIVITY, Surrogate, log_odds_pair
from ntkscope.experiments.registry import experiment

# network test accuracy %, TAD points, tau
TABLE = {"resnet18": (93.07, -0.28, 0.776), "resnet34": (93.33, -0.29, 0.786), "mobilenetv2": (93.91, -0.4, 0.700)}
COLUMNS = ("network accuracy %", "TAD points", "tau")
PRETRAINED = ("resnet20", "resnet56")  # weights read from resnet_cifar10/ among the data

ROWS = {
    name: Published(
        f"surrogate-table1-{name}-cifar10", "Table 1", dict(zip(COLUMNS, row)), "tau >= 0.6 and |TAD| <= 1.5 points"
    )
    for name, row in TABLE.items()
}
FLOOR = Published("surrogate-table1-tau-floor", "Section 4, Table 1", {"least tau": 0.700}, "least tau >= 0.6")
SMALL = Published("surrogate-table1-tad-small", "Section 4, Table 1", {"TAD from": -2.2, "to": 0.03}, "-4 <= TAD <= 1")
IDEAL = Published(
    "surrogate-ideal-surrogate", "Eq. 2", "the whole softmax vector is reproduced", "mean total variation, reported"
)


@dataclass(frozen=True)
class SurrogateResnet:
    """`networks`: those of Table 1 are trained here; `pretrained` ones are read from the data folder."""

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
    seeds: int = 1

    @classmethod
    def paper(cls) -> SurrogateResnet:
        return cls()

    @classmethod
    def smoke(cls) -> SurrogateResnet:
        return cls(
            dataset="digits",
            networks=("resnet18", "mobilenetv2"),
            pretrained=(),
            width=0.0625,
            train_items=300,
            test_items=100,
            epochs=5,
            batch=50,
            lr=0.1,
            augment=False,
            points=60,
            precision="exact",
            memory="2GiB",
        )


def run(
    config: SurrogateResnet, record: Record, *, device: torch.device, root: str | None, seed: int, progress: bool
) -> None:
    """Surrogate paper, Table 1: the trace-NTK surrogate of ResNet-18, ResNet-34, MobileNetV2 and of pretrained ResNets."""
    split = load_images(config.dataset, root=root, train=config.train_items, test=config.test_items)
    record.put(data_fingerprint=split.fingerprint)
    how = residual_recipe(epochs=config.epochs, batch=config.batch, lr=config.lr, augment=config.augment)
    runs = [(name, s) for s in range(config.seeds) for name in config.networks]
    total = len(runs) + len(config.pretrained)
    with record.stage("networks", total=total, progress="auto" if progress else False) as stage:
        for at, (name, s) in enumerate(runs):
            build = partial(build_network, name, split, width=config.width, seed=seed + s)
            model = trained(
                record, f"{name}-{s}", build, split.train, how, device=device, seed=seed + s, progress=progress
            )
            _row(config, record, f"{name}/{s}", model, split, device, seed + s, progress)
            stage.advance(max(0, at + 1 - stage.done))
        if config.pretrained:
            theirs = load_images(
                config.dataset, root=root, train=config.train_items, test=config.test_items, normalise="imagenet"
            )
            for at, name in enumerate(config.pretrained, start=len(runs)):
                model = models.load_weights(models.build(name), pretrained_file(name, root)).to(device).eval()
                _row(config, record, f"{name}/0", model, theirs, device, seed, progress)
                stage.advance(max(0, at + 1 - stage.done))


def _row(
    config: SurrogateResnet,
    record: Record,
    key: str,
    model: nn.Module,
    split: Split,
    device: torch.device,
    seed: int,
    progress: bool,
) -> None:
    """The trace-NTK surrogate of one network, at the default ridge and at others."""
    if key in record.metrics:
        return
    index = torch.from_numpy(chosen_points(split.train.y, config.points, seed))
    part, y_test = split.train.take(index), split.test.y.numpy()
    network = logits_of(model, split.test.x).numpy()
    (pair,) = kernel_pairs(
        ["trntk"],
        model,
        part.x.to(device),
        split.test.x.to(device),
        precision=config.precision if device.type == "cuda" else "exact",
        memory=config.memory,
        seed=seed,
        progress=progress,
    )

    def measured() -> dict[str, Any]:
        one = Surrogate(pair, part.y.numpy(), config.alpha, seed)
        record.array(f"log-odds-{key.replace('/', '-')}", log_odds_pair(one.logits, network, y_test))
        others = [Surrogate(pair, part.y.numpy(), alpha, seed).row(network, y_test) for alpha in SENSITIVITY]
        ridges = {f"{row['alpha']:g}": {"tau": row["tau"], "tad": row["tad"]} for row in others}
        return {**one.row(network, y_test), "other ridges": ridges}

    once(record, key, measured)


def judge(config: SurrogateResnet, record: Record, difference: str) -> Iterator[Claim]:
    """The rows of Table 1 and what is said of all of them."""
    many = f"{config.seeds} network(s) per row, {config.points} training points in the kernel"
    rows = {k: averaged(record.metrics[f"{k}/{s}"] for s in range(config.seeds)) for k in config.networks}
    everything = {**rows, **{k: averaged([record.metrics[f"{k}/0"]]) for k in config.pretrained}}
    for name, published in ROWS.items():
        if name not in rows:
            yield published.judged(None, None, note="this network was left out")
            continue
        row = rows[name]
        measured = {
            "network accuracy %": round(100 * row["network_accuracy"], 2),
            "TAD points": round(row["tad"], 3),
            "tau": round(row["tau"], 4),
            "tau, ties discordant": round(row["tau_literal"], 4),
            "tau by ridge": {k: round(v["tau"], 4) for k, v in row["other ridges"].items()},
        }
        holds = row["tau"] >= 0.6 and abs(row["tad"]) <= 1.5
        yield published.judged(measured, holds, difference=difference, note=many)
    tau = {k: round(row["tau"], 4) for k, row in everything.items()}
    tad = {k: round(row["tad"], 3) for k, row in everything.items()}
    distance = {k: round(row["total_variation"], 4) for k, row in everything.items()}
    other = f"pretrained={config.pretrained!r} instead of {PRETRAINED!r}" if config.pretrained != PRETRAINED else ""
    both = "; ".join(text for text in (difference, other) if text)  # these three speak of the pretrained ones too
    least = min(tau.values(), default=0.0)
    yield FLOOR.judged(tau or None, least >= 0.6, difference=both, note=many)
    yield SMALL.judged(tad or None, all(-4 <= value <= 1 for value in tad.values()), difference=both, note=many)
    yield IDEAL.judged(distance or None, None, difference=both, note=many)


def draw(record: Record) -> dict[str, Any]:
    """τ and accuracy differential beside the published ones; log-odds of each surrogate against its network's."""
    names = [*record.config["networks"], *record.config["pretrained"]]
    rows = {k: record.metrics[f"{k}/0"] for k in names}
    figure, axes = drawing.canvas(1, 2, width=4.8)
    for axis, key, column, label in (
        (axes[0], "tau", 2, "Kendall τ"),
        (axes[1], "tad", 1, "accuracy differential, points"),
    ):
        measured: list[float | None] = [rows[k][key] for k in names]
        published = [TABLE[k][column] if k in TABLE else None for k in names]
        drawing.compare_bars(axis, names, {"measured": (measured, None), "published": (published, None)}, label=label)
    scatter, panels = drawing.canvas(1, len(names), width=3.4, height=3.2)
    for axis, k in zip(panels, names):
        odds = record.arrays[f"log-odds-{k}-0"]
        drawing.scatter_log_odds(axis, odds[0], odds[1], f"{k}: τ = {rows[k]['tau']:.3f}")
    return {"table1": figure, "log-odds": scatter}


experiment(
    "surrogate-resnet",
    config=SurrogateResnet,
    published=[*ROWS.values(), FLOOR, SMALL, IDEAL],
    judge=judge,
    draw=draw,
    free=("seeds", "memory", "pretrained"),
)(run)
