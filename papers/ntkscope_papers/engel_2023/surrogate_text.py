"""The BERT rows of Tables 1 and 2 of the surrogate paper, with a smaller encoder in BERT's place.

BERT-base itself is not available. The stand-in is the real MiniLM encoder (six layers, 22.7 million parameters, trained for
sentence similarity), fine-tuned on CoLA with a two-class readout on the mean of its token vectors. The test part is both
public development files, 1,043 sentences. Every verdict is therefore "stand-in". (The authors tested on a fifth of the public
training file.)

One leg per fine-tuned encoder, estimated 300 seconds on one H200.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ntkscope.core import Claim, Record, Split
from ntkscope.training.schedules import Triangular
from ntkscope_papers.engel_2023.kernel_pairs import COSINE, SIX, TITLES, kernel_pairs, with_cosine
from ntkscope_papers.engel_2023.published_measure import Compared, spread, stochastic_fits
from ntkscope_papers.engel_2023.side_by_side import side_by_side
from ntkscope_papers.engel_2023.surrogate import Surrogate, log_odds_pair
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, not_run, run_legs
from ntkscope_papers.framework.results import once, summary
from ntkscope_papers.shared.images import chosen_points
from ntkscope_papers.shared.networks import logits_of, trained
from ntkscope_papers.shared.sentences import blocks_of, build_encoder, on, sample, sentences

NAME = "surrogate-text"
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
TABLE = Published(
    "surrogate-table2-bert",
    "Table 2",
    {"tau": TAU, "TAD points": TAD},
    "trNTK's tau >= those of all but raw CK - 0.02, at the optimum and by SGD, >= 3 networks",
    WHY,
    seeds=3,
)
MAP = Published(
    "surrogate-fig1-monotone-map",
    "Figure 1",
    "a fitted invertible map realises the network point for point",
    "R² after the map >= R² before it, in every network",
    WHY,
)


@dataclass(frozen=True)
class SurrogateText(Experiment):
    """Surrogate paper, Tables 1 and 2: the BERT rows on CoLA, with the real MiniLM encoder standing in for BERT.

    `encoder`: "minilm", "tiny" or the folder of an encoder; `length`: tokens a sentence is padded or cut to.

    `sketch`: the kind of projection, as in surrogate-kernels.
    """

    name = NAME
    free = ("seeds", "memory")

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
    dim: int = 10240
    sketch: str = "kronecker"
    precision: str = "bf16"
    memory: str = "96GiB"
    alpha: float = 1e-4
    seeds: int = 4
    sgd_seeds: int = 5
    sgd_alpha: float = 1e-2
    compared_points: int = 2000

    smoke = {
        "dataset": "made-up",
        "encoder": "tiny",
        "train_items": 200,
        "test_items": 60,
        "length": 6,
        "epochs": 3,
        "lr": 1e-2,
        "points": 60,
        "dim": 64,
        "precision": "exact",
        "memory": "2GiB",
        "seeds": 1,
        "sgd_seeds": 2,
        "compared_points": 40,
    }

    def measure(self, run: Run) -> None:
        split = sentences(
            self.dataset,
            self.encoder,
            root=run.root,
            train=self.train_items,
            test=self.test_items,
            length=self.length,
        )
        how = {
            "optimizer": "adamw",
            "lr": self.lr,
            "weight_decay": 0.01,
            "batch_size": self.batch,
            "epochs": self.epochs,
            "schedule": Triangular(peak=0.1),
        }

        def one(s: int) -> dict[str, Any]:
            build = partial(build_encoder, self.encoder, run.seed + s)
            key = f"network-{s}"
            model = trained(
                run.record, key, build, split.train, how, device=run.device, seed=run.seed + s, progress=run.progress
            )
            return network_of(self, run.record, s, model, split, run.device, run.seed + s, run.progress)

        run_legs(
            run.record, [Leg(str(s), partial(one, s)) for s in range(self.seeds)], self.legs, progress=run.progress
        )

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return (ROW, TABLE, MAP)

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


MADE_OF = {"trntk": ("side by side",), "ck": (COSINE,)}  # what is measured of a kernel besides its own row


def network_of(
    config: SurrogateText,
    record: Record,
    s: int,
    model: nn.Module,
    split: Split,
    device: torch.device,
    seed: int,
    progress: bool,
) -> dict[str, Any]:
    """Every kernel of one network."""
    network, y_test = logits_of(model, split.test.x, batch=128).numpy(), split.test.y.numpy()
    part, compared = sample(split.train, config.points, seed), Compared(network, y_test)
    y = part.y.numpy()
    lacks = [k for k in config.kernels if any(f"{s}/{row}" not in record.metrics for row in (k, *MADE_OF.get(k, ())))]
    for pair in with_cosine(
        kernel_pairs(
            lacks,
            model,
            on(part.x, device),
            on(split.test.x, device),
            dim=config.dim,
            sketch=config.sketch,
            precision=config.precision if device.type == "cuda" else "exact",
            memory=config.memory,
            seed=seed,
            layers=blocks_of(model),
            progress=progress,
        )
    ):

        def row(one: Surrogate) -> dict[str, Any]:
            record.array(f"log-odds-{s}-{one.pair.name}", log_odds_pair(one.logits, network, y_test))
            fits = stochastic_fits(one.pair, y, compared, config.sgd_alpha, range(config.sgd_seeds))
            return {
                **one.row(network, y_test),
                "stochastic": fits,
                "fixed class": compared.measured(one.logits)["fixed class"],
            }

        def fits(one: Surrogate) -> dict[str, Any]:
            few = chosen_points(part.y, config.compared_points, seed)
            own = logits_of(model, part.take(torch.from_numpy(few)).x, batch=128).numpy()
            return side_by_side(one.pair.take(few), y[few], own, compared, alpha=config.alpha)

        surrogate = Surrogate(pair, y, config.alpha, seed)
        once(record, f"{s}/{pair.name}", partial(row, surrogate))
        if pair.name == "trntk":
            once(record, f"{s}/side by side", partial(fits, surrogate))
    return {"kernels": list(config.kernels)}


def judge(config: SurrogateText, record: Record, difference: str) -> Iterator[Claim]:
    """Means and standard errors over the networks that the record has."""
    seeds = [s for s in range(config.seeds) if all(f"{s}/{k}" in record.metrics for k in config.kernels)]
    if not seeds:
        for published in (ROW, TABLE, MAP):
            yield published.judged(None, None, note=not_run(NAME, ["0"]))
        return
    kernels = [k for k in (*config.kernels, COSINE) if all(f"{s}/{k}" in record.metrics for s in seeds)]
    rows = {k: [record.metrics[f"{s}/{k}"] for s in seeds] for k in kernels}
    taus = {k: summary(one["tau"] for one in found) for k, found in rows.items()}
    tads = {k: summary(one["tad"] for one in found) for k, found in rows.items()}
    sgd = {k: _by_sgd(found, "unsaturated") for k, found in rows.items()}
    missing = [str(s) for s in range(config.seeds) if s not in seeds]
    more = not_run(NAME, missing) if missing else ""
    if "trntk" not in rows:
        for published in (ROW, MAP):
            yield published.judged(None, None, note="the trace-NTK was left out")
    else:
        accuracy = summary(one["network_accuracy"] for one in rows["trntk"])
        measured = {
            "network accuracy %": [round(100 * accuracy["mean"], 2), round(100 * accuracy["sem"], 2)],
            "TAD points": [round(tads["trntk"]["mean"], 3), round(tads["trntk"]["sem"], 3)],
            "tau": [round(taus["trntk"]["mean"], 4), round(taus["trntk"]["sem"], 4)],
            "networks": len(seeds),
            "tau by SGD": sgd["trntk"],
            "tau of class 1 by SGD": _by_sgd(rows["trntk"], "fixed class"),
        }
        holds = taus["trntk"]["mean"] >= 0.6 and abs(tads["trntk"]["mean"]) <= 1.5
        yield ROW.judged(measured, holds, difference=difference, note=more)
        pairs = [[round(one["r2_before"], 4), round(one["r2"], 4)] for one in rows["trntk"]]
        yield MAP.judged(
            {"R² before, after": pairs},
            all(after >= before for before, after in pairs),
            difference=difference,
            note=more,
        )
    table = {
        "tau": {k: [round(v["mean"], 4), round(v["sem"], 4)] for k, v in taus.items()},
        "TAD points": {k: [round(v["mean"], 3), round(v["sem"], 3)] for k, v in tads.items()},
        "tau by SGD": {k: found for k, found in sgd.items() if found},
    }
    whole = set(TAU) <= set(taus)
    means = {k: v["mean"] for k, v in taus.items()}, {k: found[1] for k, found in sgd.items() if found}
    order = whole and all(_first("trntk", one) for one in means)
    gap = round(taus["trntk"]["mean"] - taus["em"]["mean"], 4) if whole else None
    note = "; ".join(text for text in (f"gap of trNTK to Em {gap} (published 0.159)", more) if text)
    yield TABLE.judged(table, order if whole else None, difference=difference, note=note, seeds=len(seeds))


def _first(kernel: str, taus: Mapping[str, float]) -> bool:
    """Whether no kernel but the raw CK is more than 0.02 above it; nothing to compare does not speak against it.

    >>> _first("trntk", {"trntk": 0.8, "em": 0.81, "ck": 0.9}), _first("trntk", {}), _first("trntk", {"em": 0.5})
    (True, True, False)
    """
    own = taus.get(kernel, float("-inf"))
    return all(own >= tau - 0.02 for name, tau in taus.items() if name not in ("ck", kernel))


def _by_sgd(found: list[Any], measure: str) -> list[float] | None:
    """Least, mean and largest τ over networks and seeds of SGD; None where there is none."""
    fits = [one for one in (spread(row["stochastic"], measure, "tau") for row in found if "stochastic" in row) if one]
    if not fits:
        return None
    mean = summary(one["mean"] for one in fits)["mean"]
    return [round(value, 4) for value in (min(f["least"] for f in fits), mean, max(f["largest"] for f in fits))]


def draw(record: Record) -> dict[str, Any]:
    """τ by kernel beside the published one; log-odds of surrogate and network, one panel per network, as in Figure 1."""
    every, count = list(record.config["kernels"]), int(record.config["seeds"])
    seeds = [s for s in range(count) if all(f"{s}/{k}" in record.metrics for k in every)]
    kernels = every if seeds else []
    taus = [summary(record.metrics[f"{s}/{k}"]["tau"] for s in seeds) for k in kernels]
    figure, (axis,) = drawing.canvas(1, 1, width=5.6)
    measured: Any = ([v["mean"] for v in taus], [v["sem"] for v in taus])
    fits = [_by_sgd([record.metrics[f"{s}/{k}"] for s in seeds], "unsaturated") for k in kernels]
    by_sgd: Any = ([fit[1] if fit else None for fit in fits], None)
    series = {
        "MiniLM, at the optimum": measured,
        "MiniLM, by SGD": by_sgd,
        "published": ([TAU[k] for k in kernels], None),
    }
    drawing.compare_bars(axis, [TITLES[k] for k in kernels], series, label="Kendall τ (published: BERT)")
    shown = [s for s in seeds if f"log-odds-{s}-{kernels[0]}" in record.arrays]
    if not shown:
        return {"table2-bert": figure}
    scatter, panels = drawing.canvas(1, len(shown), width=3.4, height=3.2)
    for s, panel in zip(shown, panels):
        odds = record.arrays[f"log-odds-{s}-{kernels[0]}"]
        found = record.metrics[f"{s}/{kernels[0]}"]
        title = f"{TITLES[kernels[0]]}, network {s}: τ = {found['tau']:.3f}, R² = {found['r2']:.3f}"
        drawing.scatter_log_odds(panel, odds[0], odds[1], title)
    return {"table2-bert": figure, "figure1": scatter}
