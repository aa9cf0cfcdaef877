"""Two hidden ReLU layers on the chain monomial, as the feature-ansatz paper trains them, and their correlations on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ntkscope import training
from ntkscope.core import NumericalError, Snapshot, Split
from ntkscope.measures.feature_ansatz import nfa_correlation
from ntkscope.training import Every
from ntkscope_papers.beaglehole_2024.data import chain_monomial
from ntkscope_papers.beaglehole_2024.matrices import mlp

LAYERS = ("layer1", "layer2")
SPECTRA: Mapping[str, float | None] = {"isotropic": None, "decay-1": 1.0, "decay-2": 2.0}
PARTS = ("train", "test")
Measure = Callable[[Tensor, Tensor, Tensor, Tensor], float]  # of W, W₀, K and K̄ of one layer


@dataclass(frozen=True)
class ChainTask:
    """Sizes of the problem; `decay` is that of the inputs' spectrum, 1 / (1 + k^decay) in a random basis, None if isotropic."""

    items: int
    dimension: int
    width: int
    rank: int = 5
    test_items: int = 1024
    decay: float | None = None

    def split(self, seed: int) -> Split:
        return chain_monomial(
            seed=seed,
            dimension=self.dimension,
            rank=self.rank,
            decay=self.decay,
            train=self.items,
            test=self.test_items,
        )

    def network(self, scale: float, seed: int) -> nn.Module:
        """No biases, weights N(0, s/fan-in) with s = `scale` in the first layer and 1 after it."""
        return mlp(self.dimension, self.width, seed, init_scale=[math.sqrt(scale), 1.0, 1.0])


@dataclass(frozen=True, eq=False)
class Followed:
    """Networks of several seeds at one scale, trained together, with what was measured of them on the way."""

    ensemble: training.ensembles.ensemble.Ensemble
    splits: list[Split]
    steps: list[int]
    values: dict[str, Float64[np.ndarray, "seeds moments layers"]]
    losses: dict[str, Float64[np.ndarray, "seeds moments"]]
    seconds: float


def correlation(centring: str | None) -> Measure:
    return lambda W, W0, K, Kc: nfa_correlation(W, K, W0=W0, Kc=Kc, centring=centring)


def weights_of(params: Mapping[str, Tensor]) -> dict[str, Float64[Tensor, "*k out in"]]:
    """Of one network or of stacked ones, by layer, readout included."""
    return {name.removesuffix(".weight"): value.detach().double() for name, value in params.items()}


def outputs_of(weights: Mapping[str, Tensor], x: Float[Tensor, "k n d"]) -> Float[Tensor, "k n"]:
    """Of every network on its own inputs."""
    hidden = x
    for layer in LAYERS:
        hidden = (hidden @ weights[layer].mT).clamp_min(0)
    return (hidden @ weights["readout"].mT).squeeze(-1)


def tangents_of(weights: Mapping[str, Tensor], x: Float[Tensor, "k n d"]) -> dict[str, Float[Tensor, "k n width"]]:
    """`b = ∂f/∂h` of both hidden layers, in closed form: a ReLU passes a cotangent where it is active."""
    first = x @ weights["layer1"].mT
    second = first.clamp_min(0) @ weights["layer2"].mT
    after = (second > 0) * weights["readout"]
    return {"layer1": (after @ weights["layer2"]) * (first > 0), "layer2": after}


def covariance(b: Float[Tensor, "k n out"]) -> Float64[Tensor, "k out out"]:
    """`K = 1/n Σ b bᵀ`, on the CPU."""
    return (b.mT @ b / b.shape[1]).cpu()


def follow(
    task: ChainTask,
    scale: float,
    seeds: Sequence[int],
    measures: Mapping[str, Measure],
    *,
    lr: float,
    steps: int,
    every: int | None = None,
    device: torch.device,
) -> Followed:
    """Gradient descent on ½·MSE from N(0, s/fan-in), all seeds stacked; `measures` `every` so many steps, at both ends too.

    A seed draws the data and, up to its scale, the network, so runs of one seed at several scales are paired. The rate of `fit`
    is of the mean of r², of which a step is half as long. What is undefined (centred at the start, diverged) is NaN.
    """
    splits = [task.split(seed) for seed in seeds]
    inputs = {part: torch.stack([getattr(split, part).x for split in splits]).to(device) for part in PARTS}
    targets = {part: torch.stack([getattr(split, part).y for split in splits]).to(device) for part in PARTS}
    x = inputs["train"].double()
    start: dict[str, dict[str, Tensor]] = {}
    at: list[int] = []
    values: dict[str, list[list[list[float]]]] = {name: [] for name in measures}
    losses: dict[str, list[list[float]]] = {part: [] for part in PARTS}

    def watch(snapshot: Snapshot) -> None:
        weights = weights_of(snapshot.params)
        tangents = tangents_of(weights, x)
        if not start:
            start.update(weights={name: value.clone() for name, value in weights.items()}, tangents=tangents)
        matrices = {
            layer: (weights[layer].cpu(), start["weights"][layer].cpu(), covariance(b), covariance(b - b0))
            for layer, b, b0 in ((layer, tangents[layer], start["tangents"][layer]) for layer in LAYERS)
        }
        at.append(snapshot.step)
        for name, measure in measures.items():
            values[name].append(
                [[defined(measure, *(M[i] for M in matrices[layer])) for layer in LAYERS] for i in range(len(seeds))]
            )
        single = {name: value.float() for name, value in weights.items()}
        for part in PARTS:
            error = (outputs_of(single, inputs[part]) - targets[part]).square().mean(1) / 2
            losses[part].append(error.double().tolist())

    began = time.perf_counter()
    ensemble = training.fit_ensemble(
        partial(task.network, scale),
        [split.train for split in splits],
        seeds=list(seeds),
        optimizer="gd",
        loss="mse",
        lr=lr / 2,
        steps=steps,
        snapshots=Every(every or steps),
        on_snapshot=watch,
        diverged="nan",
        device=device,
    )
    return Followed(
        ensemble,
        splits,
        at,
        {name: np.array(rows).transpose(1, 0, 2) for name, rows in values.items()},
        {part: np.array(rows).T for part, rows in losses.items()},
        time.perf_counter() - began,
    )


def defined(measure: Measure, W: Tensor, W0: Tensor, K: Tensor, Kc: Tensor) -> float:
    """The measure, or NaN where it is undefined: nothing moved yet, or the member diverged."""
    if not bool(torch.isfinite(W).all()):
        return math.nan
    try:
        return measure(W, W0, K, Kc)
    except NumericalError:
        return math.nan


def finals(ensemble: training.ensembles.ensemble.Ensemble) -> list[nn.Module]:
    """The trained networks in double precision, in evaluation mode, on the CPU."""
    return [model.cpu().double().eval() for model in ensemble.members()]
