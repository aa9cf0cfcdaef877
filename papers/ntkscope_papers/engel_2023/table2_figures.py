"""What figures of Table 2 are made of: attributions of one image by class (Figure 2), nearest training images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from matplotlib.figure import Figure
from torch import Tensor

from ntkscope.explain import class_summary
from ntkscope_papers.engel_2023.kernel_pairs import TITLES
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


def draw_attributions(values: Float64[np.ndarray, "6 k c"]) -> Figure:
    """Mean attribution by training class for every output; the box plot of the output that is largest."""
    drawn, (bars, box) = drawing.canvas(1, 2, width=5.0)
    mean, q1, median, q3, low, high = values
    image = bars.imshow(mean.T, cmap="RdBu_r", vmin=-np.nanmax(np.abs(mean)), vmax=np.nanmax(np.abs(mean)))
    drawing.label(bars, x="training class", y="output")
    drawn.colorbar(image, ax=bars, shrink=0.8, label="mean attribution")
    chosen = int(np.nanargmax(np.nansum(mean, axis=0)))
    stats = [
        {"med": median[k, chosen], "q1": q1[k, chosen], "q3": q3[k, chosen], "whislo": low[k, chosen],
         "whishi": high[k, chosen], "mean": mean[k, chosen], "fliers": [], "label": str(k)}
        for k in range(len(mean)) if np.isfinite(mean[k, chosen])
    ]  # fmt: skip
    box.bxp(stats, showmeans=True, meanline=True, showfliers=False)
    drawing.label(box, x="training class", y=f"attribution to output {chosen}")
    return drawn


def draw_nearest(shown: Mapping[str, np.ndarray]) -> Figure:
    """One row of images per kernel and test image: the image, then the five most similar training images."""
    rows, columns = len(shown) * SHOWN, next(iter(shown.values())).shape[1]
    drawn, axes = drawing.canvas(rows, columns, width=0.8, height=0.8)
    for axis in axes:
        axis.set_axis_off()
    for r, (kernel, images) in enumerate(shown.items()):
        for query, row in enumerate(images):
            for c, image in enumerate(row):
                axis = axes[(query * len(shown) + r) * columns + c]
                axis.imshow(image if image.shape[2] == 3 else image[:, :, 0], cmap="gray")
                if c == 0:
                    axis.set_title(TITLES[kernel], fontsize=6)
    return drawn
