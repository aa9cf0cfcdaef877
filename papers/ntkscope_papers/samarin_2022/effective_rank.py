"""Samarin, Roth & Belius (2022), section 4.2: effective rank and singular values of the Jacobian at growing width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from matplotlib.figure import Figure
from torch import Tensor, nn

from ntkscope.core import Record
from ntkscope.kernels import Tangent
from ntkscope.linalg import effective_rank, estimate_effective_rank
from ntkscope.linalg.spectra.spectrum import entropy_rank
from ntkscope_papers.framework import Experiment, Reading, Run, claim, drawing, figure, lacking, leg
from ntkscope_papers.samarin_2022.linearized_alexnet import SIDE, STAND_IN, enlarged_alexnet
from ntkscope_papers.samarin_2022.linearized_claims import parameters
from ntkscope_papers.samarin_2022.readings import by_width
from ntkscope_papers.shared.lenet_tasks import Tasks, tasks_of

DRAWN = 120  # singular values of a spectrum that are kept, evenly spaced in their rank
FULL = 6000
DIGITS = ("standard", "shifted")


@dataclass(frozen=True)
class EffectiveRanks(Experiment):
    """Linearised CNNs, Figures 6 and 7: effective rank and singular values of LeNet's and AlexNet's Jacobians by width.

    `items` images with ten outputs each; `large` images for the estimate by Lanczos. Optional widths run when named.
    """

    name = "effective-rank"
    free = ("memory", "optional", "alexnet_optional")

    dataset: str = "mnist"
    colour: str = "cifar10"
    enlarge: int = 1
    items: int = 600
    large: int = 6000
    widths: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 25.0)
    optional: tuple[float, ...] = (60.0,)
    large_widths: tuple[float, ...] = (1.0, 10.0)
    alexnet_widths: tuple[float, ...] = (1.0, 2.0)
    alexnet_optional: tuple[float, ...] = (3.0, 4.0)
    side: int = SIDE
    memory: str = "100GiB"

    smoke = {
        **{"dataset": "digits", "colour": "digits", "enlarge": 3, "items": 10, "large": 12, "memory": "1GiB"},
        **{"widths": (1.0, 2.0), "optional": (), "large_widths": (1.0,)},
        **{"alexnet_widths": (0.05,), "alexnet_optional": (), "side": 64},
    }

    def prepare(self, run: Run) -> Tasks:
        known = {"standard": (self.dataset, False), "shifted": (self.dataset, True), "colour": (self.colour, False)}
        return tasks_of(known, root=run.root, test=10, enlarge=self.enlarge, seed=run.seed)

    @leg(
        "lenet/{1}/x{0:g}",
        over=lambda self: product((*self.widths, *self.optional), DIGITS),
        optional=lambda self, width, name: width in self.optional,
    )
    def lenet(self, run: Run, width: float, name: str) -> dict[str, Any]:
        """The spectrum of LeNet's Jacobian."""
        task = run.data(name)
        model, x = task.lenet(width, task.classes, run.seed), task.take(self.items).fixed().x
        return self.spectrum(run, model, x, torch.float64)

    @leg("lanczos/{1}/x{0:g}", over=lambda self: product(self.large_widths, DIGITS))
    def lanczos(self, run: Run, width: float, name: str) -> dict[str, Any]:
        """Both readings for more rows than can be decomposed, by Lanczos, with their standard errors."""
        task = run.data(name)
        model, x = task.lenet(width, task.classes, run.seed), task.take(self.large).fixed().x
        K = self.tangent(run, model, torch.float64).kernel("entk", x.to(run.device))
        found: dict[str, Any] = {"rows": K.shape[0], "parameters": sum(p.numel() for p in model.parameters())}
        for reading, of in (("of the Jacobian", "features"), ("of the kernel", "kernel")):
            rank = estimate_effective_rank(K, of)  # type: ignore[arg-type]
            found[reading], found[f"{reading}, standard error"] = rank.value, rank.standard_error
        return found

    @leg(
        "alexnet/x{:g}",
        over=lambda self: (*self.alexnet_widths, *self.alexnet_optional),
        optional=lambda self, width: width in self.alexnet_optional,
    )
    def alexnet(self, run: Run, width: float) -> dict[str, Any]:
        """The spectrum of AlexNet's Jacobian."""
        x = run.data("colour").take(self.items).train.x
        model = enlarged_alexnet(width, run.seed, side=self.side, channels=x.shape[1])
        return self.spectrum(run, model, x, torch.float32)

    def spectrum(self, run: Run, model: nn.Module, x: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        """That of the empirical NTK with all pairs of outputs."""
        K = self.tangent(run, model, dtype).kernel("entk", x.to(run.device)).dense().double()
        size = sum(p.numel() for p in model.parameters())
        return {**spectrum((K + K.T) / 2), "parameters": size, "precision": str(dtype)[6:]}

    def tangent(self, run: Run, model: nn.Module, dtype: torch.dtype) -> Tangent:
        return Tangent(model.to(run.device), dtype=dtype, device=run.device, memory=self.memory, certify="sampled")

    @claim("linearized-effective-rank-def", "Section 4.2", "exp of the entropy of singular values that sum to 1")
    def definition(self, record: Record) -> Reading:
        """n for the identity, 1 for rank one, at most the rank; both readings reported"""
        steps = torch.arange(1.0, 6.0)
        low = torch.outer(steps, steps) + torch.diag(torch.tensor([1.0, 1.0, 0, 0, 0]))
        found = {
            "identity of 5": round(effective_rank(torch.eye(5)), 6),
            "ones": round(effective_rank(torch.ones(5, 5)), 6),
            "rank 3": round(effective_rank(low.double()), 6),
            "rank 3, of its features": round(effective_rank(low.double(), of="features"), 6),
        }
        holds = found["identity of 5"] == 5 and found["ones"] == 1 and found["rank 3, of its features"] <= 3 + 1e-6
        note = "the figure's wording is read as the Jacobian's; the kernel's beside it"
        return Reading(found, holds, note, exact=True)

    @claim("linearized-effective-rank-lenet", "Figure 6", {"samples": 600, "full_rank": 6000})
    def lenet_ranks(self, record: Record) -> Reading:
        """rises over x1, x2, x5, x10; all below 3000; rises less on shifted digits"""
        rows, shifted = (by_width(record, f"lenet/{name}/") for name in DIGITS)
        both_widths = [w for w in rows if w in shifted]
        if len(both_widths) < 2:
            return lacking("lenet")
        first, last = both_widths[0], both_widths[-1]
        measured: dict[str, Any] = {"standard": both(rows), "shifted": both(shifted)}
        holds = True
        for reading in ("of the Jacobian", "of the kernel"):
            values = [row[reading] for row in rows.values()]
            growth = {name: of[last][reading] / of[first][reading] for name, of in zip(DIGITS, (rows, shifted))}
            measured[f"growth {first} to {last}, {reading}"] = {k: round(v, 3) for k, v in growth.items()}
            if reading == "of the Jacobian":
                holds = rises(values) and max(values) < FULL / 2 and growth["shifted"] < growth["standard"]
        large = {name: both(by_width(record, f"lanczos/{name}/")) for name in DIGITS}
        note = f"60,000 rows, by Lanczos: {large}" if by_width(record, "lanczos/standard/") else ""
        return Reading(measured, holds, note)

    @claim(
        "linearized-effective-rank-alexnet",
        "Figure 6",
        "far below 6000, rises marginally with width",
        stand_in=STAND_IN,
    )
    def alexnet_ranks(self, record: Record) -> Reading:
        """rises with width, below 3000"""
        rows = by_width(record, "alexnet/")
        if len(rows) < 2:
            return lacking("alexnet")
        values = [row["of the Jacobian"] for row in rows.values()]
        return Reading(both(rows), rises(values) and max(values) < FULL / 2)

    @claim(
        "linearized-singular-values",
        "Figure 7",
        "width raises the smallest non-vanishing singular values and lowers the condition number",
    )
    def singular_values(self, record: Record) -> Reading:
        """5th percentile of the non-zero ones over the largest rises from x1 to x10; condition number x1/x10 above 1"""
        rows = by_width(record, "lenet/standard/")
        if "x1" not in rows or "x10" not in rows:
            return lacking("lenet/standard/x1", "lenet/standard/x10")
        found = {w: {k: float(f"{row[k]:.4g}") for k in ("5th percentile", "condition")} for w, row in rows.items()}
        ratio = rows["x1"]["condition"] / rows["x10"]["condition"]
        return Reading(found, rows["x10"]["5th percentile"] > rows["x1"]["5th percentile"] and ratio > 1)

    @claim(
        "linearized-rank-deficiency",
        "Section 4.2",
        {"rows": {"CIFAR-10": 500_000, "MNIST": 600_000}, "params": {"x1": 61_706, "x2": 244_362, "x5": 1_518_090}},
    )
    def rank_deficiency(self, record: Record) -> Reading:
        """parameters at x1 and x2 below, at x5 above the rows"""
        found = {f"x{w}": parameters(width=w) for w in (1, 2, 5)}
        return Reading(found, found["x1"] < found["x2"] < 500_000 < 600_000 < found["x5"], exact=True)

    @figure
    def ranks(self, record: Record) -> Figure:
        """Effective ranks by width."""
        drawn, axes = drawing.canvas(1, 2, width=5.0)
        named = {"MNIST": "lenet/standard/", "shifted": "lenet/shifted/", "AlexNet": "alexnet/"}
        found = {label: {float(w[1:]): row for w, row in by_width(record, named[label]).items()} for label in named}
        for axis, reading in zip(axes, ("of the Jacobian", "of the kernel")):
            for i, (label, rows) in enumerate(found.items()):
                values = [row[reading] for row in rows.values()]
                axis.plot(list(rows), values, "o-", color=drawing.COLOURS[i], markersize=4, label=label)
            axis.set_title(f"singular values {reading}")
            drawing.width_factors(axis, sorted({width for rows in found.values() for width in rows}))
            drawing.label(axis, y="effective rank of 600 images (10 rows each)", legend=True)
        return drawn

    @figure
    def spectra(self, record: Record) -> Figure:
        """Singular values of the Jacobian, by width."""
        drawn, panels = drawing.canvas(1, 2, width=5.0)
        for axis, name in zip(panels, DIGITS):
            for i, (width, row) in enumerate(by_width(record, f"lenet/{name}/").items()):
                colour = drawing.COLOURS[i % len(drawing.COLOURS)]
                axis.plot(row["ranks"], np.maximum(row["values"], 1e-12), color=colour, linewidth=1.2, label=width)
            title, y = f"LeNet, {name} digits", "singular value of the Jacobian"
            drawing.label(axis, title=title, x="rank", y=y, log="y", legend=True)
        return drawn


def spectrum(K: Float64[Tensor, "n n"]) -> dict[str, Any]:
    """Both readings of the effective rank, and the singular values of the Jacobian: some of them, how they end."""
    eigenvalues = torch.linalg.eigvalsh(K).flip(0).clamp_min(0)
    floor = len(K) * torch.finfo(K.dtype).eps * float(eigenvalues[0])
    kept = eigenvalues[eigenvalues > floor].sqrt()
    at = np.unique(np.linspace(0, len(eigenvalues) - 1, min(DRAWN, len(eigenvalues))).round().astype(int))
    return {
        "rows": len(K),
        "of the Jacobian": entropy_rank(eigenvalues.sqrt()),
        "of the kernel": entropy_rank(eigenvalues),
        "non-zero": len(kept),
        "largest": float(kept[0]),
        "smallest": float(kept[-1]),
        "5th percentile": float(kept.quantile(0.05) / kept[0]),
        "condition": float(kept[0] / kept[-1]),
        "ranks": at.tolist(),
        "values": [float(f"{v:.5g}") for v in eigenvalues.sqrt()[torch.from_numpy(at)].tolist()],
    }


def rises(values: list[float]) -> bool:
    return len(values) > 1 and all(a < b for a, b in pairwise(values))


def both(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The two readings by width."""
    return {name: {w: round(row[name], 1) for w, row in rows.items()} for name in ("of the Jacobian", "of the kernel")}
