"""Beaglehole et al. (2024), Figure 1: EGOP, NFM, AGOP and the AGOP with random eigenvectors, on the chain monomial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope.linalg import matrix_correlation
from ntkscope.tangent import LayerFeatures, feature_matrices
from ntkscope_papers.beaglehole_2024 import chain_claims
from ntkscope_papers.beaglehole_2024 import feature_definitions as definitions
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, ChainTask, correlation, finals, follow
from ntkscope_papers.beaglehole_2024.matrices import rounded
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg

TITLES = ("EGOP of the target", "NFM  WᵀW", "AGOP  WᵀKW", "WᵀQW, random eigenvectors")
READINGS = {"variance": "s a variance", "deviation": "s a standard deviation"}


@dataclass(frozen=True)
class ChainMonomial(Experiment):
    """Feature ansatz, Figure 1: NFM and AGOP find the coordinates of the target; with random eigenvectors in K they do not.

    `scale` is the printed s of the first layer, read as a variance and as a standard deviation; `lr` is of ½·MSE.

    `ansatz_items`, `ansatz_width`: the sizes of Figure 2. `draws`: random matrices Q per network.
    """

    name = "chain-monomial"
    statements = claims_of(chain_claims)
    free = ("seeds", "draws", "samples")

    items: int = 384
    dimension: int = 32
    width: int = 128
    rank: int = 5
    scale: float = 0.01
    lr: float = 0.05
    steps: int = 800
    ansatz_items: int = 256
    ansatz_width: int = 256
    seeds: int = 10
    draws: int = 200
    samples: int = 400_000

    smoke = {
        "items": 96,
        "dimension": 12,
        "width": 48,
        "ansatz_items": 64,
        "ansatz_width": 48,
        "steps": 300,
        "seeds": 2,
        "draws": 40,
        "samples": 40_000,
    }

    @property
    def task(self) -> ChainTask:
        return ChainTask(self.items, self.dimension, self.width, self.rank)

    @leg("definitions/identities")
    def identities(self, run: Run) -> dict[str, Any]:
        return definitions.identities(run.seed)

    @leg("definitions/correlation")
    def laws_of_correlation(self, run: Run) -> dict[str, Any]:
        return definitions.correlations(run.seed)

    @leg("definitions/targets")
    def targets(self, run: Run) -> dict[str, Any]:
        return definitions.chain_targets(run.seed, self.samples)

    @leg("definitions/start")
    def start(self, run: Run) -> dict[str, Any]:
        return definitions.initial_variances(self.task, self.scale, range(run.seed, run.seed + self.seeds))

    @leg("trained/{}", over=lambda self: READINGS)
    def trained(self, run: Run, reading: str) -> dict[str, Any]:
        """With either reading of the scale; the four matrices of the first seed."""
        members, matrices = self.networks(run, self.task, self.scale if reading == "variance" else self.scale**2)
        run.record.array(f"matrices-{reading}", np.stack(matrices))
        return {"members": members}

    @leg("trained/ansatz")
    def ansatz(self, run: Run) -> dict[str, Any]:
        """With the sizes of Figure 2."""
        task = ChainTask(self.ansatz_items, self.dimension, self.ansatz_width, self.rank)
        return {"members": self.networks(run, task, self.scale)[0]}

    def networks(self, run: Run, task: ChainTask, variance: float) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
        """Their losses, correlations with control, spectrum of K, likeness to the EGOP; four matrices of the first."""
        seeds = range(run.seed, run.seed + self.seeds)
        followed = follow(
            task,
            variance,
            seeds,
            {"uncentred": correlation(None)},
            lr=self.lr,
            steps=self.steps,
            every=self.steps,
            device=run.device,
        )
        members: list[dict[str, Any]] = []
        matrices: list[np.ndarray] = []
        for i, (model, split, seed) in enumerate(zip(finals(followed.ensemble), followed.splits, seeds)):
            initial = task.network(variance, seed).double().eval()
            features = feature_matrices(model, split.train.x.double(), initial=initial, dtype=torch.float64)
            layer, egop = features["layer1"], split.extras["egop"].double()
            member = {
                "train_loss": float(followed.losses["train"][i, -1]),
                "test_loss": float(followed.losses["test"][i, -1]),
                "start": followed.values["uncentred"][i, 0].tolist(),
                "end": followed.values["uncentred"][i, -1].tolist(),
                "layers": {name: of_layer(features[name], self.draws, seed) for name in LAYERS},
                "egop": {"agop": matrix_correlation(layer.agop, egop), "nfm": matrix_correlation(layer.nfm, egop)},
            }
            members.append(rounded(member))
            if not matrices:
                matrices = [m.numpy() for m in (egop, layer.nfm, layer.agop, random_agop(layer, seed))]
        return members, matrices

    @figure
    def matrices(self, record: Record) -> dict[str, Figure]:
        """Figure 1 for the first seed of the first reading there is."""
        for reading in READINGS:
            if f"matrices-{reading}" in record.arrays:
                drawn, axes = drawing.canvas(1, 4, width=3.2, height=3.2)
                for axis, matrix, title in zip(axes, np.asarray(record.arrays[f"matrices-{reading}"]), TITLES):
                    largest = float(np.abs(matrix).max()) or 1.0
                    axis.imshow(matrix / largest, cmap="RdBu_r", vmin=-1, vmax=1)
                    axis.set(title=title, xticks=[], yticks=[])
                return {"matrices": drawn}
        return {}

    @figure
    def correlations(self, record: Record) -> Figure:
        """Every seed's ρ beside its control."""
        drawn, axes = drawing.canvas(1, 2, width=4.2)
        for axis, (reading, title) in zip(axes, READINGS.items()):
            for i, member in enumerate(record.metrics.get(f"trained/{reading}", {}).get("members", ())):
                layer = member["layers"]["layer1"]
                low, high = layer["quantiles"]["0.025"], layer["quantiles"]["0.975"]
                axis.plot([i, i], [low, high], color=drawing.COLOURS[1], linewidth=3, alpha=0.5)
                axis.plot(i, layer["control"]["mean"], "o", color=drawing.COLOURS[1], markersize=4)
                axis.plot(i, layer["rho"], "o", color=drawing.COLOURS[0], markersize=4)
            axis.set_ylim(0, 1.02)
            words = f"{title}: ρ (blue), 95 % of random Q (orange)"
            drawing.label(axis, title=words, x="seed", y="correlation, layer 1")
        return drawn


def of_layer(layer: LayerFeatures, draws: int, seed: int) -> dict[str, Any]:
    """ρ, the centred ρ, its control, and how far K is from a multiple of the identity: the spread of its eigenvalues."""
    control = layer.control(draws=draws, seed=seed)
    values = torch.linalg.eigvalsh(layer.ptk)
    return {
        "rho": layer.correlation(),
        "centred": layer.correlation("weights"),
        "control": {"mean": control.mean, "least": float(control.values.min()), "most": float(control.values.max())},
        "p_value": control.p_value,
        "quantiles": {str(q): value for q, value in control.quantiles.items()},
        "spread": float(values.std(correction=0) / values.mean()),
        "largest possible spread": (len(values) - 1) ** 0.5,
    }


def random_agop(layer: LayerFeatures, seed: int) -> torch.Tensor:
    """`WᵀQW` for one Q with K's spectrum and random eigenvectors."""
    values = torch.linalg.eigvalsh(layer.ptk)
    draw = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(len(values), len(values), generator=draw, dtype=torch.float64)).Q
    W = layer.weight
    assert W is not None
    return W.T @ (basis * values) @ basis.T @ W
