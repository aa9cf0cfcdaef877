"""Figures of probes and fine-tunings: accuracies as in Tables 5 and 6, their histograms as in Figure 13b, both tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.results import summary, under
from ntkscope_papers.vargas_2023.adaptation_claims import TABLE_5, TABLE_6, paired_with_p

TITLES = {
    "probe": "probe on M",
    "random": "random features on M",
    "finetune": "fine-tuning on M",
    "lora": "LoRA on M",
    "finetune-on-p": "fine-tuning on P",
    "probe-on-p": "probe on P",
}


def draw(record: Record) -> dict[str, Any]:
    """What is in the record; methods that were not run are left out."""
    found = {name: list(under(record, f"{name}/").values()) for name in TITLES}
    found = {name: several for name, several in found.items() if several}
    return {"tables": _bars(found), "figure13b": _histograms(found), "tests": _tests(record, found)}


def _bars(found: dict[str, list[Any]]) -> Any:
    figure, axes = drawing.canvas(1, 2, width=4.8)
    published = {**TABLE_5, "finetune-on-p": TABLE_6["finetune-on-p"]}
    for axis, where, error in zip(axes, ("train", "test"), ("sem", "test sem")):
        told = {name: summary(100 * row[where] for row in several) for name, several in found.items()}
        values: Any = ([v["mean"] for v in told.values()], [v["sem"] for v in told.values()])
        rows = [published.get(name) for name in told]
        stated: Any = (
            [None if row is None else row[f"{where} %"] for row in rows],
            [0.0 if row is None else row[error] for row in rows],
        )
        series = {"measured, MiniLM": values, "published, GPT-2": stated}
        drawing.compare_bars(axis, [TITLES[name] for name in told], series, label=f"{where} accuracy, %")
        axis.set_ylim(40, 101)
    return figure


def _histograms(found: dict[str, list[Any]]) -> Any:
    """One below the other, on one scale: six on top of each other cannot be told apart."""
    figure, axes = drawing.canvas(max(1, len(found)), 1, width=6.4, height=1.0)
    edges = np.arange(39, 102, 2)
    for i, (axis, (name, several)) in enumerate(zip(axes, found.items())):
        values, colour = [100 * row["test"] for row in several], drawing.COLOURS[i % len(drawing.COLOURS)]
        axis.hist(values, bins=edges, density=True, alpha=0.6, color=colour)
        axis.axvline(float(np.mean(values)), color=colour, linewidth=1.5)
        axis.set_title(f"{TITLES[name]} ({len(values)}), mean {np.mean(values):.1f} %", fontsize=8, loc="left", pad=2)
        axis.set_xlim(edges[0], edges[-1])
        axis.set_yticks([])
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set_xlabel("accuracy on tweets of M that were not trained on, %")
    return figure


def _tests(record: Record, found: dict[str, list[Any]]) -> Any:
    """Left: quantiles of two methods' accuracies, as the published test compares them; right: differences per shuffle."""
    figure, (left, right) = drawing.canvas(1, 2, width=4.4)
    probe = found.get("probe", [])
    pairs: dict[str, list[float]] = {}
    for i, name in enumerate(("finetune", "finetune-on-p")):
        several = found.get(name, [])
        if not several or not probe:
            continue
        at = np.linspace(0, 1, min(len(probe), len(several)))
        one, other = (np.quantile([100 * row["test"] for row in group], at) for group in (probe, several))
        left.plot(other, one, "o", markersize=3, color=drawing.COLOURS[i], label=TITLES[name])
        left.plot(other, other, color="#999999", linewidth=0.8)
        if name == "finetune":
            pairs[name] = [a["test"] - b["test"] for a, b in zip(probe, several)]
        elif "splits" in record.metrics:
            pairs[name] = paired_with_p(record, probe, several)
    for i, (name, values) in enumerate(pairs.items()):
        right.hist([100 * value for value in values], alpha=0.4, color=drawing.COLOURS[i], label=TITLES[name])
    drawing.label(left, x="accuracy of the other method, quantiles, %", y="accuracy of the probe on M, quantiles, %")
    right.axvline(0, color="#999999", linewidth=0.8)
    drawing.label(right, x="probe minus the other on the same tweets, points", y="shuffles")
    for axis in (left, right):
        if axis.get_legend_handles_labels()[0]:
            axis.legend()
    return figure
