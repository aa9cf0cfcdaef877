"""Samarin, Roth & Belius (2022), section 4.2: effective rank and singular values of the Jacobian at growing width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from ntkscope.core import Record
from ntkscope.kernels import Tangent
from ntkscope.linalg import effective_rank, estimate_effective_rank
from ntkscope.linalg.spectrum import entropy_rank
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Reading, claim, lacking
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, run_legs
from ntkscope_papers.samarin_2022.alexnet import SIDE, STAND_IN, enlarged_alexnet
from ntkscope_papers.samarin_2022.linearized_claims import parameters
from ntkscope_papers.shared.lenet_tasks import Task, load_task

NAME = "effective-rank"
DRAWN = 120  # singular values of a spectrum that are kept, evenly spaced in their rank
FULL = 6000


@dataclass(frozen=True)
class EffectiveRanks(Experiment):
    """Linearised CNNs, Figures 6 and 7: effective rank and singular values of LeNet's and AlexNet's Jacobians by width.

    `items` images with ten outputs each; `large` images for the estimate by Lanczos. Optional widths run when named.
    """

    name = NAME
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
        "dataset": "digits",
        "colour": "digits",
        "enlarge": 3,
        "items": 10,
        "large": 12,
        "widths": (1.0, 2.0),
        "optional": (),
        "large_widths": (1.0,),
        "alexnet_widths": (0.05,),
        "alexnet_optional": (),
        "side": 64,
        "memory": "1GiB",
    }

    def measure(self, run: Run) -> None:
        tasks = {
            "standard": load_task(
                self.dataset, shifted=False, root=run.root, test=10, enlarge=self.enlarge, seed=run.seed
            ),
            "shifted": load_task(
                self.dataset, shifted=True, root=run.root, test=10, enlarge=self.enlarge, seed=run.seed
            ),
            "colour": load_task(
                self.colour, shifted=False, root=run.root, test=10, enlarge=self.enlarge, seed=run.seed
            ),
        }
        run_legs(run.record, legs(self, tasks, run.seed, run.device), self.legs, progress=run.progress)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


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


def measured(model: nn.Module, x: Tensor, device: torch.device, memory: str, dtype: torch.dtype) -> dict[str, Any]:
    """The spectrum of the empirical NTK with all pairs of outputs."""
    tangent = Tangent(model.to(device), dtype=dtype, device=device, memory=memory, certify="sampled")
    K = tangent.kernel("entk", x.to(device)).dense().double()
    found = spectrum((K + K.T) / 2)
    return {**found, "parameters": sum(p.numel() for p in model.parameters()), "precision": str(dtype)[6:]}


def estimated(model: nn.Module, x: Tensor, device: torch.device, memory: str) -> dict[str, Any]:
    """Both readings for more rows than can be decomposed, by Lanczos, with their standard errors."""
    tangent = Tangent(model.to(device), dtype=torch.float64, device=device, memory=memory, certify="sampled")
    K = tangent.kernel("entk", x.to(device))
    found: dict[str, Any] = {"rows": K.shape[0], "parameters": sum(p.numel() for p in model.parameters())}
    for name, of in (("of the Jacobian", "features"), ("of the kernel", "kernel")):
        rank = estimate_effective_rank(K, of)  # type: ignore[arg-type]
        found[name], found[f"{name}, standard error"] = rank.value, rank.standard_error
    return found


def legs(config: EffectiveRanks, tasks: Mapping[str, Task], seed: int, device: torch.device) -> list[Leg]:
    """Every measurement."""
    found: list[Leg] = []

    def lenet(name: str, width: float, items: int, estimate: bool) -> dict[str, Any]:
        task = tasks[name]
        model, x = task.lenet(width, task.classes, seed), task.take(items).fixed().x
        if estimate:
            return estimated(model, x, device, config.memory)
        return measured(model, x, device, config.memory, torch.float64)

    def alexnet(width: float) -> dict[str, Any]:
        x = tasks["colour"].take(config.items).train.x
        model = enlarged_alexnet(width, seed, side=config.side, channels=x.shape[1])
        return measured(model, x, device, config.memory, torch.float32)

    for width in (*config.widths, *config.optional):
        for name in ("standard", "shifted"):
            compute = partial(lenet, name, width, config.items, False)
            found.append(Leg(f"lenet/{name}/x{width:g}", compute, optional=width in config.optional))
    found += [
        Leg(f"lanczos/{name}/x{width:g}", partial(lenet, name, width, config.large, True))
        for width in config.large_widths
        for name in ("standard", "shifted")
    ]
    found += [
        Leg(f"alexnet/x{width:g}", partial(alexnet, width), optional=width in config.alexnet_optional)
        for width in (*config.alexnet_widths, *config.alexnet_optional)
    ]
    return found


# -- verdicts ---------------------------------------------------------------------------------------------------------


def by_width(record: Record, prefix: str) -> dict[str, Mapping[str, Any]]:
    """Results by width, ascending."""
    found = {key.removeprefix(prefix): value for key, value in record.metrics.items() if key.startswith(prefix)}
    return dict(sorted(found.items(), key=lambda item: float(item[0][1:])))


def rises(values: list[float]) -> bool:
    return len(values) > 1 and all(a < b for a, b in pairwise(values))


def both(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The two readings by width."""
    return {name: {w: round(row[name], 1) for w, row in rows.items()} for name in ("of the Jacobian", "of the kernel")}


@claim(
    "linearized-effective-rank-def",
    "Section 4.2",
    "exp of the entropy of singular values that sum to 1",
    "n for the identity, 1 for rank one, at most the rank; both readings reported",
)
def _definition(config: Any, record: Record) -> Reading:
    low = torch.outer(torch.arange(1.0, 6.0), torch.arange(1.0, 6.0)) + torch.diag(torch.tensor([1.0, 1.0, 0, 0, 0]))
    found = {
        "identity of 5": round(effective_rank(torch.eye(5)), 6),
        "ones": round(effective_rank(torch.ones(5, 5)), 6),
        "rank 3": round(effective_rank(low.double()), 6),
        "rank 3, of its features": round(effective_rank(low.double(), of="features"), 6),
    }
    holds = found["identity of 5"] == 5 and found["ones"] == 1 and found["rank 3, of its features"] <= 3 + 1e-6
    return Reading(found, holds, "the figure's wording is read as the Jacobian's; the kernel's beside it", exact=True)


@claim(
    "linearized-effective-rank-lenet",
    "Figure 6",
    {"samples": 600, "full_rank": 6000},
    "rises over x1, x2, x5, x10; all below 3000; rises less on shifted digits",
)
def _lenet(config: Any, record: Record) -> Reading:
    rows, shifted = (by_width(record, f"lenet/{name}/") for name in ("standard", "shifted"))
    both_widths = [w for w in rows if w in shifted]
    if len(both_widths) < 2:
        return lacking("lenet")
    first, last = both_widths[0], both_widths[-1]
    measured_: dict[str, Any] = {"standard": both(rows), "shifted": both(shifted)}
    holds = True
    for reading in ("of the Jacobian", "of the kernel"):
        values = [row[reading] for row in rows.values()]
        growth = {name: r[last][reading] / r[first][reading] for name, r in (("standard", rows), ("shifted", shifted))}
        measured_[f"growth {first} to {last}, {reading}"] = {k: round(v, 3) for k, v in growth.items()}
        if reading == "of the Jacobian":
            holds = rises(values) and max(values) < FULL / 2 and growth["shifted"] < growth["standard"]
    large = {name: both(by_width(record, f"lanczos/{name}/")) for name in ("standard", "shifted")}
    note = f"60,000 rows, by Lanczos: {large}" if by_width(record, "lanczos/standard/") else ""
    return Reading(measured_, holds, note)


@claim(
    "linearized-effective-rank-alexnet",
    "Figure 6",
    "far below 6000, rises marginally with width",
    "rises with width, below 3000",
    stand_in=STAND_IN,
)
def _alexnet(config: Any, record: Record) -> Reading:
    rows = by_width(record, "alexnet/")
    if len(rows) < 2:
        return lacking("alexnet")
    values = [row["of the Jacobian"] for row in rows.values()]
    return Reading(both(rows), rises(values) and max(values) < FULL / 2)


@claim(
    "linearized-singular-values",
    "Figure 7",
    "width raises the smallest non-vanishing singular values and lowers the condition number",
    "5th percentile of the non-zero ones over the largest rises from x1 to x10; condition number x1/x10 above 1",
)
def _values(config: Any, record: Record) -> Reading:
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
    "parameters at x1 and x2 below, at x5 above the rows",
)
def _deficiency(config: Any, record: Record) -> Reading:
    found = {f"x{w}": parameters(width=w) for w in (1, 2, 5)}
    return Reading(found, found["x1"] < found["x2"] < 500_000 < 600_000 < found["x5"], exact=True)


def draw(record: Record) -> dict[str, Any]:
    """Effective ranks by width, and the spectra."""
    figure, axes = drawing.canvas(1, 2, width=5.0)
    named = {"MNIST": "lenet/standard/", "shifted": "lenet/shifted/", "AlexNet": "alexnet/"}
    found = {label: {float(w[1:]): row for w, row in by_width(record, named[label]).items()} for label in named}
    for axis, reading in zip(axes, ("of the Jacobian", "of the kernel")):
        for i, (label, rows) in enumerate(found.items()):
            values = [row[reading] for row in rows.values()]
            axis.plot(list(rows), values, "o-", color=drawing.COLOURS[i], markersize=4, label=label)
        axis.set_title(f"singular values {reading}")
        drawing.width_factors(axis, sorted({width for rows in found.values() for width in rows}))
        drawing.label(axis, y="effective rank of 600 images (10 rows each)", legend=True)
    spectra, panels = drawing.canvas(1, 2, width=5.0)
    for axis, name in zip(panels, ("standard", "shifted")):
        for i, (width, row) in enumerate(by_width(record, f"lenet/{name}/").items()):
            colour = drawing.COLOURS[i % len(drawing.COLOURS)]
            axis.plot(row["ranks"], np.maximum(row["values"], 1e-12), color=colour, linewidth=1.2, label=width)
        drawing.label(axis, title=f"LeNet, {name} digits", x="rank", y="singular value of the Jacobian", log="y")
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return {"ranks": figure, "spectra": spectra}
