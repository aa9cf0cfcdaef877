"""The BERT rows of Tables 1 and 2 of the surrogate paper, with a smaller encoder in BERT's place.

BERT-base itself is not available. The stand-in is the real MiniLM encoder (six layers, 22.7 million parameters, trained for
sentence similarity), fine-tuned on CoLA with a two-class readout on the mean of its token vectors. The test part is both
public development files, 1,043 sentences. Every verdict is therefore "stand-in". (The authors tested on a fifth of the public
training file.)

One leg per fine-tuned encoder, estimated 300 seconds on one H200.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

from ntkscope.core import Record, Split
from ntkscope.training.schedules import Triangular
from ntkscope_papers.engel_2023.kernel_pairs import COSINE, SIX, TITLES, pairs_of
from ntkscope_papers.engel_2023.published_measure import Compared, spreads, stochastic_fits
from ntkscope_papers.engel_2023.side_by_side import side_by_side
from ntkscope_papers.engel_2023.surrogate import Surrogate, log_odds_figure, log_odds_pair
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, lacking, leg
from ntkscope_papers.framework.results import once, summary
from ntkscope_papers.shared.images import chosen_points
from ntkscope_papers.shared.networks import logits_of, trained
from ntkscope_papers.shared.sentences import blocks_of, build_encoder, on, sample, sentences

TAU = {"trntk": 0.809, "trntk0": 0.5, "proj-trntk": 0.800, "proj-pntk": 0.72, "em": 0.65, "ck": 0.52}
TAD = {"trntk": 0.1, "trntk0": 0.6, "proj-trntk": 0.1, "proj-pntk": 0.5, "em": -0.3, "ck": -0.1}
WHY = "MiniLM with six layers in place of BERT-base"

BERT = {"network accuracy %": [83.4, 0.1], "TAD points": [-0.1, 0.3], "tau": [0.78, 0.02], "networks": 4}
MADE_OF = {"trntk": ("side by side",), "ck": (COSINE,)}  # what is measured of a kernel besides its own row


@dataclass(frozen=True)
class SurrogateText(Experiment):
    """Surrogate paper, Tables 1 and 2: the BERT rows on CoLA, with the real MiniLM encoder standing in for BERT.

    `encoder`: "minilm", "tiny" or the folder of an encoder; `length`: tokens a sentence is padded or cut to.

    `sketch`: the kind of projection, as in surrogate-kernels.
    """

    name = "surrogate-text"
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

    def prepare(self, run: Run) -> Split:
        sizes: dict[str, Any] = {"train": self.train_items, "test": self.test_items, "length": self.length}
        return sentences(self.dataset, self.encoder, root=run.root, **sizes)

    @leg("{}", over=lambda self: range(self.seeds))
    def network(self, run: Run, s: int) -> dict[str, Any]:
        """Every kernel of one network; those that the record has are not computed again."""
        record, split, seed = run.record, run.data, run.seed + s
        how = {
            "optimizer": "adamw",
            "lr": self.lr,
            "weight_decay": 0.01,
            "batch_size": self.batch,
            "epochs": self.epochs,
            "schedule": Triangular(peak=0.1),
        }
        build = partial(build_encoder, self.encoder, seed)
        model = trained(run, f"network-{s}", build, split.train, how, seed=seed)
        compared = Compared(logits_of(model, split.test.x, batch=128).numpy(), split.test.y.numpy())
        part = sample(split.train, self.points, seed)
        y = part.y.numpy()

        def row(one: Surrogate) -> dict[str, Any]:
            record.array(f"log-odds-{s}-{one.pair.name}", log_odds_pair(one.logits, compared.network, compared.y))
            fits = stochastic_fits(one.pair, y, compared, self.sgd_alpha, range(self.sgd_seeds))
            return {
                **one.row(compared.network, compared.y),
                "stochastic": fits,
                "fixed class": compared.measured(one.logits)["fixed class"],
            }

        def fits(one: Surrogate) -> dict[str, Any]:
            few = chosen_points(part.y, self.compared_points, seed)
            own = logits_of(model, part.take(torch.from_numpy(few)).x, batch=128).numpy()
            return side_by_side(one.pair.take(few), y[few], own, compared, alpha=self.alpha)

        wanted = [
            k for k in self.kernels if any(f"{s}/{one}" not in record.metrics for one in (k, *MADE_OF.get(k, ())))
        ]
        x, x_test = (on(one.x, run.device) for one in (part, split.test))
        for pair in pairs_of(self, run, wanted, model, x, x_test, seed, layers=blocks_of(model)):
            surrogate = Surrogate(pair, y, self.alpha, seed)
            once(record, f"{s}/{pair.name}", partial(row, surrogate))
            if pair.name == "trntk":
                once(record, f"{s}/side by side", partial(fits, surrogate))
        return {"kernels": list(self.kernels)}

    def whole(self, record: Record) -> list[int]:
        """The networks of which the record has every kernel."""
        return [s for s in range(self.seeds) if all(f"{s}/{k}" in record.metrics for k in self.kernels)]

    def absent(self, record: Record) -> tuple[str, ...]:
        return tuple(str(s) for s in range(self.seeds) if s not in self.whole(record))

    def trace(self, record: Record) -> list[Mapping[str, Any]]:
        """The trace-NTK's row of every whole network."""
        return [record.metrics[f"{s}/trntk"] for s in self.whole(record) if "trntk" in self.kernels]

    def without(self, record: Record) -> Reading:
        return Reading(None, note="the trace-NTK was left out") if self.whole(record) else lacking("0")

    @claim("surrogate-table1-bert-cola", "Table 1", BERT, stand_in=WHY)
    def row(self, record: Record) -> Reading:
        """tau >= 0.6 and |TAD| <= 1.5 points"""
        rows = self.trace(record)
        if not rows:
            return self.without(record)
        accuracy, tad, tau = (summary(one[key] for one in rows) for key in ("network_accuracy", "tad", "tau"))
        measured = {
            "network accuracy %": [round(100 * accuracy["mean"], 2), round(100 * accuracy["sem"], 2)],
            "TAD points": [round(tad["mean"], 3), round(tad["sem"], 3)],
            "tau": [round(tau["mean"], 4), round(tau["sem"], 4)],
            "networks": len(rows),
            "tau by SGD": by_sgd(rows, "unsaturated"),
            "tau of class 1 by SGD": by_sgd(rows, "fixed class"),
        }
        return Reading(measured, tau["mean"] >= 0.6 and abs(tad["mean"]) <= 1.5, further=self.absent(record))

    @claim("surrogate-table2-bert", "Table 2", {"tau": TAU, "TAD points": TAD}, stand_in=WHY, seeds=3)
    def table(self, record: Record) -> Reading:
        """trNTK's tau >= those of all but raw CK - 0.02, at the optimum and by SGD, >= 3 networks"""
        seeds = self.whole(record)
        if not seeds:
            return lacking("0")
        kernels = [k for k in (*self.kernels, COSINE) if all(f"{s}/{k}" in record.metrics for s in seeds)]
        rows = {k: [record.metrics[f"{s}/{k}"] for s in seeds] for k in kernels}
        tau, tad = ({k: summary(one[key] for one in found) for k, found in rows.items()} for key in ("tau", "tad"))
        sgd = {k: fits for k, found in rows.items() if (fits := by_sgd(found, "unsaturated"))}
        measured = {
            "tau": {k: [round(v["mean"], 4), round(v["sem"], 4)] for k, v in tau.items()},
            "TAD points": {k: [round(v["mean"], 3), round(v["sem"], 3)] for k, v in tad.items()},
            "tau by SGD": sgd,
        }
        if not set(TAU) <= set(tau):
            gap, holds = None, None
        else:
            gap = round(tau["trntk"]["mean"] - tau["em"]["mean"], 4)
            means = {k: v["mean"] for k, v in tau.items()}, {k: fits[1] for k, fits in sgd.items()}
            holds = all(_first("trntk", one) for one in means)
        note = f"gap of trNTK to Em {gap} (published 0.159)"
        return Reading(measured, holds, note, further=self.absent(record), seeds=len(seeds))

    @claim(
        "surrogate-fig1-monotone-map",
        "Figure 1",
        "a fitted invertible map realises the network point for point",
        stand_in=WHY,
    )
    def monotone_map(self, record: Record) -> Reading:
        """R² after the map >= R² before it, in every network"""
        rows = self.trace(record)
        if not rows:
            return self.without(record)
        pairs = [[round(one["r2_before"], 4), round(one["r2"], 4)] for one in rows]
        holds = all(after >= before for before, after in pairs)
        return Reading({"R² before, after": pairs}, holds, further=self.absent(record))

    @figure
    def tables(self, record: Record) -> dict[str, Figure]:
        """τ by kernel beside the published one; log-odds of surrogate and network, one panel per network, as in Figure 1."""
        seeds = self.whole(record)
        kernels = self.kernels if seeds else ()
        rows = {k: [record.metrics[f"{s}/{k}"] for s in seeds] for k in kernels}
        taus = [summary(one["tau"] for one in found) for found in rows.values()]
        fits = [by_sgd(found, "unsaturated") for found in rows.values()]
        series: dict[str, Any] = {
            "MiniLM, at the optimum": ([v["mean"] for v in taus], [v["sem"] for v in taus]),
            "MiniLM, by SGD": ([fit[1] if fit else None for fit in fits], None),
            "published": ([TAU[k] for k in kernels], None),
        }
        drawn, (axis,) = drawing.canvas(1, 1, width=5.6)
        drawing.compare_bars(axis, [TITLES[k] for k in kernels], series, label="Kendall τ (published: BERT)")
        titles = {
            f"{s}-{k}": f"{TITLES[k]}, network {s}: τ = {one['tau']:.3f}, R² = {one['r2']:.3f}"
            for k in kernels[:1]
            for s, one in zip(seeds, rows[k])
        }
        return {"table2-bert": drawn, **log_odds_figure("figure1", record, titles)}


def _first(kernel: str, taus: Mapping[str, float]) -> bool:
    """Whether no kernel but the raw CK is more than 0.02 above it; nothing to compare does not speak against it.

    >>> _first("trntk", {"trntk": 0.8, "em": 0.81, "ck": 0.9}), _first("trntk", {}), _first("trntk", {"em": 0.5})
    (True, True, False)
    """
    own = taus.get(kernel, float("-inf"))
    return all(own >= tau - 0.02 for name, tau in taus.items() if name not in ("ck", kernel))


def by_sgd(found: Sequence[Mapping[str, Any]], measure: str) -> list[float] | None:
    """Least, mean and largest τ over networks and seeds of SGD; None where there is none."""
    fits = spreads((row.get("stochastic") for row in found), measure, "tau")
    if not fits:
        return None
    mean = summary(one["mean"] for one in fits)["mean"]
    return [round(value, 4) for value in (min(f["least"] for f in fits), mean, max(f["largest"] for f in fits))]
