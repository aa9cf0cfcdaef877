"""Table 4 of the surrogate paper: what each kernel costs on one machine, and how close a random projection comes.

Seconds are measured at several sizes and carried on to the paper's 50,000 points by what they are made of, a part that grows
with the points and one that grows with the pairs. At 2,000 points no projection to 10,240 dimensions can save anything.

Legs `time`, `dense`, `outputs` and `residual`; estimated seconds on one H200, alone: 60, 40, 30 and 60, after 20 of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from ntkscope.core import Claim, Record
from ntkscope.kernels import kernel
from ntkscope.machines.computing import clock
from ntkscope_papers.engel_2023.kernel_pairs import TITLES
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published
from ntkscope_papers.framework.experiment import Experiment, Run
from ntkscope_papers.framework.legs import Leg, not_run, run_legs
from ntkscope_papers.shared.images import build_network, load_images, residual_recipe
from ntkscope_papers.shared.networks import trained

NAME = "kernel-cost"
RESNET18 = 11_173_962  # parameters
PAPER_POINTS = 50_000
TIMED = ("trntk", "proj-trntk", "proj-pntk", "em", "ck")  # trNTK0 is trNTK without its division
COUNTS = (
    "erratum: by these counts a projection saves 4.9 times on ResNet-18 and costs 1.2 times more on BERT, where Table 4 has"
    " 347 and 3270 times: its trNTK was computed layer by layer"
)
HOURS = {"trntk": 389.0, "proj-trntk": 1.12, "proj-pntk": 7.4 / 60}  # ResNet-18, one A100
SAVING = "K < N P / (N + P)"
# the least `faster` of a tail that still counts as exponential: at 80,000 residuals exponential ones lie within 0.15 of 0,
# those of Student's t with 3 or 5 degrees of freedom between -0.4 and -0.9
BENT = -0.3

PUBLISHED = {
    claim.id.removeprefix("surrogate-"): claim
    for claim in (
        Published(
            "surrogate-table4-times",
            "Table 4",
            {"hours": HOURS},
            "trNTK > proj-trNTK > proj-pNTK, carried on to 50,000 points",
        ),
        Published("surrogate-table4-ratio-equals-classes", "Table 4", {"ratio": 9.08, "classes": 10}, "0.6 C to 1.2 C"),
        Published(
            "surrogate-jl-preserves", "Section 3", "the kernel is nearly unchanged", "std of entries * sqrt(K) < 1"
        ),
        Published(
            "surrogate-projection-residual-exponential",
            "Section 5, Figure 4a",
            "the histogram of residuals falls at an exponential rate",
            "log-density falls at least linearly in |residual| (a Gaussian falls faster)",
        ),
        Published(
            "surrogate-cost-formulas",
            "Section 3",
            {"trNTK": "N C FP + N² C P", "proj-trNTK": "N C FP + C N² K + C N K P"},
            "measured time is linear in C: log-log slope 0.8 to 1.2",
        ),
        Published(
            "surrogate-projection-saves-when", "Section 3", {"condition": SAVING}, "predicted ratio > 1 exactly then"
        ),
        Published("surrogate-memory-factor", "Section 3", {"factor": "C²"}, "(N C)² / N² = C²"),
    )
}


@dataclass(frozen=True)
class KernelCost(Experiment):
    """Surrogate paper, Table 4: seconds per kernel on one machine, time against outputs, residuals of random projections.

    `points`: of the timed kernels; `dims`: sizes of the projections whose residuals are measured.

    `sketch`: the kind of the timed projections; those of the legs `dense` and `outputs` are dense, as the paper's.
    """

    name = NAME
    free = ("memory", "repeats")

    dataset: str = "cifar10"
    model: str = "resnet18"
    width: float = 1.0
    train_items: int | None = None
    epochs: int = 10
    batch: int = 512
    lr: float = 0.4
    augment: bool = True
    points: tuple[int, ...] = (1000, 2000, 4000)
    dense_points: int = 400
    sketch: str = "kronecker"
    residual_points: int = 400
    dim: int = 10240
    dims: tuple[int, ...] = (64, 256, 1024, 4096, 10240)
    outputs: tuple[int, ...] = (1, 2, 5, 10)
    output_points: int = 1000
    precision: str = "bf16"
    memory: str = "64GiB"
    repeats: int = 3

    smoke = {
        "dataset": "digits",
        "model": "small_cnn",
        "train_items": 300,
        "epochs": 4,
        "batch": 50,
        "lr": 0.1,
        "augment": False,
        "points": (50, 100),
        "dense_points": 50,
        "residual_points": 60,
        "dim": 512,
        "dims": (32, 128, 512),
        "outputs": (1, 2, 5, 10),
        "output_points": 60,
        "memory": "2GiB",
    }

    def measure(self, run: Run) -> None:
        split = load_images(self.dataset, root=run.root, train=self.train_items, test=10)
        how = residual_recipe(epochs=self.epochs, batch=self.batch, lr=self.lr, augment=self.augment)

        def build() -> torch.nn.Module:
            return build_network(self.model, split, width=self.width, seed=run.seed)

        @cache
        def network() -> torch.nn.Module:
            return trained(
                run.record, self.model, build, split.train, how, device=run.device, seed=run.seed, progress=run.progress
            )

        run.record.put(parameters=sum(p.numel() for p in build().parameters()), classes=len(split.classes))
        x = split.train.x[: max(*self.points, self.dense_points, self.output_points, self.residual_points)].to(
            run.device
        )
        shared: dict[str, Any] = {"memory": self.memory}
        precision: dict[str, Any] = {"precision": self.precision if run.device.type == "cuda" else "exact"}

        def timed(name: str, items: int, **options: Any) -> dict[str, Any]:
            """The least seconds of some repeats, the kernel formed."""
            tangent: dict[str, Any] = {} if name in ("em", "ck") else precision
            model, seconds = network(), []
            for _ in range(self.repeats):
                began = clock(model)
                kernel(name, model, x[:items], **shared, **tangent, **options).dense()
                seconds.append(clock(model) - began)
            return {"best": min(seconds), "all": seconds, "items": items}

        few = x[: self.residual_points]
        exact: list[torch.Tensor] = []

        def residual(dim: int) -> Mapping[str, Any]:
            model = network()
            if not exact:
                exact.append(kernel("trntk", model, few, **shared, **precision).dense().double())
            made = kernel("proj-trntk", model, few, dim=dim, seed=run.seed, **shared, **precision).dense().double()
            above = torch.triu_indices(len(few), len(few), 1, device=made.device)
            values = (made - exact[0])[above[0], above[1]].cpu().numpy()
            run.record.array(f"residual-{dim}", values)
            return residual_figures(values, dim)

        factored: dict[str, Any] = {"dim": self.dim, "kind": self.sketch}
        legs = [
            Leg(f"time/{name}/{n}", partial(timed, name, n, **(factored if name.startswith("proj") else {})))
            for name in TIMED
            for n in self.points
        ]
        dense = ("proj-trntk", "proj-pntk")
        legs += [Leg(f"dense/{name}", partial(timed, name, self.dense_points, dim=self.dim)) for name in dense]
        for count in self.outputs:
            for name, extra in (("trntk", {}), ("proj-trntk", {"dim": min(self.dim, 1024)})):
                some: dict[str, Any] = {**extra, "outputs": list(range(count))}
                legs.append(Leg(f"outputs/{name}/{count}", partial(timed, name, self.output_points, **some)))
        legs += [Leg(f"residual/{dim}", partial(residual, dim)) for dim in self.dims]
        run_legs(run.record, legs, self.legs, progress=run.progress)

    @classmethod
    def published(cls) -> tuple[Published, ...]:
        return tuple(PUBLISHED.values())

    def judge(self, record: Record, difference: str) -> Iterator[Claim]:
        return judge(self, record, difference)

    def draw(self, record: Record) -> Mapping[str, Any]:
        return draw(record)


def operations(n: int, c: int, p: int, k: int, forward: float | int = 0) -> dict[str, float | int]:
    """The paper's operation counts for N points, C outputs, P parameters, K dimensions, and a forward pass.

    >>> found = operations(50_000, 10, 11_173_962, 10_240)
    >>> round(found["trNTK"] / found["proj-trNTK"], 1)
    4.9
    """
    return {
        "eNTK": n * c * forward + n**2 * c**2 * p,
        "pNTK": n * forward + n**2 * p,
        "trNTK": n * c * forward + n**2 * c * p,
        "proj-pNTK": n * forward + n**2 * k + n * k * p,
        "proj-trNTK": n * c * forward + c * n**2 * k + c * n * k * p,
    }


def residual_figures(values: np.ndarray, dim: int) -> dict[str, float]:
    """Spread, excess kurtosis and, over bins of |residual| beyond one standard deviation, the slope of the log-density.

    The slope is in units of the standard deviation; `faster` is how much steeper the outer half is than the inner one:
    0 for an exponential, positive for a Gaussian.
    """
    std = float(values.std())
    size = np.abs(values) / std
    counts, edges = np.histogram(size, bins=np.arange(1.0, max(3.0, np.quantile(size, 0.9995)) + 0.25, 0.25))
    middle, kept = (edges[1:] + edges[:-1]) / 2, counts > 5
    slopes = np.diff(np.log(counts[kept])) / np.diff(middle[kept]) if kept.sum() > 2 else np.array([np.nan])
    half = len(slopes) // 2
    return {
        "std": std,
        "std sqrt K": std * math.sqrt(dim),
        "largest": float(np.abs(values).max()),
        "kurtosis": float(((values - values.mean()) ** 4).mean() / values.var() ** 2 - 3),
        "slope": float(slopes.mean()),
        "faster": float(slopes[:half].mean() - slopes[half:].mean()) if half else float("nan"),
    }


def judge(config: KernelCost, record: Record, difference: str) -> Iterator[Claim]:
    """Order and ratio of times, spread and tail of residuals, and the paper's formulas."""
    c, p = int(record.metrics.get("classes", 10)), int(record.metrics.get("parameters", RESNET18))

    def claim(name: str, measured: Any, holds: bool | None, note: str = "", exact: bool = False) -> Claim:
        return PUBLISHED[name].judged(measured, holds, difference="" if exact else difference, note=note)

    def lacks(name: str, *keys: str) -> Claim | None:
        absent = [key for key in keys if key not in record.metrics]
        return claim(name, None, None, not_run(NAME, absent)) if absent else None

    times = [f"time/{k}/{n}" for k in TIMED for n in config.points]
    yield lacks("table4-times", *times) or _order(claim, config, record)
    ratio = ["dense/proj-trntk", "dense/proj-pntk"]
    yield lacks("table4-ratio-equals-classes", *ratio, *times) or _ratio(claim, config, record, c)
    residuals = [f"residual/{dim}" for dim in config.dims]
    yield lacks("jl-preserves", *residuals) or _spread(claim, config, record)
    yield lacks("projection-residual-exponential", f"residual/{max(config.dims)}") or _tail(claim, config, record)
    counted = [f"outputs/{name}/{count}" for name in ("trntk", "proj-trntk") for count in config.outputs]
    yield lacks("cost-formulas", *counted) or _slopes(claim, config, record)
    grid = [(n, k) for n in (100, 8551, 50_000) for k in (64, 1024, 10_240, 40_000)]
    agrees = all(
        (operations(n, c, p, k)["trNTK"] > operations(n, c, p, k)["proj-trNTK"]) == (k < n * p / (n + p))
        for n, k in grid
    )
    found = {f"N={n}, K={k}": round(_saving(n, c, p, k), 3) for n, k in grid if k == 10_240}
    yield claim("projection-saves-when", found, agrees, COUNTS, exact=True)
    yield claim("memory-factor", {"factor": c**2, "classes": c}, (7 * c) ** 2 / 7**2 == c**2, exact=True)


def carried_on(points: Sequence[int], seconds: Sequence[float], to: int) -> float:
    """Seconds for more points: `a n + b n²` with a, b ≥ 0, fitted to the relative differences.

    >>> round(carried_on([1000, 2000, 4000], [3.0, 8.0, 24.0], 50_000))
    2600
    """
    n, t = np.asarray(points, dtype=float), np.asarray(seconds, dtype=float)
    found = nnls(np.stack([n, n**2], axis=1) / t[:, None], np.ones_like(t))[0]
    return float(found @ [to, to**2])


def _carried(config: KernelCost, record: Record) -> dict[str, float]:
    """Seconds of each kernel at the paper's points, and those of the dense projections, which grow with the points."""
    best = {key: value["best"] for key, value in record.metrics.items() if key.startswith(("time/", "dense/"))}
    found = {k: carried_on(config.points, [best[f"time/{k}/{n}"] for n in config.points], PAPER_POINTS) for k in TIMED}
    dense = ("proj-trntk", "proj-pntk")
    return found | {
        f"{k}, dense": best[f"dense/{k}"] / config.dense_points * PAPER_POINTS for k in dense if f"dense/{k}" in best
    }


def _order(claim: Any, config: KernelCost, record: Record) -> Claim:
    at = {k: round(value, 1) for k, value in _carried(config, record).items()}
    largest = max(config.points)
    measured = {k: round(record.metrics[f"time/{k}/{largest}"]["best"], 3) for k in TIMED}
    note = (
        f"projections are {config.sketch}; those called dense are the paper's kind. Absolute hours are of another machine and a"
        " layer-wise program"
    )
    found: Claim = claim(
        "table4-times",
        {f"seconds at {largest} points": measured, f"seconds at {PAPER_POINTS} points, carried on": at},
        at["trntk"] > at["proj-trntk"] > at["proj-pntk"],
        note,
    )
    return found


def _ratio(claim: Any, config: KernelCost, record: Record, c: int) -> Claim:
    ratio = record.metrics["dense/proj-trntk"]["best"] / record.metrics["dense/proj-pntk"]["best"]
    own = [record.metrics[f"time/{k}/{max(config.points)}"]["best"] for k in ("proj-trntk", "proj-pntk")]
    found: Claim = claim(
        "table4-ratio-equals-classes",
        {"ratio, dense": round(ratio, 2), f"ratio, {config.sketch}": round(own[0] / own[1], 2), "classes": c},
        0.6 * c <= ratio <= 1.2 * c,
        "judged on the dense projections, which are the paper's. The forward pass, the random numbers of the projection, the"
        " probe and the checks are shared by all outputs, so the ratio stays below C",
    )
    return found


def _spread(claim: Any, config: KernelCost, record: Record) -> Claim:
    spread = {str(dim): round(record.metrics[f"residual/{dim}"]["std sqrt K"], 4) for dim in config.dims}
    found: Claim = claim("jl-preserves", {"std * sqrt(K)": spread}, all(value < 1 for value in spread.values()))
    return found


def _tail(claim: Any, config: KernelCost, record: Record) -> Claim:
    largest = record.metrics[f"residual/{max(config.dims)}"]
    tail = {key: round(largest[key], 4) for key in ("slope", "faster", "kurtosis", "std")}
    holds = largest["slope"] < 0 and largest["faster"] >= BENT
    found: Claim = claim("projection-residual-exponential", tail, holds)
    return found


def _slopes(claim: Any, config: KernelCost, record: Record) -> Claim:
    slopes, lines = {}, {}
    for name in ("trntk", "proj-trntk"):
        times = [record.metrics[f"outputs/{name}/{count}"]["best"] for count in config.outputs]
        slopes[name] = round(float(np.polyfit(np.log(config.outputs), np.log(times), 1)[0]), 3)
        lines[name] = [round(float(value), 3) for value in np.polyfit(config.outputs, times, 1)[::-1]]
    holds = all(0.8 <= slope <= 1.2 for slope in slopes.values())
    note = (
        "outputs share the forward pass, which the formula counts once for each, the probe and the checks; beyond those the"
        " time grows with the outputs"
    )
    found: Claim = claim(
        "cost-formulas", {"log-log slope": slopes, "seconds for all outputs, for each": lines}, holds, note
    )
    return found


def _saving(n: int, c: int, p: int, k: int) -> float:
    counts = operations(n, c, p, k)
    return counts["trNTK"] / counts["proj-trNTK"]


def draw(record: Record) -> dict[str, Any]:
    """Seconds per kernel, and histograms of residuals scaled by √K: one curve when the spread is 1/√K."""
    figure, axes = drawing.canvas(1, 3, width=4.4)
    points = record.config["points"]
    for i, k in enumerate(TIMED):
        there = [n for n in points if f"time/{k}/{n}" in record.metrics]
        if len(there) < 2:
            continue
        seconds = [record.metrics[f"time/{k}/{n}"]["best"] for n in there]
        colour = drawing.COLOURS[i % len(drawing.COLOURS)]
        axes[0].plot(there, seconds, "o-", color=colour, label=TITLES[k])
        axes[0].plot(
            [there[-1], PAPER_POINTS], [seconds[-1], carried_on(there, seconds, PAPER_POINTS)], "--", color=colour
        )
    drawing.label(axes[0], x="points; dashed: carried on", y="seconds", log="xy")
    if axes[0].lines:
        axes[0].legend()
    dims = [dim for dim in record.config["dims"] if f"residual-{dim}" in record.arrays]
    if not dims:
        return {"table4": figure}
    for i, dim in enumerate(dims):
        values = record.arrays[f"residual-{dim}"] * math.sqrt(dim)
        counts, edges = np.histogram(values, bins=60, density=True)
        colour = drawing.COLOURS[i % len(drawing.COLOURS)]
        axes[1].plot(
            (edges[1:] + edges[:-1]) / 2, np.where(counts > 0, counts, np.nan), color=colour, label=f"K = {dim}"
        )
    drawing.label(axes[1], x="(projected - exact) √K", y="density", log="y", legend=True)
    std = [record.metrics[f"residual/{dim}"]["std"] for dim in dims]
    axes[2].loglog(dims, std, "o-", color=drawing.COLOURS[0], label="measured")
    axes[2].loglog(dims, [std[0] * math.sqrt(dims[0] / dim) for dim in dims], "--", color="#999999", label="1/√K")
    axes[2].set_xticks(dims, [str(dim) for dim in dims])
    axes[2].minorticks_off()
    drawing.label(axes[2], x="K", y="standard deviation of residuals", legend=True)
    return {"table4": figure}
