"""Pictures of explanations: one test item's attributions, and the training examples kernels find similar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ntkscope.core import UsageError
from ntkscope.core.arguments import labels_of, plain_array
from ntkscope.explain._canvas import (
    BLUE,
    DIVERGING,
    GREY,
    ORANGE,
    VERMILLION,
    Items,
    class_names,
    frame,
    power_of_ten,
)
from ntkscope.explain.attribution import Attribution
from ntkscope.explain.distribution import ClassSummary, class_summary, concentration
from ntkscope.explain.examples import Nearest


def attribution_figure(
    attribution: Attribution,
    index: int,
    y_train: Any,
    *,
    items: Any = None,
    train_items: Any = None,
    classes: Sequence[str] | None = None,
    label: int | None = None,
    logit: int | None = None,
    top: int = 6,
    title: str = "",
) -> Figure:
    """One test item: itself, the mean attribution by class to each logit, their distribution, the strongest examples.

    `items`, `train_items`: images or texts of the test items and the training points; without them, their
    numbers are shown. `label`: the true class. `logit`: the one whose distribution is drawn, by default the predicted one.
    Training classes and logits are numbered alike.

    >>> from types import SimpleNamespace
    >>> from ntkscope.explain import attribute
    >>> surrogate = SimpleNamespace(coef_=np.eye(2, 3), intercept_=np.zeros(2))
    >>> figure = attribution_figure(attribute(surrogate, np.eye(3)), 0, np.array([0, 1, 1]), top=1)
    >>> [axes.get_title() for axes in figure.axes][3]
    'All attributions to logit 0, by class'
    """
    values = attribution.item(index)
    labels = labels_of(y_train, len(values))
    logits = values.sum(0)
    predicted = int(logits.argmax())
    shown = predicted if logit is None else logit
    if not 0 <= shown < len(logits):
        raise UsageError(f"got logit={logit} for {len(logits)} logits; expected 0 … {len(logits) - 1}")
    names = class_names(classes, max(int(labels.max()) + 1, len(logits)))
    summary = class_summary(values, labels)
    tested, trained = Items.of(items), Items.of(train_items)
    strongest = np.argsort(-values[:, shown], kind="stable")
    top = min(top, len(strongest))

    figure = _figure(13, 9.2)
    halves = figure.add_gridspec(
        2, 1, height_ratios=[1.0, 0.98], hspace=0.27, left=0.05, right=0.975, top=0.87, bottom=0.02
    )
    upper = halves[0].subgridspec(1, 3, width_ratios=[0.8, 1.15, 1.35], wspace=0.34)
    lower = halves[1].subgridspec(2, 1, hspace=0.24)
    _draw_item(figure.add_subplot(upper[0]), tested, index, names, logits, predicted, label)
    _draw_means(figure, figure.add_subplot(upper[1]), summary, names, len(logits), shown)
    _draw_boxes(figure.add_subplot(upper[2]), values[:, shown], summary, names, shown)
    for place, chosen, words in (
        (0, strongest[:top], f"most support\n{names[shown]}"),
        (1, strongest[::-1][:top], f"most oppose\n{names[shown]}"),
    ):
        _draw_examples(figure, lower[place], trained, chosen, values[:, shown], labels, names, shown, words)
    share = concentration(values[:, shown], min(5, len(values)))
    figure.suptitle(
        title or f"Test item {index}: what {len(values):,} training points add to its logits", fontsize=14, y=0.985
    )
    figure.text(
        0.5,
        0.955,
        f"for logit {names[shown]}: the {share.k} largest carry {100 * float(share.top):.2g} % of Σ|A|,"
        f" the largest 1 % carry {100 * float(share.top_percent):.2g} %; participation ratio {float(share.participation):.2f}",
        ha="center",
        va="top",
        fontsize=10,
        color="#444444",
    )
    return figure


def neighbour_grid(
    neighbours: Mapping[str, Nearest],
    train_items: Any,
    y_train: Any,
    *,
    items: Any = None,
    rows: Sequence[int] | None = None,
    y: Any = None,
    classes: Sequence[str] | None = None,
    marked: Any = None,
    title: str = "Most similar training examples",
) -> Figure:
    """The most similar training examples of some test items, one line per kernel.

    `neighbours`: by kernel, what `nearest` found for all test items; `rows` picks the test items (the first four). A
    blue frame is an example of the item's own class `y`, a vermillion one another class; `marked` training points (a
    mask, such as the poisoned ones) get a thick orange frame and a star.

    >>> from ntkscope.explain.examples import nearest
    >>> figure = neighbour_grid({"ck": nearest(np.eye(4), 2)}, np.zeros((4, 8, 8)), np.array([0, 0, 1, 1]), rows=[0])
    >>> len(figure.axes)
    3
    """
    if not neighbours:
        raise UsageError("got no kernels; expected a mapping of names to results of nearest(K_test)")
    count = min(len(found) for found in neighbours.values())
    chosen = list(range(min(4, count))) if rows is None else list(rows)
    labels = labels_of(y_train, len(plain_array(y_train)))
    own = None if y is None else plain_array(y)
    stars = np.zeros(len(labels), dtype=bool) if marked is None else plain_array(marked).astype(bool)
    names = class_names(classes, int(labels.max()) + 1)
    tested, trained = Items.of(items), Items.of(train_items)
    k = max(found.indices.shape[1] for found in neighbours.values())
    lines, longest = len(neighbours), max(map(len, neighbours))
    # in inches: an example, the column of the kernels' names, the item itself, and what stands above and below
    wide, tall, named, large = (2.1 if trained.texts else 1.2), 1.42, 0.2 + 0.11 * longest, 1.75
    height = 0.55 + len(chosen) * (tall * lines + 0.4) + 0.4
    width = large + named + wide * k + 0.3
    figure = _figure(width, height)
    outer = figure.add_gridspec(
        len(chosen), 1, hspace=0.4 / (tall * lines), left=0.15 / width, right=1 - 0.15 / width, top=1 - 0.8 / height,
        bottom=0.4 / height,
    )  # fmt: skip
    for band, index in enumerate(chosen):
        inner = outer[band].subgridspec(
            lines, k + 2, wspace=0.08, hspace=0.32, width_ratios=[large, named, *[wide] * k]
        )
        axes = figure.add_subplot(inner[:, 0])
        _item_or_number(axes, tested, index, width=20, size=8)
        axes.set_title(f"test item {index}" + ("" if own is None else f"\n{names[int(own[index])]}"), fontsize=9)
        frame(axes, "black", 1.2)
        for line, (kernel, found) in enumerate(neighbours.items()):
            for place, (example, value) in enumerate(zip(found.indices[index], found.values[index])):
                axes = figure.add_subplot(inner[line, place + 2])
                _item_or_number(axes, trained, int(example), width=26, size=6.5, lines=7)
                same = own is None or labels[example] == own[index]
                star = " *" if stars[example] else ""
                frame(axes, ORANGE if stars[example] else BLUE if same else VERMILLION, 3.5 if stars[example] else 2)
                axes.set_title(f"{names[labels[example]]}{star}  {value:.3g}", fontsize=7.5, pad=3)
                if place == 0:
                    axes.set_ylabel(
                        kernel, rotation=0, ha="right", va="center", fontsize=9.5, fontweight="bold", labelpad=8
                    )
    handles = [] if own is None else [_key(BLUE, "same class"), _key(VERMILLION, "another class")]
    handles += [_key(ORANGE, "marked *")] if stars.any() else []
    figure.suptitle(f"{title} (class, kernel value)", fontsize=12, y=1 - 0.12 / height, va="top")
    if handles:
        figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=9, frameon=False)
    return figure


def _figure(width: float | int, height: float | int) -> Figure:
    """A figure with a canvas of its own: pyplot's global state is not touched."""
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _item_or_number(axes: Axes, items: Items, index: int, **how: Any) -> None:
    if items.values is None:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, f"# {index}", ha="center", va="center", fontsize=11, transform=axes.transAxes)
    else:
        items.draw(axes, index, **how)


def _draw_item(
    axes: Axes, items: Items, index: int, names: list[str], logits: np.ndarray, predicted: int, label: int | None
) -> None:
    _item_or_number(axes, items, index, width=26, size=10)
    right = label is None or label == predicted
    frame(axes, BLUE if right else VERMILLION, 2.5)
    odds = np.exp(logits - logits.max())
    words = f"surrogate: {names[predicted]} ({100 * float(odds[predicted] / odds.sum()):.1f} %)"
    axes.set_title(words if label is None else f"label: {names[label]}\n{words}", fontsize=11)


def _draw_means(figure: Figure, axes: Axes, summary: ClassSummary, names: list[str], logits: int, shown: int) -> None:
    scale, unit = power_of_ten(summary.mean)
    means = scale * summary.mean
    bound = float(np.nanmax(np.abs(means))) or 1.0
    image = axes.imshow(means, cmap=DIVERGING, vmin=-bound, vmax=bound, aspect="auto")
    k, places = len(means), 2 if bound < 1 else 1
    if max(k, logits) <= 12:
        for (i, j), value in np.ndenumerate(means):
            digits = f"{round(value, places) + 0.0:.{places}f}"  # + 0.0: no minus before a zero
            colour = "white" if abs(value) > 0.6 * bound else "black"
            axes.text(j, i, digits, ha="center", va="center", fontsize=7, color=colour)
    crowded = max(map(len, names)) * logits > 45
    turned: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(range(logits), names[:logits], fontsize=8, **turned)
    axes.set_yticks(range(k), names[:k], fontsize=8)
    axes.add_patch(_outline(shown, k))
    axes.set_title(f"Mean attribution{unit}\nof a training class (row) to a logit (column)", fontsize=11)
    figure.colorbar(image, ax=axes, fraction=0.045, pad=0.03).ax.tick_params(labelsize=8)


def _draw_boxes(axes: Axes, values: np.ndarray, summary: ClassSummary, names: list[str], shown: int) -> None:
    scale, unit = power_of_ten(values)
    k = len(summary.count)
    stats = [
        {
            "med": scale * summary.median[i, shown],
            "q1": scale * summary.q1[i, shown],
            "q3": scale * summary.q3[i, shown],
            "whislo": scale * summary.low[i, shown],
            "whishi": scale * summary.high[i, shown],
            "mean": scale * summary.mean[i, shown],
            "fliers": scale * values[summary.outliers[i][shown]],
        }
        for i in range(k)
    ]
    drawn = axes.bxp(
        stats,
        positions=range(k),
        orientation="horizontal",
        patch_artist=True,
        showmeans=True,
        widths=0.62,
        flierprops={"marker": ".", "markersize": 2.5, "markerfacecolor": GREY, "markeredgecolor": GREY, "alpha": 0.5},
        meanprops={"marker": "D", "markersize": 4, "markerfacecolor": "white", "markeredgecolor": "black"},
        medianprops={"color": "black", "linewidth": 1.2},
    )
    for i, box in enumerate(drawn["boxes"]):
        box.set_facecolor(ORANGE if i == shown else BLUE)
        box.set_alpha(0.75)
    axes.axvline(0, color="black", linewidth=0.8, zorder=0)
    axes.set_yticks(range(k), names[:k], fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(f"attribution to logit {names[shown]}{unit}", fontsize=9)
    axes.set_title(f"All attributions to logit {names[shown]}, by class", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        handles=[
            Line2D([], [], marker="D", color="none", markerfacecolor="white", markeredgecolor="black", markersize=4),
            Line2D([], [], marker=".", color="none", markerfacecolor=GREY, markeredgecolor=GREY, markersize=5),
        ],
        labels=["mean", "outlier"],
        fontsize=8,
        loc="best",
        framealpha=0.8,
    )


def _draw_examples(
    figure: Figure,
    place: Any,
    items: Items,
    chosen: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
    names: list[str],
    shown: int,
    words: str,
) -> None:
    inner = place.subgridspec(1, len(chosen) + 1, width_ratios=[1.25, *[1] * len(chosen)], wspace=0.08)
    side = figure.add_subplot(inner[0])
    side.axis("off")
    scale, unit = power_of_ten(values)
    side.text(
        0.0, 0.5, f"Training points that\n{words}\n\nclass, attribution{unit}", ha="left", va="center", fontsize=9.5
    )
    for column, example in enumerate(chosen):
        axes = figure.add_subplot(inner[column + 1])
        _item_or_number(axes, items, int(example), width=24, size=7, lines=6)
        frame(axes, ORANGE if labels[example] == shown else BLUE)
        axes.set_title(f"{names[labels[example]]}  {scale * values[example]:+.2f}", fontsize=9, pad=3)


def _outline(column: int, rows: int) -> Rectangle:
    return Rectangle((column - 0.5, -0.5), 1, rows, fill=False, edgecolor="black", linewidth=2)


def _key(colour: str, words: str) -> Line2D:
    return Line2D([], [], color=colour, linewidth=3, label=words)
