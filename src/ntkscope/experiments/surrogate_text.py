"""The BERT rows of Tables 1 and 2 of the surrogate paper, with a smaller encoder in BERT's place.

BERT-base itself is not available. The stand-in is the real MiniLM encoder (six layers, 22.7 million parameters, trained for
sentence similarity), fine-tuned on CoLA with a two-class readout on the mean of its token vectors. The test part is both
public development files, 1,043 sentences. Every verdict is therefore "stand-in".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ntkscope.core import Claim, Record, Split
from ntkscope.experiments import _drawing as drawing
from ntkscope.experiments._kernel_pairs import SIX, TITLES, kernel_pairs
from ntkscope.experiments._network import logits_of, trained
from ntkscope.experiments._published import Published
from ntkscope.experiments._results import once, summary
from ntkscope.experiments._sentences import blocks_of, build_encoder, on, sample, sentences
from ntkscope.experiments._surrogate import Surrogate, log_odds_pair
from ntkscope.experiments.registry import experiment
from ntkscope.training.schedules import Triangular

TAU = {"trntk": 0.809, "trntk0": 0.5, "proj-trntk": 0.800, "proj-pntk": 0.72, "em": 0.65, "ck": 0.52}
TAD = {"trntk": 0.1, "trntk0": 0.6, "proj-trntk": 0.1, "proj-pntk": 0.5, "em": -0.3, "ck": -0.1}
WHY = "MiniLM with six layers in place of BERT-base"

ROW = Published(
    "surrogate-table1-bert-cola",
    "Table 1",
    {"network accuracy %": [83.4, 0.1], "TAD points": [-0.1, 0.3], "tau": [0.78, 0.02], "networks": 4},
    "tau >= 0.6 and |TAD| <= 1.5 points",
    WHY,
)
TABLE = Published("surrogate-table2-bert", "Table 2", {"tau": TAU, "TAD points": TAD}, "reported", WHY)
MAP = Published(
    "surrogate-fig1-monotone-map",
    "Figure 1",
    "a fitted invertible map realises the network point for point",
    "R² after the map >= R² before it, in every network",
    WHY,
)


@dataclass(frozen=True)
class SurrogateText:
    """`encoder`: "minilm", "tiny" or the folder of an encoder; `length`: tokens a sentence is padded or cut to."""

    dataset: str = "cola"
    encoder: str = "minilm"
    train_items: int | None = None
    test_items: int | None = None
    length: int = 40
    epochs: int = 4
    batch: int = 32
    lr: float = 1e-4
    kernels: tuple[str, ...] = SIX
    points: int = 8551
    dim: int = 2048
    precision: str = "bf16"
    memory: str = "96GiB"
    alpha: float = 1e-4
    seeds: int = 4

    @classmethod
    def paper(cls) -> SurrogateText:
        return cls()

    @classmethod
    def smoke(cls) -> SurrogateText:
        return cls(
            dataset="made-up",
            encoder="tiny",
            train_items=200,
            test_items=60,
            length=6,
            epochs=3,
            lr=1e-2,
            points=60,
            dim=64,
            precision="exact",
            memory="2GiB",
            seeds=1,
        )


def run(
    config: SurrogateText, record: Record, *, device: torch.device, root: str | None, seed: int, progress: bool
) -> None:
    """Surrogate paper, Tables 1 and 2: the BERT rows on CoLA, with the real MiniLM encoder standing in for BERT."""
    split = sentences(
        config.dataset,
        config.encoder,
        root=root,
        train=config.train_items,
        test=config.test_items,
        length=config.length,
    )
    how = {
        "optimizer": "adamw",
        "lr": config.lr,
        "weight_decay": 0.01,
        "batch_size": config.batch,
        "epochs": config.epochs,
        "schedule": Triangular(peak=0.1),
    }
    with record.stage("networks", total=config.seeds, progress="auto" if progress else False) as stage:
        for s in range(config.seeds):
            build = partial(build_encoder, config.encoder, seed + s)
            key = f"network-{s}"
            model = trained(record, key, build, split.train, how, device=device, seed=seed + s, progress=progress)
            _network(config, record, s, model, split, device, seed + s, progress)
            stage.advance(max(0, s + 1 - stage.done))


def _network(
    config: SurrogateText,
    record: Record,
    s: int,
    model: nn.Module,
    split: Split,
    device: torch.device,
    seed: int,
    progress: bool,
) -> None:
    """Every kernel of one network."""
    network, y_test = logits_of(model, split.test.x, batch=128).numpy(), split.test.y.numpy()
    part = sample(split.train, config.points, seed)
    for pair in kernel_pairs(
        [k for k in config.kernels if f"{s}/{k}" not in record.metrics],
        model,
        on(part.x, device),
        on(split.test.x, device),
        dim=config.dim,
        precision=config.precision if device.type == "cuda" else "exact",
        memory=config.memory,
        seed=seed,
        layers=blocks_of(model),
        progress=progress,
    ):

        def row(one: Surrogate) -> dict[str, Any]:
            odds = log_odds_pair(one.logits, network, y_test)
            record.array(f"log-odds-{s}-{one.pair.name}", odds)
            return one.row(network, y_test)

        once(record, f"{s}/{pair.name}", partial(row, Surrogate(pair, part.y.numpy(), config.alpha, seed)))


def judge(config: SurrogateText, record: Record, difference: str) -> Iterator[Claim]:
    """Means and standard errors over networks."""
    rows = {k: [record.metrics[f"{s}/{k}"] for s in range(config.seeds)] for k in config.kernels}
    taus = {k: summary(one["tau"] for one in found) for k, found in rows.items()}
    tads = {k: summary(one["tad"] for one in found) for k, found in rows.items()}
    if "trntk" not in rows:
        for published in (ROW, MAP):
            yield published.judged(None, None, note="the trace-NTK was left out")
    else:
        accuracy = summary(one["network_accuracy"] for one in rows["trntk"])
        measured = {
            "network accuracy %": [round(100 * accuracy["mean"], 2), round(100 * accuracy["sem"], 2)],
            "TAD points": [round(tads["trntk"]["mean"], 3), round(tads["trntk"]["sem"], 3)],
            "tau": [round(taus["trntk"]["mean"], 4), round(taus["trntk"]["sem"], 4)],
            "networks": config.seeds,
        }
        holds = taus["trntk"]["mean"] >= 0.6 and abs(tads["trntk"]["mean"]) <= 1.5
        yield ROW.judged(measured, holds, difference=difference)
        pairs = [[round(one["r2_before"], 4), round(one["r2"], 4)] for one in rows["trntk"]]
        yield MAP.judged(
            {"R² before, after": pairs}, all(after >= before for before, after in pairs), difference=difference
        )
    table = {
        "tau": {k: [round(v["mean"], 4), round(v["sem"], 4)] for k, v in taus.items()},
        "TAD points": {k: [round(v["mean"], 3), round(v["sem"], 3)] for k, v in tads.items()},
    }
    yield TABLE.judged(table, None, difference=difference)


def draw(record: Record) -> dict[str, Any]:
    """τ by kernel beside the published one; log-odds of surrogate and network, one panel per network, as in Figure 1."""
    kernels, seeds = list(record.config["kernels"]), int(record.config["seeds"])
    taus = [summary(record.metrics[f"{s}/{k}"]["tau"] for s in range(seeds)) for k in kernels]
    figure, (axis,) = drawing.canvas(1, 1, width=5.6)
    measured: Any = ([v["mean"] for v in taus], [v["sem"] for v in taus])
    series = {"measured, MiniLM": measured, "published, BERT": ([TAU[k] for k in kernels], None)}
    drawing.compare_bars(axis, [TITLES[k] for k in kernels], series, label="Kendall τ")
    scatter, panels = drawing.canvas(1, seeds, width=3.4, height=3.2)
    for s, panel in enumerate(panels):
        odds = record.arrays[f"log-odds-{s}-{kernels[0]}"]
        found = record.metrics[f"{s}/{kernels[0]}"]
        title = f"{TITLES[kernels[0]]}, network {s}: τ = {found['tau']:.3f}, R² = {found['r2']:.3f}"
        drawing.scatter_log_odds(panel, odds[0], odds[1], title)
    return {"table2-bert": figure, "figure1": scatter}


experiment(
    "surrogate-text",
    config=SurrogateText,
    published=[ROW, TABLE, MAP],
    judge=judge,
    draw=draw,
    free=("seeds", "memory"),
)(run)
