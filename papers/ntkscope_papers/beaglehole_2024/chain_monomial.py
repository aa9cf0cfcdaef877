"""Beaglehole et al. (2024), Figure 1: EGOP, NFM, AGOP and the AGOP with random eigenvectors, on the chain monomial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkscope.core import Record, generator
from ntkscope.linalg import matrix_correlation
from ntkscope.measures.feature_ansatz import egop, nfa_correlation
from ntkscope.tangent import LayerFeatures, feature_matrices
from ntkscope_papers.beaglehole_2024 import chain_claims
from ntkscope_papers.beaglehole_2024.data import chain_form, chain_monomial
from ntkscope_papers.beaglehole_2024.feature_path import (
    LAYERS,
    ChainTask,
    correlation,
    finals,
    follow,
    tangents_of,
    weights_of,
)
from ntkscope_papers.beaglehole_2024.matrices import relative
from ntkscope_papers.framework import Experiment, Run, claims_of, drawing, figure, leg
from ntkscope_papers.framework.results import rounded

TITLES = ("EGOP of the target", "NFM  WᵀW", "AGOP  WᵀKW", "WᵀQW, random eigenvectors")
RANKS = (2, 3, 4, 5, 6, 7, 8, 12)
SMALL = ChainTask(items=7, dimension=6, width=9, test_items=2)
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

    def seeds_from(self, first: int) -> range:
        return range(first, first + self.seeds)

    @leg("definitions/identities")
    def identities(self, run: Run) -> dict[str, Any]:
        """AGOP = WᵀKW, proposition 2 and the identity K, on a small network of random weights, in float64."""
        split = SMALL.split(run.seed)
        model = SMALL.network(1.0, run.seed).double().eval()
        x, weights = split.train.x.double(), weights_of(dict(model.named_parameters()))
        features = feature_matrices(model, x, dtype=torch.float64)
        tangents = tangents_of({name: W[None] for name, W in weights.items()}, x[None])
        found: dict[str, Any] = {"n": len(x), "layers": {}}
        for layer in LAYERS:
            W, b = weights[layer], tangents[layer][0]
            G = gradient_outer_product(model, x, layer)
            K = b.T @ b / len(x)
            F = W.T @ W
            found["layers"][layer] = {
                "gap": relative(W.T @ K @ W, G),
                "gap of feature_matrices": relative(features[layer].agop, G),
                "printed / AGOP": float((W.T @ (b.T @ b) @ W).norm() / G.norm()),
                "gap of proposition 2": abs(matrix_correlation(F, G) - nfa_correlation(W, K)),
                "off 1 with K = 3I": abs(nfa_correlation(W, 3 * torch.eye(len(W), dtype=torch.float64)) - 1),
                "asymmetry": max(relative(F.T, F), relative(G.T, G)),
                "least eigenvalue / largest": min(least(F), least(G)),
                "sizes": [list(F.shape), list(G.shape)],
            }
        found["shapes"] = {name: list(W.shape) for name, W in weights.items()}
        return found

    @leg("definitions/correlation")
    def laws_of_correlation(self, run: Run) -> dict[str, Any]:
        """The laws of ρ on random matrices."""
        draw = generator(run.seed, "laws of the correlation")
        low, scaled, least_psd, outside = 0.0, 0.0, 1.0, 0.0
        for _ in range(200):
            A, B = (torch.randn(6, 4, generator=draw, dtype=torch.float64) for _ in range(2))
            low = max(low, abs(matrix_correlation(A, 2.5 * A) - 1))
            scaled = max(scaled, abs(matrix_correlation(3 * A, 0.1 * B) - matrix_correlation(A, B)))
            least_psd = min(least_psd, matrix_correlation(A.T @ A, B.T @ B))
            outside = max(outside, abs(matrix_correlation(A, B)) - 1)
        return {
            "off 1 for A, cA": low,
            "change by scaling": scaled,
            "least of PSD pairs": least_psd,
            "beyond 1": outside,
        }

    @leg("definitions/targets")
    def targets(self, run: Run) -> dict[str, Any]:
        """Variance, EGOP and its rank for several r, and the EGOP for r = 5 from samples."""
        variances, ranks, values = {}, {}, {}
        for r in RANKS:
            options: dict[str, Any] = {"dimension": r, "rank": r, "unit_labels": False, "dtype": "float64"}
            split = chain_monomial(seed=run.seed, train=self.samples, test=1, **options)
            variances[str(r)] = float(split.train.y.var())
            eigenvalues = torch.linalg.eigvalsh(split.extras["egop"])
            ranks[str(r)] = int((eigenvalues > 1e-9).sum())
            values[str(r)] = float((eigenvalues - ring_eigenvalues(r)).abs().max())
            if r == 5:
                exact = split.extras["egop"]
                drawn = egop(lambda x: ((x @ chain_form(5, 5)) * x).sum(1), split.train.x)  # Eq. 1
                five = {
                    "entries": [float(exact[0, 0]), float(exact[0, 2]), float(exact[0, 1])],
                    "eigenvalues": eigenvalues.flip(0).tolist(),
                    "off, of samples": relative(drawn, exact),
                }
        return {
            "variances": variances,
            "ranks": ranks,
            "off 4cos²(2πm/r)": values,
            "r = 5": five,
            "samples": self.samples,
        }

    @leg("definitions/start")
    def start(self, run: Run) -> dict[str, Any]:
        """Variance times fan-in of every layer over the networks, in standard errors off s; biases; the labels' spread."""
        drawn: dict[str, list[Tensor]] = {}
        biases = 0
        for seed in self.seeds_from(run.seed):
            model = self.task.network(self.scale, seed)
            biases += sum(name.endswith("bias") for name, _ in model.named_parameters())
            for name, W in weights_of(dict(model.named_parameters())).items():
                drawn.setdefault(name, []).append(W.flatten() * W.shape[1] ** 0.5)
        variances, off = {}, {}
        for name, parts in drawn.items():
            entries, s = torch.cat(parts), self.scale if name == "layer1" else 1.0
            variances[name] = float(entries.square().mean())
            off[name] = (variances[name] / s - 1) / (2 / len(entries)) ** 0.5
        spreads = [
            float(self.task.split(seed).train.y.double().std(correction=0)) for seed in self.seeds_from(run.seed)
        ]
        return {"variances": variances, "standard errors off": off, "biases": biases, "label spreads": spreads}

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
        seeds = self.seeds_from(run.seed)
        measures = {"uncentred": correlation(None)}
        followed = follow(task, variance, seeds, measures, lr=self.lr, steps=self.steps, device=run.device)
        members: list[dict[str, Any]] = []
        matrices: list[np.ndarray] = []
        for i, (model, split, seed) in enumerate(zip(finals(followed.ensemble), followed.splits, seeds)):
            initial = task.network(variance, seed).double().eval()
            features = feature_matrices(model, split.train.x.double(), initial=initial, dtype=torch.float64)
            layer, exact = features["layer1"], split.extras["egop"].double()
            member = {
                "train_loss": float(followed.losses["train"][i, -1]),
                "test_loss": float(followed.losses["test"][i, -1]),
                "start": followed.values["uncentred"][i, 0].tolist(),
                "end": followed.values["uncentred"][i, -1].tolist(),
                "layers": {name: of_layer(features[name], self.draws, seed) for name in LAYERS},
                "egop": {"agop": matrix_correlation(layer.agop, exact), "nfm": matrix_correlation(layer.nfm, exact)},
            }
            members.append(rounded(member, 6))
            if not matrices:
                matrices = [m.numpy() for m in (exact, layer.nfm, layer.agop, random_agop(layer, seed))]
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


def random_agop(layer: LayerFeatures, seed: int) -> Tensor:
    """`WᵀQW` for one Q with K's spectrum and random eigenvectors."""
    values = torch.linalg.eigvalsh(layer.ptk)
    draw = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(len(values), len(values), generator=draw, dtype=torch.float64)).Q
    W = layer.weight
    assert W is not None
    return W.T @ (basis * values) @ basis.T @ W


def gradient_outer_product(model: nn.Module, x: Tensor, layer: str) -> Float64[Tensor, "in in"]:
    """The AGOP by plain autograd: the mean over samples of the outer product of gradients by the input of `layer`."""
    names = [name for name, _ in model.named_children()]
    hidden = x.double()
    for name in names[: names.index(layer)]:
        hidden = model.get_submodule(name)(hidden)
    hidden = hidden.detach().requires_grad_()
    rest = hidden
    for name in names[names.index(layer) :]:
        rest = model.get_submodule(name)(rest)
    (gradients,) = torch.autograd.grad(rest.sum(), hidden)
    return gradients.T @ gradients / len(x)


def ring_eigenvalues(r: int) -> Float64[Tensor, " r"]:
    """`4 cos²(2πm/r)`, in order; for r = 2, where both neighbours are one, 4 twice."""
    return (4 * torch.cos(2 * torch.pi * torch.arange(r, dtype=torch.float64) / r).square()).sort().values


def least(matrix: Tensor) -> float:
    """The least eigenvalue over the largest."""
    values = torch.linalg.eigvalsh(matrix)
    return float(values[0] / values[-1])
