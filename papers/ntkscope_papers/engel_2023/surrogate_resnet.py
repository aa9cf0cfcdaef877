"""Table 1 of the surrogate paper, residual networks on CIFAR-10: trained here, and two pretrained ones.

One leg per network; estimated seconds on one H200 with training: resnet18 150, resnet34 220, mobilenetv2 250, pretrained
ones 60. The legs `phan/…` train as the public code behind the paper's weights does, `PHAN`: resnet18 380, resnet34 640.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from ntkscope.core import Record, Split
from ntkscope.training import Cosine, CropFlip, CrossEntropy
from ntkscope_papers.engel_2023.kernel_pairs import kernel_pairs
from ntkscope_papers.engel_2023.published_measure import Compared, spreads, stochastic_fits
from ntkscope_papers.engel_2023.side_by_side import side_by_side
from ntkscope_papers.engel_2023.surrogate import Surrogate, log_odds_figure, log_odds_pair
from ntkscope_papers.engel_2023.table2_claims import TRAINED_HERE
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, lacking, leg
from ntkscope_papers.framework.results import averaged, summary
from ntkscope_papers.shared.images import build_network, chosen_points, load_images, pretrained_network, residual_recipe
from ntkscope_papers.shared.networks import logits_of, trained

# network test accuracy %, TAD points, tau
TABLE = {"resnet18": (93.07, -0.28, 0.776), "resnet34": (93.33, -0.29, 0.786), "mobilenetv2": (93.91, -0.4, 0.700)}
COLUMNS = ("network accuracy %", "TAD points", "tau")
# github.com/huyvnphan/PyTorch_CIFAR10, train.py, module.py, data.py; it keeps the epoch best on the test set, here the last
PHAN: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.01,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 0.01,
    "loss": CrossEntropy(),
    "batch_size": 256,
    "drop_last": True,
    "schedule": Cosine(warmup=0.3),
    "augment": CropFlip(padding=4, fill="zero"),
    "epochs": 100,
    "channels_last": True,
}
PHAN_POINTS = 10_000  # training points in the kernels of those networks
PRETRAINED = ("resnet20", "resnet56")  # weights read from resnet_cifar10/ among the data


def row(name: str, config: SurrogateResnet, record: Record) -> Reading:
    found = config.rows(record, config.networks).get(name)
    if not found:
        return lacking(f"{name}/0") if name in config.networks else Reading(None, note="this network was left out")
    row, fits = mean_row(found), by_sgd(found)
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
        measured["fit to labels, to logits"] = [round(row["side by side"][k]["tau"], 4) for k in ("labels", "logits")]
    holds = row["tau"] >= 0.6 and tau >= 0.6 and abs(row["tad"]) <= 1.5
    return Reading(measured, holds, f"{len(found)} network(s), {config.fitted(record, [name])}")


@dataclass(frozen=True)
class SurrogateResnet(Experiment):
    """Surrogate paper, Table 1: the trace-NTK surrogate of ResNet-18, ResNet-34, MobileNetV2 and of pretrained ResNets.

    `networks`: those of Table 1 are trained here; `pretrained` ones are read from the data folder.
    """

    name = "surrogate-resnet"
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

    def prepare(self, run: Run) -> Callable[[bool], Split]:
        """The images, by whether they are normalised for pretrained weights; each read once."""
        images = partial(load_images, self.dataset, root=run.root, train=self.train_items, test=self.test_items)
        return cache(lambda pretrained: images(normalise="imagenet") if pretrained else images())

    def network(self, run: Run, name: str, s: int, split: Split) -> nn.Module:
        """Read from the data folder, or trained once and read from the record's folder."""
        if name in self.pretrained:
            return pretrained_network(name, run)
        how = residual_recipe(epochs=self.epochs, batch=self.batch, lr=self.lr, augment=self.augment)
        return self.trained(run, f"{name}-{s}", partial(build_network, name, split, width=self.width), s, how)

    def trained(self, run: Run, key: str, build: Callable[..., nn.Module], s: int, how: Mapping[str, Any]) -> nn.Module:
        return trained(run, key, partial(build, seed=run.seed + s), run.data(False).train, how, seed=run.seed + s)

    def networks_and_seeds(self) -> Iterator[tuple[str, int]]:
        yield from ((name, s) for s in range(self.seeds) for name in self.networks)

    def cases(self) -> Iterator[tuple[str, int]]:
        yield from self.networks_and_seeds()
        yield from ((name, 0) for name in self.pretrained)

    @leg("{}/{}", over=cases)
    def surrogate(self, run: Run, name: str, s: int) -> dict[str, Any]:
        """The trace-NTK surrogate of one network: at the default ridge and at others, by SGD, and the fit to its logits."""
        split = run.data(name in self.pretrained)
        return self.compared(run, f"{name}-{s}", self.network(run, name, s, split), split, self.points, run.seed + s)

    @leg("phan/{}/{}", over=networks_and_seeds, optional=True)
    def surrogate_of_phan(self, run: Run, name: str, s: int) -> dict[str, Any]:
        """The same for a network trained as the paper's were, with more points in the kernel."""
        split, key = run.data(False), f"phan-{name}-{s}"
        pooled = {"max_pool": True} if name.startswith("resnet") else {}
        build = partial(build_network, name, split, width=self.width, **pooled)
        small = {"epochs": self.epochs, "batch_size": self.batch} if self.train_items else {}
        points = min(PHAN_POINTS, len(split.train))
        return self.compared(run, key, self.trained(run, key, build, s, {**PHAN, **small}), split, points, run.seed + s)

    def compared(self, run: Run, key: str, model: nn.Module, split: Split, points: int, seed: int) -> dict[str, Any]:
        """What every leg measures of its network, on `points` training points."""
        part = split.train.take(torch.from_numpy(chosen_points(split.train.y, points, seed)))
        compared = Compared(logits_of(model, split.test.x).numpy(), split.test.y.numpy())
        (pair,) = kernel_pairs(
            ["trntk"],
            model,
            part.x.to(run.device),
            split.test.x.to(run.device),
            precision=self.precision if run.device.type == "cuda" else "exact",
            memory=self.memory,
            seed=seed,
            progress=run.progress,
        )
        y, network, y_test = part.y.numpy(), compared.network, compared.y
        one = Surrogate(pair, y, self.alpha, seed)
        run.record.array(f"log-odds-{key}", log_odds_pair(one.logits, network, y_test))
        few = chosen_points(part.y, self.compared_points, seed)
        own = logits_of(model, part.x[torch.from_numpy(few)]).numpy()
        return {
            **one.row(network, y_test),
            "other ridges": one.ridges(network, y_test, "tau", "tad"),
            "stochastic": stochastic_fits(pair, y, compared, self.sgd_alpha, range(self.sgd_seeds)),
            "side by side": side_by_side(pair.take(few), y[few], own, compared, alpha=self.alpha),
        }

    def rows(self, record: Record, names: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
        """The results of every network that the record has, by name; those without any are left out.

        Where networks were trained as the paper's were, those alone count.
        """
        found: dict[str, list[Mapping[str, Any]]] = {}
        for k in names:
            for prefix in (f"phan/{k}", k):
                keys = (f"{prefix}/{s}" for s in range(self.seeds))
                if several := [record.metrics[key] for key in keys if key in record.metrics]:
                    found[k] = several
                    break
        return found

    def fitted(self, record: Record, names: Sequence[str]) -> str:
        """How many points the kernels of these networks have, and which were trained as the paper's were."""
        own = [k for k in names if any(f"phan/{k}/{s}" in record.metrics for s in range(self.seeds))]
        points = f"{self.points} training points in the kernel"
        theirs = f"{', '.join(own)}: trained as the paper's weights were, {PHAN_POINTS} points"
        return theirs if len(own) == len(names) else f"{points}; {theirs}" if own else points

    ROWS = [
        claim(
            f"surrogate-table1-{name}-cifar10",
            "Table 1",
            dict(zip(COLUMNS, published)),
            "tau >= 0.6, at the optimum and by SGD, and |TAD| <= 1.5 points",
            stand_in=TRAINED_HERE,
        )(partial(row, name))
        for name, published in TABLE.items()
    ]

    def of_every(self, record: Record, rows: Mapping[str, Any], measured: Any, holds: bool | None) -> Reading:
        """What is said of all networks, the pretrained ones too; `rows` are those that the record has."""
        absent = [f"{k}/0" for k in (*self.networks, *self.pretrained) if k not in rows]
        if absent:
            return lacking(*absent)
        other = f"pretrained={self.pretrained!r} instead of {PRETRAINED!r}" if self.pretrained != PRETRAINED else ""
        note = f"{self.fitted(record, [*self.networks, *self.pretrained])}; the two-class rows are in surrogate-small"
        return Reading(measured or None, holds, note, other=other)

    @claim("surrogate-table1-tau-floor", "Section 4, Table 1", {"least tau": 0.700}, stand_in=TRAINED_HERE)
    def floor(self, record: Record) -> Reading:
        """least tau >= 0.6, at the optimum and by SGD"""
        rows = self.rows(record, (*self.networks, *self.pretrained))
        tau = {k: mean_row(one)["tau"] for k, one in rows.items()}
        sgd = {k: summary(fit["mean"] for fit in fits)["mean"] for k, one in rows.items() if (fits := by_sgd(one))}
        measured = {
            name: {k: round(v, 4) for k, v in of.items()} for name, of in (("at the optimum", tau), ("by SGD", sgd))
        }
        return self.of_every(record, rows, measured, min([*tau.values(), *sgd.values()], default=0.0) >= 0.6)

    @claim("surrogate-table1-tad-small", "Section 4, Table 1", {"TAD from": -2.2, "to": 0.03}, stand_in=TRAINED_HERE)
    def small(self, record: Record) -> Reading:
        """-4 <= TAD <= 1"""
        rows = self.rows(record, (*self.networks, *self.pretrained))
        tad = {k: round(mean_row(one)["tad"], 3) for k, one in rows.items()}
        return self.of_every(record, rows, tad, all(-4 <= value <= 1 for value in tad.values()))

    @claim("surrogate-ideal-surrogate", "Eq. 2", "the whole softmax vector is reproduced")
    def ideal(self, record: Record) -> Reading:
        """reported: mean total variation between the softmax vectors of network and surrogate; 0 were ideal"""
        rows = self.rows(record, (*self.networks, *self.pretrained))
        distance = {k: round(mean_row(one)["total_variation"], 4) for k, one in rows.items()}
        return self.of_every(record, rows, distance, None)

    @figure
    def table1(self, record: Record) -> dict[str, Figure]:
        """Of the first network of each kind, beside what was published; bars are standard deviations over seeds of SGD.

        A network that was trained by both recipes is drawn twice; the first one, by that of the paper's weights, is judged.
        """
        rows = {key: record.metrics[f"{key}/0"] for key in self.drawn if f"{key}/0" in record.metrics}
        names = [self.drawn[key] for key in rows]
        drawn, axes = drawing.canvas(1, 2, width=5.6, height=4.0)
        fits = [_taus_by_sgd(row) for row in rows.values()]
        for axis, key, column, label in (
            (axes[0], "tau", 2, "Kendall τ"),
            (axes[1], "tad", 1, "accuracy differential, points"),
        ):
            series: dict[str, Any] = {"at the optimum": ([row[key] for row in rows.values()], None)}
            if key == "tau":
                means = [float(np.mean(one)) if one else None for one in fits]
                series["by SGD"] = (means, [float(np.std(one)) if one else 0.0 for one in fits])
            published = [TABLE.get(k.removeprefix("phan/")) for k in rows]
            series["published"] = ([one[column] if one else None for one in published], None)
            drawing.compare_bars(axis, names, series, label=label)
        titles = {f"{k.replace('/', '-')}-0": f"{self.drawn[k]}: τ = {row['tau']:.3f}" for k, row in rows.items()}
        return {"table1": drawn, **log_odds_figure("log-odds", record, titles)}

    @property
    def drawn(self) -> dict[str, str]:
        """The words for each network in figures, by the beginning of its leg's key; what is judged stands first."""
        trained = {
            f"{prefix}{k}": f"{k}, {recipe}"
            for k in self.networks
            for prefix, recipe in (("phan/", "their recipe"), ("", "our recipe"))
        }
        return {**trained, **{k: f"{k}, pretrained" for k in self.pretrained}}


def by_sgd(found: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Mean, least and largest τ as published over the seeds of SGD, of each network that has them."""
    return spreads((one.get("stochastic") for one in found), "unsaturated", "tau")


def mean_row(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over networks; without the fits by SGD, some of which may have no τ."""
    return averaged({key: value for key, value in one.items() if key != "stochastic"} for one in found)


def _taus_by_sgd(row: Mapping[str, Any]) -> list[float]:
    """τ as published of one network for every seed of SGD that has one."""
    seeds = row["stochastic"]["seeds"].values() if "stochastic" in row else ()
    return [tau for one in seeds if np.isfinite(tau := float(one["unsaturated"]["tau"]))]
