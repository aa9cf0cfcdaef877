"""Beaglehole et al. (2024), Figure 1: EGOP, NFM, AGOP and the AGOP with random eigenvectors, on the chain monomial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ntkscope.core import Record
from ntkscope.linalg import matrix_correlation
from ntkscope.tangent import LayerFeatures, feature_matrices
from ntkscope_papers.beaglehole_2024 import chain_claims as claims
from ntkscope_papers.beaglehole_2024 import feature_definitions as definitions
from ntkscope_papers.beaglehole_2024.chain_claims import NAME
from ntkscope_papers.beaglehole_2024.chain_figures import draw
from ntkscope_papers.beaglehole_2024.feature_path import LAYERS, ChainTask, correlation, finals, follow, rounded
from ntkscope_papers.framework.claims import claims_of
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs

MATRICES = "matrices-{reading}"  # EGOP, NFM, AGOP, WᵀQW of the first seed


@dataclass(frozen=True)
class ChainMonomial(Experiment):
    """Feature ansatz, Figure 1: NFM and AGOP find the coordinates of the target; with random eigenvectors in K they do not.

    `scale` is the printed s of the first layer, read as a variance and as a standard deviation; `lr` is of ½·MSE.

    `ansatz_items`, `ansatz_width`: the sizes of Figure 2. `draws`: random matrices Q per network.
    """

    name = NAME
    statements = claims_of(claims)
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
        return ChainTask(self.items, self.dimension, self.width, rank=self.rank)

    def variance(self, reading: str) -> float:
        """The variance factor that a reading of `scale` means."""
        return self.scale if reading == "variance" else self.scale**2

    def measure(self, run: Run) -> None:
        run_legs(run.record, legs(self, run.record, run.seed, run.device), self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def trained(
    config: ChainMonomial, task: ChainTask, variance: float, seeds: list[int], device: torch.device
) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Networks of one reading: their losses, correlations with control, spectrum of K, likeness to the EGOP; four matrices."""
    run = follow(
        task,
        variance,
        seeds,
        {"uncentred": correlation(None)},
        lr=config.lr,
        steps=config.steps,
        every=config.steps,
        device=device,
    )
    members: list[dict[str, Any]] = []
    shown: list[np.ndarray] = []
    for i, (model, split) in enumerate(zip(finals(run.ensemble), run.splits)):
        told: dict[str, Any] = {
            "train_loss": float(run.losses["train"][i, -1]),
            "test_loss": float(run.losses["test"][i, -1]),
            "start": run.values["uncentred"][i, 0].tolist(),
            "end": run.values["uncentred"][i, -1].tolist(),
        }
        x = split.train.x.double()
        initial = task.network(variance, seeds[i]).double().eval()
        features = feature_matrices(model, x, initial=initial, dtype=torch.float64)
        told["layers"] = {layer: of_layer(features[layer], config.draws, seeds[i]) for layer in LAYERS}
        wanted = split.extras["egop"].double()
        layer = features["layer1"]
        told["egop"] = {"agop": matrix_correlation(layer.agop, wanted), "nfm": matrix_correlation(layer.nfm, wanted)}
        members.append(rounded(told))
        if not shown:
            shown = [m.numpy() for m in (wanted, layer.nfm, layer.agop, random_agop(layer, seeds[i]))]
    return members, shown


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


def reading_leg(
    config: ChainMonomial, record: Record, reading: str, seeds: list[int], device: torch.device
) -> dict[str, Any]:
    members, matrices = trained(config, config.task, config.variance(reading), seeds, device)
    record.array(MATRICES.format(reading=reading), np.stack(matrices))
    return {"members": members}


def ansatz_leg(config: ChainMonomial, seeds: list[int], device: torch.device) -> dict[str, Any]:
    task = ChainTask(config.ansatz_items, config.dimension, config.ansatz_width, rank=config.rank)
    return {"members": trained(config, task, config.scale, seeds, device)[0]}


def legs(config: ChainMonomial, record: Record, seed: int, device: torch.device) -> list[Leg]:
    seeds = list(range(seed, seed + config.seeds))
    return [
        Leg("definitions/identities", partial(definitions.identities, seed)),
        Leg("definitions/correlation", partial(definitions.correlations, seed)),
        Leg("definitions/targets", partial(definitions.chain_targets, seed, config.samples)),
        Leg("definitions/start", partial(definitions.initial_variances, config.task, config.scale, seeds)),
        *(
            Leg(f"trained/{reading}", partial(reading_leg, config, record, reading, seeds, device))
            for reading in ("variance", "deviation")
        ),
        Leg("trained/ansatz", partial(ansatz_leg, config, seeds, device)),
    ]
