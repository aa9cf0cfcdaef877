"""Neural collapse by layer and epoch into the terminal phase of training: Harlev et al., section 2; Papyan et al. (2020).

The ResNet-18 of `pca-probes`, trained on beyond the epoch at which every training item is right, with and without label
smoothing; the step is cut to a tenth twice, early enough that most epochs lie in the terminal phase. At chosen epochs, in
evaluation mode and on the images as they are: NC1 to NC4 and CDNV of every layer's activations, flattened, and their
intrinsic dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkscope.core import Record, Split
from ntkscope.measures.collapse import collapse
from ntkscope.measures.dimension import two_nn
from ntkscope.tangent import activations
from ntkscope.training.augment import CropFlip
from ntkscope.training.evaluation import evaluating
from ntkscope.training.losses import CrossEntropy
from ntkscope.training.schedules import LearningRateSteps
from ntkscope.training.store import SnapshotStore
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, leg
from ntkscope_papers.framework.results import digits, summary, under
from ntkscope_papers.harlev_2023.probed_networks import TRAINED_HERE, build, images, probed
from ntkscope_papers.shared.images import chosen_points
from ntkscope_papers.shared.networks import logits_of, train_watched

NETWORK = probed("resnet18")
LAST_BLOCK = NETWORK.layers[-1]
READOUT_INPUT = "flatten"  # averaged over pixels: what the readout sees
LAYERS = (*NETWORK.layers, READOUT_INPUT)
MOMENT = "smoothing-{:g}/{}/{}"  # label smoothing, network, epoch
PANELS = (
    ("nc1", LAST_BLOCK, "NC1, last block"),
    ("cdnv", LAST_BLOCK, "CDNV, last block"),
    ("nc2_angles", READOUT_INPUT, "NC2 angles, readout's input"),
    ("nc2_norms", READOUT_INPUT, "NC2 norms, readout's input"),
    ("nc3", READOUT_INPUT, "NC3"),
    ("nc4", LAST_BLOCK, "NC4 on test items, last block"),
)


@dataclass(frozen=True)
class LayerCollapse(Experiment):
    """Neural collapse by layer and epoch of a ResNet-18, with and without label smoothing: NC1–NC4, CDNV, two-NN.

    `points`: training items whose activations are measured, `near` those whose dimension is estimated; `moments`: epochs.
    """

    name = "layer-collapse"
    free = ("seeds", "memory", "smoothings")

    dataset: str = "cifar10"
    train_items: int | None = None
    test_items: int | None = None
    enlarge: int = 1
    width: float = 1.0
    smoothings: tuple[float, ...] = (0.0, 0.1)
    epochs: int = 160
    moments: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 40, 64, 80, 96, 128, 160)
    batch: int = 512
    lr: float = 0.2
    weight_decay: float = 5e-4
    augment: bool = True
    points: int = 10_000
    near: int = 2000
    memory: str = "32GiB"
    seeds: int = 3

    smoke = {
        "dataset": "digits",
        "train_items": 120,
        "test_items": 60,
        "enlarge": 2,
        "width": 0.0625,
        "epochs": 4,
        "moments": (0, 2, 4),
        "batch": 30,
        "lr": 0.1,
        "augment": False,
        "points": 80,
        "near": 80,
        "memory": "1GiB",
        "seeds": 1,
    }

    def how(self, smoothing: float) -> dict[str, Any]:
        """The settings of `fit`: the step falls to a tenth after 0.4 and again after 0.6 of the epochs."""
        falls = tuple((max(1, round(share * self.epochs)), 0.1) for share in (0.4, 0.6))
        return {
            "optimizer": "sgd",
            "lr": self.lr,
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": self.weight_decay,
            "loss": CrossEntropy(label_smoothing=smoothing),
            "batch_size": self.batch,
            "drop_last": True,
            "schedule": LearningRateSteps(falls),
            "augment": CropFlip(padding=4) if self.augment else None,
            "epochs": self.epochs,
        }

    def prepare(self, run: Run) -> Split:
        return images(self, False, run.root)

    @leg(MOMENT, over=lambda self: product(self.smoothings, range(self.seeds), self.moments))
    def moment(self, run: Run, smoothing: float, s: int, epoch: int) -> dict[str, Any]:
        """Trains the network, which measures all its moments that are missing; a killed run resumes from its checkpoint."""
        split, record, seed = run.data, run.record, run.seed + s
        store = Path(record.folder) / f"checkpoints-smoothing-{smoothing:g}-{s}"
        per_epoch = len(split.train) // self.batch
        keys = {each * per_epoch: MOMENT.format(smoothing, s, each) for each in self.moments}
        model = build(self, split, seed).to(run.device)
        fast: dict[str, Any] = {"autocast": "bfloat16", "channels_last": True} if run.device.type == "cuda" else {}
        how = {**self.how(smoothing), **fast, "seed": seed}
        train_watched(run, model, split.train, store, keys, lambda step: self.measured(run, model, seed), **how)
        SnapshotStore(store).discard()
        result = record.metrics[MOMENT.format(smoothing, s, epoch)]
        return {name: value for name, value in result.items() if name != "seconds"}

    def measured(self, run: Run, model: nn.Module, seed: int) -> dict[str, Any]:
        """The network at one moment: accuracies, and every layer's collapse and dimension."""
        split = run.data
        part = split.train.take(torch.from_numpy(chosen_points(split.train.y, self.points, seed)))
        with evaluating(model), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            answers = {name: logits_of(model, of.x).argmax(1) for name, of in (("train", part), ("test", split.test))}
            rows, others = (
                activations(model, x.to(run.device), LAYERS, memory=self.memory) for x in (part.x, split.test.x)
            )
            layers = {
                name: self.at_layer(model, name, (rows[name], others[name]), part.y, answers["test"]) for name in LAYERS
            }
        right = {
            "train": float((answers["train"] == part.y).double().mean()),
            "test": float((answers["test"] == split.test.y).double().mean()),
        }
        return {"accuracy": right, "layers": layers}

    def at_layer(
        self, model: nn.Module, layer: str, features: tuple[Any, Any], y: Tensor, decisions: Tensor
    ) -> dict[str, Any]:
        """One layer's `features` of training and test items: collapse of the first with labels `y`, decisions for the others,
        and the dimension of the first."""
        rows, others = features
        readout = model.get_submodule("fc").weight if layer == READOUT_INPUT else None
        found = collapse(rows, y, readout=readout, decisions=decisions, at=others)
        near = two_nn(rows[: self.near], halvings=2)
        return {
            **{name: None if value is None else digits(value, 6) for name, value in asdict(found).items()},
            "dimension": digits(near.dimension, 5),
            "dimension error": digits(near.error, 3),
            "dimension of halves": [[one.items, digits(one.dimension, 5)] for one in near.curve],
            "duplicates": near.duplicates,
        }

    @claim(
        "probes-neural-collapse-nc4",
        "Section 2",
        "in collapsed layers the network decides by the nearest class centre, and items of a class vary little",
        needs=lambda self: [MOMENT.format(0.0, s, max(self.moments)) for s in range(self.seeds)],
        seeds=3,
        stand_in=TRAINED_HERE,
    )
    def nc4(self, record: Record) -> Reading:
        """at the end of training, at the last block: agreement with the nearest class centre on test items >= 0.97 in
        the mean over seeds, and the smallest NC1 of all blocks in every network; without label smoothing"""
        end = max(self.moments)
        ends = [record.metrics[MOMENT.format(0.0, s, end)] for s in range(self.seeds)]
        agreement = [1 - one["layers"][LAST_BLOCK]["nc4"] for one in ends]
        profiles = [{layer: one["layers"][layer]["nc1"] for layer in NETWORK.layers} for one in ends]
        smallest = [min(profile, key=profile.__getitem__) for profile in profiles]
        shown = {
            "agreement at the last block": [digits(value, 4) for value in agreement],
            "agreement at the readout's input": [digits(1 - one["layers"][READOUT_INPUT]["nc4"], 4) for one in ends],
            "smallest NC1 at": smallest,
            "NC1": {layer: digits(float(np.mean([p[layer] for p in profiles])), 4) for layer in NETWORK.layers},
            "test accuracy": [digits(one["accuracy"]["test"], 4) for one in ends],
            "training accuracy": [digits(one["accuracy"]["train"], 4) for one in ends],
        }
        beside = MOMENT.format(0.1, 0, end)
        if beside in record.metrics:
            smooth = record.metrics[beside]["layers"][LAST_BLOCK]
            shown["with label smoothing"] = {"agreement": digits(1 - smooth["nc4"], 4), "NC1": digits(smooth["nc1"], 4)}
        holds = summary(agreement)["mean"] >= 0.97 and set(smallest) == {LAST_BLOCK}
        return Reading(shown, holds, seeds=self.seeds)

    @figure
    def figures(self, record: Record) -> Mapping[str, Figure]:
        """Every measure over epochs, and NC1 and dimension by layer at every measured epoch; a colour per label smoothing."""
        runs = {
            (smoothing, s): found
            for smoothing in self.smoothings
            for s in range(self.seeds)
            if (found := moments(record, smoothing, s))
        }
        epochs, axes = drawing.canvas(2, 3, width=3.9, height=3.0)
        for axis, (name, layer, title) in zip(axes, PANELS):
            for (smoothing, s), found in runs.items():
                at = [epoch for epoch, one in found.items() if one["layers"][layer][name] is not None]
                colour = drawing.COLOURS[self.smoothings.index(smoothing) % len(drawing.COLOURS)]
                label = f"label smoothing {smoothing:g}" if s == 0 else None
                axis.plot(
                    at,
                    [found[epoch]["layers"][layer][name] for epoch in at],
                    "o-",
                    markersize=3,
                    color=colour,
                    label=label,
                )
            drawing.label(axis, title=title, x="epoch")
            axis.set_xscale("symlog", linthresh=1)
            if name not in ("nc3", "nc4"):
                axis.set_yscale("log")
        axes[0].legend()
        shown = [smoothing for smoothing in self.smoothings if (smoothing, 0) in runs]
        profiles, panels = drawing.canvas(2, max(1, len(shown)), width=5.0, height=3.2)
        for row, (name, label) in enumerate((("nc1", "NC1"), ("dimension", "intrinsic dimension, two-NN"))):
            for column, smoothing in enumerate(shown):
                axis = panels[row * len(shown) + column]
                found = runs[smoothing, 0]
                for k, (epoch, one) in enumerate(found.items()):
                    shade = str(0.85 - 0.85 * k / max(1, len(found) - 1))
                    axis.plot(
                        [one["layers"][layer][name] for layer in LAYERS], "o-", markersize=3, color=shade, label=epoch
                    )
                drawing.label(axis, title=f"label smoothing {smoothing:g}", y=label, log="y")
                axis.set_xticks(range(len(LAYERS)), LAYERS, rotation=35, ha="right", fontsize=7)
        panels[0].legend(title="epoch", title_fontsize=7)
        return {"epochs": epochs, "layers": profiles}


def moments(record: Record, smoothing: float, s: int) -> dict[int, Mapping[str, Any]]:
    """What was measured of one network, by epoch."""
    found = under(record, f"smoothing-{smoothing:g}/{s}/")
    return {int(epoch): found[epoch] for epoch in sorted(found, key=int)}
