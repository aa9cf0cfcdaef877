"""Figures of Table 2: τ and TAD by kernel, τ by ridge, log-odds; Figure 2's attributions by class; nearest training images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from ntkscope.core import Record
from ntkscope.explain import class_summary
from ntkscope_papers.engel_2023.kernel_pairs import COSINE, TITLES
from ntkscope_papers.engel_2023.table2_claims import TAD, TAU
from ntkscope_papers.framework import drawing

SHOWN = 4  # test images of which the nearest training images are drawn


def boxes(values: Float64[np.ndarray, "n c"], y: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "6 k c"]:
    """Of one test image's attributions by training class and output: mean, quartiles, median and whiskers."""
    found = class_summary(values, y)
    return np.stack([found.mean, found.q1, found.median, found.q3, found.low, found.high])


def panel(x_test: Tensor, x_train: Tensor, nearest: Int64[np.ndarray, "m k"]) -> UInt8[np.ndarray, "m k1 h w c"]:
    """A test image and its nearest training images, each stretched to the full range of brightness."""
    rows = []
    for at in range(min(SHOWN, len(x_test))):
        images = [x_test[at], *(x_train[int(i)] for i in nearest[at])]
        rows.append(np.stack([_bytes(image) for image in images]))
    return np.stack(rows)


def _bytes(image: Tensor) -> UInt8[np.ndarray, "h w c"]:
    values = image.detach().cpu().double().numpy().transpose(1, 2, 0)
    low, high = values.min(), values.max()
    return np.round(255 * (values - low) / max(high - low, 1e-12)).astype(np.uint8)


def draw(record: Record) -> dict[str, Any]:
    """What the record has of one network: bars beside the published ones, τ by ridge, log-odds, Figure 2, neighbours."""
    every = [*record.config["kernels"], COSINE]
    s = _first(record, every)
    kernels = [k for k in every if f"{s}/{k}" in record.metrics]
    figure, axes = drawing.canvas(1, 2, width=5.4)
    names = [TITLES[k] for k in kernels]
    first = {k: record.metrics[f"{s}/{k}"] for k in kernels}
    for axis, key, published, label in (
        (axes[0], "tau", TAU, "Kendall τ"),
        (axes[1], "tad", TAD, "accuracy differential, points"),
    ):
        errors = [_half_width(first[k], key) for k in kernels] if key == "tau" else None
        values = [first[k][key] for k in kernels]
        theirs = [published.get("ck" if k == COSINE else k) for k in kernels]
        drawing.compare_bars(axis, names, {"measured": (values, errors), "published": (theirs, None)}, label=label)
    found = {"table2": figure, "ridges": _ridges(record, s, kernels)}
    with_odds = [k for k in kernels if f"log-odds-{s}-{k}" in record.arrays]
    if with_odds:
        scatter, panels = drawing.canvas(-(-len(with_odds) // 3), 3, width=3.6, height=3.2)
        for axis in panels[len(with_odds) :]:
            axis.set_axis_off()
        for axis, k in zip(panels, with_odds):
            odds = record.arrays[f"log-odds-{s}-{k}"]
            drawing.scatter_log_odds(axis, odds[0], odds[1], f"{TITLES[k]}: τ = {first[k]['tau']:.3f}")
        found["log-odds"] = scatter
    if f"figure2-{s}" in record.arrays:
        found["figure2"] = _figure2(record.arrays[f"figure2-{s}"])
    shown = {k: record.arrays[f"nearest-{s}-{k}"] for k in kernels if f"nearest-{s}-{k}" in record.arrays}
    if shown:
        found["nearest"] = _nearest(shown)
    return found


def _first(record: Record, kernels: list[str]) -> int:
    """The network that is drawn: the first of those that the record has most kernels of."""
    return max(range(record.config["seeds"]), key=lambda s: (sum(f"{s}/{k}" in record.metrics for k in kernels), -s))


def _ridges(record: Record, s: int, kernels: list[str]) -> Any:
    ridges, (axis,) = drawing.canvas(1, 1, width=6.4)
    for k in kernels:
        others = record.metrics.get(f"{s}/{k}/ridges", {})
        points = {float(ridge): row["tau"] for ridge, row in others.items() if isinstance(row, Mapping)}
        points[record.config["alpha"]] = record.metrics[f"{s}/{k}/common"]["tau"]
        axis.plot(*zip(*sorted(points.items())), marker="o", markersize=4, label=TITLES[k])
    drawing.label(
        axis, x="ridge strength, kernels divided by their mean diagonal", y="Kendall τ, common training points", log="x"
    )
    if kernels:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ridges


def _figure2(values: Float64[np.ndarray, "6 k c"]) -> Any:
    """Mean attribution by training class for every output; the box plot of the output that is largest."""
    figure, (bars, box) = drawing.canvas(1, 2, width=5.0)
    mean, q1, median, q3, low, high = values
    image = bars.imshow(mean.T, cmap="RdBu_r", vmin=-np.nanmax(np.abs(mean)), vmax=np.nanmax(np.abs(mean)))
    drawing.label(bars, x="training class", y="output")
    figure.colorbar(image, ax=bars, shrink=0.8, label="mean attribution")
    chosen = int(np.nanargmax(np.nansum(mean, axis=0)))
    stats = [
        {"med": median[k, chosen], "q1": q1[k, chosen], "q3": q3[k, chosen], "whislo": low[k, chosen],
         "whishi": high[k, chosen], "mean": mean[k, chosen], "fliers": [], "label": str(k)}
        for k in range(len(mean)) if np.isfinite(mean[k, chosen])
    ]  # fmt: skip
    box.bxp(stats, showmeans=True, meanline=True, showfliers=False)
    drawing.label(box, x="training class", y=f"attribution to output {chosen}")
    return figure


def _nearest(shown: Mapping[str, np.ndarray]) -> Any:
    """One row of images per kernel and test image: the image, then the five most similar training images."""
    rows, columns = len(shown) * SHOWN, next(iter(shown.values())).shape[1]
    figure, axes = drawing.canvas(rows, columns, width=0.8, height=0.8)
    for axis in axes:
        axis.set_axis_off()
    for r, (kernel, images) in enumerate(shown.items()):
        for query, row in enumerate(images):
            for c, image in enumerate(row):
                axis = axes[(query * len(shown) + r) * columns + c]
                axis.imshow(image if image.shape[2] == 3 else image[:, :, 0], cmap="gray")
                if c == 0:
                    axis.set_title(TITLES[kernel], fontsize=6)
    return figure


def _half_width(result: Mapping[str, Any], name: str) -> float:
    low, high = result["intervals"][name]
    return float(high - low) / 2
