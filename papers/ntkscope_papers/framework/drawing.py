"""Drawing: figures without pyplot and its state."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context, ticker
from matplotlib.figure import Figure

from ntkscope.core import Record
from ntkscope.core.files.atomic import CHECKED, write_file

BLACK = "#2b2b2b"
MARKED: Mapping[str, tuple[dict[str, Any], bytes]] = {  # without a date: the same figure, the same bytes
    "svg": ({"Date": None, "Creator": "ntkscope"}, b"<dc:title>ntkscope</dc:title>"),
    "png": ({"Software": "ntkscope"}, b"Software\0ntkscope"),
}
STYLE: dict[Any, Any] = {
    **{"font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8},
    **{"legend.fontsize": 7, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False},
}
COLOURS = ("#3b6ea8", "#d1793a", "#5b9e63", "#a05a9c", "#8c6d4f", "#6b7280")


def save_figures(draw: Callable[[Record], Mapping[str, Any]], record: Record) -> list[str]:
    """Draw a record's figures into its folder `figures/`; their files."""
    (Path(record.folder) / "figures").mkdir(exist_ok=True)
    names, known = [], record.metrics.get("figures", ())  # without a mark, if an earlier version drew them
    with rc_context(STYLE):
        figures = draw(record)
    for name, figure in figures.items():
        for ending in MARKED:
            file = f"figures/{name}.{ending}"
            save(figure, record.folder / file, written=file in known)
            names.append(file)
    return names


def save(figure: Any, path: Path, *, written: bool = False) -> None:
    """Write a figure as what its name ends in, in place of one that was drawn here (or `written` before)."""
    (meta, mark), image = MARKED[path.suffix[1:]], io.BytesIO()
    figure.savefig(image, format=path.suffix[1:], dpi=110, metadata=meta)
    write_file(path, image.getvalue(), over=CHECKED if written else mark, durable=False)


def canvas(rows: int = 1, columns: int = 1, *, width: float = 4.6, height: float = 3.6) -> tuple[Any, list[Any]]:
    """A figure and its axes in reading order."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).ravel().tolist()


def label(axis: Any, *, title: str = "", x: str = "", y: str = "", log: str = "", legend: bool = False) -> None:
    """Title, names of both axes, which of them ("x", "y", "xy") are logarithmic, and a legend if anything has a label."""
    for write, text in ((axis.set_title, title), (axis.set_xlabel, x), (axis.set_ylabel, y)):
        if text:
            write(text)
    for name in log:
        getattr(axis, f"set_{name}scale")("log")
    if legend and axis.get_legend_handles_labels()[0]:
        axis.legend()


def compare_bars(
    axis: Any,
    names: Sequence[str],
    series: Mapping[str, tuple[Sequence[float | None], Sequence[float] | None]],
    *,
    label: str,
) -> None:
    """Bars side by side for each name, a colour per series ("published" black), with standard errors if given; None: a gap."""
    width = 0.8 / max(1, len(series))
    for i, (title, (values, errors)) in enumerate(series.items()):
        at = np.arange(len(names)) + (i - (len(series) - 1) / 2) * width
        heights = [np.nan if value is None else value for value in values]
        colour = BLACK if title == "published" else COLOURS[i % len(COLOURS)]
        axis.bar(at, heights, width * 0.92, yerr=errors, capsize=2, color=colour, label=title)
    axis.axhline(0, color="#999999", linewidth=0.6)
    axis.set_xticks(range(len(names)), names, rotation=25, ha="right")
    axis.set_ylabel(label)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(3, len(series)))


def line_with_errors(
    axis: Any, at: Sequence[float | int], values: Iterable[float], errors: Iterable[float], which: int, label: str
) -> None:
    """Points joined by a line with standard errors, in the colour `which`."""
    colour = COLOURS[which % len(COLOURS)]
    axis.errorbar(
        at, list(values), yerr=list(errors), fmt="o-", markersize=3, linewidth=1.2, capsize=2, color=colour, label=label
    )


def summaries(
    axis: Any, at: Sequence[float | int], several: Iterable[Mapping[str, float]], which: int, label: str
) -> None:
    """`line_with_errors` of what `results.summary` says at each place."""
    means, errors = zip(*((one["mean"], one["sem"]) for one in several))
    line_with_errors(axis, at, means, errors, which, label)


def log_ticks(axis: Any, at: Sequence[float | int]) -> None:
    """A logarithmic x axis with exactly these numbers on it."""
    axis.set_xscale("log")
    axis.set_xticks(list(at), [f"{value:g}" for value in at])
    axis.minorticks_off()


def power_law(axis: Any, at: Sequence[float | int], first: float, power: float, label: str) -> None:
    """A dashed line through `first` at the first place, falling by `power`."""
    axis.plot(at, [first * (x / at[0]) ** power for x in at], "--", color="#999999", linewidth=1, label=label)


def plain_log(axis: Any) -> None:
    """A logarithmic axis with 1, 2, 5 of every decade written out as plain numbers; less than a decade has labels too."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(ticker.NullFormatter())


def width_factors(axis: Any, widths: Sequence[float]) -> None:
    """A logarithmic axis of widths, each written out."""
    axis.set_xscale("log")
    axis.set_xticks(list(widths), [f"×{width:g}" for width in widths])
    axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axis.set_xlabel("width")


def log_widths(axis: Any, widths: Sequence[int], label: str) -> None:
    """Both axes logarithmic, the widths written out, a legend."""
    log_ticks(axis, widths)
    plain_log(axis)
    axis.set_xlabel("width")
    axis.set_ylabel(label)
    axis.legend()


def scatter_log_odds(axis: Any, surrogate: Iterable[float], network: Iterable[float], title: str) -> None:
    """Correct-class log-odds of the surrogate against the network's, one point per test item."""
    axis.scatter(list(surrogate), list(network), s=4, alpha=0.35, linewidths=0, color=COLOURS[0], rasterized=True)
    axis.axhline(0, color="#bbbbbb", linewidth=0.6)
    axis.axvline(0, color="#bbbbbb", linewidth=0.6)
    axis.set_xlabel("log-odds of the correct class, surrogate")
    axis.set_ylabel("network")
    axis.set_title(title)
