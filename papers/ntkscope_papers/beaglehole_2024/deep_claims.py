"""What Figure 6 and Appendix C say, what a record of `deep-prediction` says about it, and the figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ntkscope.core import Record
from ntkscope_papers.framework import drawing
from ntkscope_papers.framework.claims import Published, Read, Reading, lacking
from ntkscope_papers.framework.results import summary, under
from ntkscope_papers.qadeer_2023.networks import digits

DIP = 0.05

PUBLISHED = {
    "spectrum": Published(
        "nfa-appC-spectrum",
        "App. C",
        "eigenvalues 1/(1 + k^α); a projector as α → 0 and as α → ∞",
        "half the identity, and half a projector of rank one, k from 1",
    ),
    "setting": Published(
        "nfa-fig6-setting",
        "Figure 6, App. C, App. H",
        {"n": 128, "d": 128, "k": [128, 1024], "init_scale": 1, "r": 5},
        "configuration only",
    ),
    "dip": Published(
        "nfa-fig6-dip",
        "Figure 6, App. C",
        "observed and predicted correlations are lowest at intermediate α",
        f"in every panel the mean over seeds is lowest inside, at least {DIP} below both ends",
        seeds=10,
    ),
    "width": Published(
        "nfa-fig6-width",
        "Figure 6, App. C",
        "quadratic: the prediction is closer at width 1024 than at 128",
        "mean difference over α smaller at the larger width, both tasks, by more than two paired standard errors",
        seeds=10,
    ),
    "relu": Published(
        "nfa-fig6-relu",
        "Figure 6, App. C",
        "ReLU: only qualitatively right, worse than quadratic",
        "at the larger width mean error of ReLU above that of quadratic, both tasks; Spearman over α > 0.5",
        seeds=10,
    ),
}


def curves(record: Record, task: str, activation: str, width: int, key: str) -> np.ndarray:
    """(seeds, decays) of one number."""
    runs = under(record, f"{task}/{activation}/{width}/").values()
    return np.array([[one[key] for one in run["decays"].values()] for run in runs], dtype=np.float64)


def _panels(config: Any) -> list[tuple[str, str, int]]:
    return [(t, a, w) for t in config.tasks for a in config.activations for w in config.widths]


def _lacks(config: Any, record: Record) -> Reading | None:
    missing = [f"{t}/{a}/{w}" for t, a, w in _panels(config) if not under(record, f"{t}/{a}/{w}/")]
    return lacking(*missing) if missing else None


def _seeds(config: Any, record: Record) -> int:
    return min(len(under(record, f"{t}/{a}/{w}/")) for t, a, w in _panels(config))


def errors(record: Record, task: str, activation: str, width: int, key: str = "predicted") -> np.ndarray:
    """Mean over α of |predicted - observed|, one for each seed."""
    gap = curves(record, task, activation, width, key) - curves(record, task, activation, width, "observed")
    return np.abs(gap).mean(1)


def _dip(values: np.ndarray) -> dict[str, Any]:
    """How far the lowest of a curve lies below its ends, and whether it is inside."""
    mean = values.mean(0)
    lowest = int(mean.argmin())
    inside = 0 < lowest < len(mean) - 1
    below = values[:, [0, -1]].min(1) - values[:, lowest]
    return {"inside": inside, "at": lowest, "below the ends": summary(below.tolist())}


def _spectrum(config: Any, record: Record) -> Reading:
    found = record.metrics.get("spectrum")
    if found is None:
        return lacking("spectrum")
    holds = found["alpha 0"] == [0.5, 0.5] and found["alpha infinite"] == [0.5, 0.0]
    holds = holds and found["alpha 60, k from 0"][0] == 1 and found["alpha 60, k from 0"][1] == 0.5
    shown = {key: value for key, value in found.items() if key != "seconds"}
    note = "halves of projectors, which suffices for proportionality; with k from 0 the limit has eigenvalues 1 and 1/2"
    return Reading(shown, holds, note, exact=True)


def _setting(config: Any, record: Record) -> Reading:
    if (missing := _lacks(config, record)) is not None:
        return missing
    found = {"n": config.items, "d": config.dimension, "k": list(config.widths), "decays": list(config.decays)}
    note = "residuals are the labels (Eq. 4); E[𝒦] is that of infinite width; the grid of α is not published"
    return Reading(found, True, note)


def _dips(config: Any, record: Record) -> Reading:
    if (missing := _lacks(config, record)) is not None:
        return missing
    found: dict[str, Any] = {}
    deep = []
    for task, activation, width in _panels(config):
        for key in ("observed", "predicted"):
            one = _dip(curves(record, task, activation, width, key))
            below = {name: digits(float(value), 3) for name, value in one["below the ends"].items()}
            found[f"{task}, {activation}, k = {width}, {key}"] = {
                "α": config.decays[one["at"]],
                "below the ends": below,
            }
            deep.append(one["inside"] and one["below the ends"]["mean"] >= DIP)
    return Reading(found, all(deep), f"{sum(deep)} of {len(deep)} curves", seeds=_seeds(config, record))


def _width(config: Any, record: Record) -> Reading:
    if (missing := _lacks(config, record)) is not None:
        return missing
    if "quadratic" not in config.activations or len(config.widths) < 2:
        return Reading(None, note="needs quadratic networks at two widths")
    found: dict[str, Any] = {}
    closer = []
    for task in config.tasks:
        small, large = (errors(record, task, "quadratic", w) for w in (min(config.widths), max(config.widths)))
        gain = summary((small - large).tolist())
        closer.append(gain["mean"] > 2 * gain["sem"])
        found[task] = {
            f"error at {min(config.widths)}": digits(float(small.mean()), 3),
            f"error at {max(config.widths)}": digits(float(large.mean()), 3),
            "difference": {key: digits(float(value), 3) for key, value in gain.items()},
            "errors with E[𝒦] of the width": [
                digits(float(errors(record, task, "quadratic", w, "predicted, this width").mean()), 3)
                for w in config.widths
            ],
        }
    return Reading(found, all(closer), "", seeds=_seeds(config, record))


def _relu(config: Any, record: Record) -> Reading:
    if (missing := _lacks(config, record)) is not None:
        return missing
    if set(config.activations) < {"quadratic", "relu"}:
        return Reading(None, note="needs ReLU and quadratic networks")
    width = max(config.widths)
    found: dict[str, Any] = {}
    holds = []
    for task in config.tasks:
        quadratic = float(errors(record, task, "quadratic", width).mean())
        found[task] = {"error, quadratic": digits(quadratic, 3)}
        observed = curves(record, task, "relu", width, "observed").mean(0)
        for name, key in (("linear part of the slope", "predicted, linear slope"), ("whole slope", "predicted")):
            error = float(errors(record, task, "relu", width, key).mean())
            rank = float(spearmanr(observed, curves(record, task, "relu", width, key).mean(0)).statistic)
            found[task][f"ReLU, {name}"] = {"error": digits(error, 3), "Spearman over α": digits(rank, 3)}
            if key != "predicted":
                holds.append(error > quadratic and rank > 0.5)
    note = (
        "the text says that terms of the nonlinear part of φ̇ are missing: judged on E[𝒦] with the linear part of ReLU's slope;"
        " with the whole arc-cosine kernel the prediction is as close as that of quadratic networks"
    )
    return Reading(found, all(holds), note, seeds=_seeds(config, record))


def read() -> dict[str, Read]:
    return {"spectrum": _spectrum, "setting": _setting, "dip": _dips, "width": _width, "relu": _relu}


def draw(record: Record) -> dict[str, Any]:
    """Observed at every width and predicted, by α, one panel for each task and activation."""
    keys = [key.split("/") for key in record.metrics if key.count("/") == 3]
    panels = sorted({(task, activation) for task, activation, *_ in keys})
    figure, axes = drawing.canvas(1, max(1, len(panels)), width=3.6)
    for axis, (task, activation) in zip(axes, panels):
        widths = sorted({int(width) for t, a, width, _ in keys if (t, a) == (task, activation)})
        first = next(iter(under(record, f"{task}/{activation}/{widths[-1]}/").values()))
        decays = [float(a) for a in first["decays"]]
        for i, width in enumerate(widths):
            values = curves(record, task, activation, width, "observed")
            sems = values.std(0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.zeros(len(decays))
            drawing.line_with_errors(axis, decays, values.mean(0), sems, i, f"observed, k = {width}")
        values = curves(record, task, activation, widths[-1], "predicted").mean(0)
        axis.plot(decays, values, "--", color=drawing.COLOURS[3], label="predicted")
        if activation == "relu":
            values = curves(record, task, activation, widths[-1], "predicted, linear slope").mean(0)
            axis.plot(decays, values, ":", color=drawing.COLOURS[2], label="predicted, linear part of the slope")
        drawing.label(axis, title=f"{task}, {activation}", x="decay α", y="ρ(ẆᵀẆ, ẆᵀKẆ)", legend=True)
    return {"deep-prediction": figure}
