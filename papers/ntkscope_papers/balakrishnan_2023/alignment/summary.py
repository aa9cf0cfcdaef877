"""What a path through training says: cosines, jumps and their lags, half-rises; plain values, None where undefined."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64

from ntkscope.core import UsageError
from ntkscope.measures.changepoint import change_point, common_jump
from ntkscope_papers.balakrishnan_2023.alignment.path import FLAT, Path

LEAST_RISE = 0.02  # of the alignment, and
LEAST_FALL = 0.1  # of the loss, as a share of its start: smaller ones are not dated
LEVELS = (0.5, 0.7, 0.8)
SERIES = ("cosine", "correlation", "fit", "alignment", "loss")
Matrix = Float64[np.ndarray, "seeds t"]


def plain(values: Any, digits: int = 6) -> Any:
    """Nested lists of numbers with so many significant digits; None for what is not finite.

    >>> plain(np.array([1.23456789, np.nan]))
    [1.23457, None]
    """
    if isinstance(values, Mapping):
        return {key: plain(value, digits) for key, value in values.items()}
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return [plain(value, digits) for value in values]
    if isinstance(values, float):
        return float(f"{values:.{digits}g}") if math.isfinite(values) else None
    return values


def correlations(predictions: Float64[np.ndarray, "... m"], network: Float64[np.ndarray, "... m"], scale: Any) -> Any:
    """Pearson's, along the last axis; NaN where either side varies by less than `FLAT` times `scale`: both are constants.

    >>> correlations(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]), 1.0).round(6).item()
    1.0
    >>> correlations(np.array([1.0, 1.0, 1.0]), np.array([2.0, 4.0, 6.0]), 1.0).item()
    nan
    """
    a, b = (side - side.mean(-1, keepdims=True) for side in (predictions, network))
    spreads = [np.sqrt(np.square(side).mean(-1)) for side in (a, b)]
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (a * b).mean(-1) / (spreads[0] * spreads[1])
        varies = (spreads[0] > FLAT * scale) & (spreads[1] > FLAT * scale)
    return np.where(varies, np.clip(found, -1, 1), np.nan)


def fits(predictions: Float64[np.ndarray, "... m"], targets: Float64[np.ndarray, "... m"]) -> Any:
    """R² along the last axis."""
    return 1 - np.square(predictions - targets).mean(-1) / targets.var(-1)


def half_time(series: Float64[np.ndarray, " t"], times: Float64[np.ndarray, " t"], least: float) -> float:
    """When a series has first risen half of the way from its start to its largest value, linear between moments.

    NaN if it rises by less than `least`, or is not finite throughout.

    >>> half_time(np.array([0.0, 0.0, 1.0, 4.0]), np.array([0.0, 1.0, 2.0, 3.0]), 0.1)
    2.3333333333333335
    """
    if not np.isfinite(series).all():
        return math.nan
    rise = series.max() - series[0]
    if not rise >= least or rise == 0:
        return math.nan
    level = series[0] + rise / 2
    after = int(np.argmax(series >= level))
    before = after - 1
    part = (level - series[before]) / (series[after] - series[before])
    return float(times[before] + part * (times[after] - times[before]))


def steepest(series: Matrix, window: int) -> tuple[Float64[np.ndarray, " seeds"], Float64[np.ndarray, " seeds"]]:
    """Of every seed, the moment from which the series rises most within `window` moments, and by how much; NaN if undefined.

    >>> [found.tolist() for found in steepest(np.array([[0.0, 0.0, 3.0, 3.0, 3.5]]), 1)]
    [[1.0], [3.0]]
    """
    rises = series[:, window:] - series[:, :-window]
    defined = np.isfinite(rises).all(1)
    at = np.argmax(np.where(np.isfinite(rises), rises, -np.inf), axis=1)
    sizes = rises[np.arange(len(rises)), at]
    return np.where(defined, at.astype(float), np.nan), np.where(defined, sizes, np.nan)


def summary(config: Any, path: Path) -> dict[str, Any]:
    """What the record keeps of a path, by seed; networks of other rates under "other rates"."""
    S, times = path.seeds, path.times
    close = np.flatnonzero(times <= config.followed)
    told: dict[str, Any] = {"rates": list(path.rates), **path.trained, **_networks(path, slice(0, S), close)}
    told["network"]["spread"] = path.finals[:S].std(-1) / path.targets.std(-1)
    series = {"alignment": path.alignments[:S, close], "loss": -path.losses[:S, close]}
    if path.cosines is not None:
        series["cosine"] = np.abs(path.cosines[:S, close].astype(np.float64)).mean(-1)
    if path.predictions is not None:
        scale, network = path.targets.std(-1), path.finals[:S]
        machine = {
            "correlation": correlations(path.predictions, network[:, None], scale[:, None]),
            "fit": fits(path.predictions, path.targets[:, None]),
        }
        series |= {name: values[:, close] for name, values in machine.items()}
        told["machine"] = {name: _at_epochs(times, values) for name, values in machine.items()}
        told["more points"] = {
            "correlation": {when: correlations(said, network, scale) for when, (said, _) in path.more.items()},
            "fit": {when: fits(said, path.targets) for when, (said, _) in path.more.items()},
            "alignment": {when: values for when, (_, values) in path.more.items()},
        }
        ends = (("smallest", min(config.strengths)), ("largest", max(config.strengths)))
        told["ends of the grid"] = {name: float(np.mean(path.strengths == end)) for name, end in ends}
        if "cosines" in told:
            crossings = told["cosines"]["first above 0.5"]
            told["correlation at the crossing"] = _at_crossing(times, machine["correlation"], crossings)
    told["jumps"] = {
        name: jump(series[name], times[close], config.moments, config.draws) for name in SERIES if name in series
    }
    if len(path.rates) > 1:
        told["other rates"] = {
            f"{rate:g}": _networks(path, slice(r * S, (r + 1) * S), close) for r, rate in enumerate(path.rates) if r
        }
    return plain(told)


def _networks(path: Path, members: slice, close: np.ndarray) -> dict[str, Any]:
    """What is measured of the networks of every rate."""
    found: dict[str, Any] = {
        "network": {"fit": fits(path.finals[members], path.targets)},
        "half": _halves(path, members, close),
    }
    if path.cosines is not None:
        found["cosines"] = _cosines(path.cosines[members], path.times)
    return found


def _cosines(cosines: np.ndarray, times: np.ndarray) -> dict[str, Any]:
    sizes = np.abs(cosines.astype(np.float64))
    series = {"mean": sizes.mean(-1), "largest": sizes.max(-1)}
    series |= {f"share ≥ {level}": (sizes >= level).mean(-1) for level in LEVELS}
    above = series["largest"][:, :-1] > 0.5
    first = np.where(above.any(1), times[np.argmax(above, axis=1)], np.nan)
    return {**{name: _at_epochs(times, values) for name, values in series.items()}, "first above 0.5": first}


def _at_epochs(times: np.ndarray, series: Matrix) -> dict[str, Any]:
    """A series at whole epochs, and of the trained networks."""
    return {f"{time:g}": series[:, k] for k, time in enumerate(times) if time == round(time)} | {"end": series[:, -1]}


def _at_crossing(times: np.ndarray, correlation: Matrix, crossings: np.ndarray) -> list[float]:
    """The largest rise of the correlation within one epoch that contains the moment at which a cosine first exceeds 0.5."""
    found = []
    for row, when in zip(correlation, crossings):
        rises = [
            row[j] - row[i]
            for i, early in enumerate(times)
            for j, late in enumerate(times)
            if early < late <= early + 1 + 1e-9 and early <= when <= late
        ]
        found.append(max(rises, default=math.nan))
    return found


def jump(series: Matrix, times: np.ndarray, window: int, draws: int) -> dict[str, Any]:
    """Where each seed's series rises most within an epoch and where its level changes; whether seeds jump together.

    Seeds with undefined moments are left out of what is common to them.
    """
    at, size = steepest(series, window)
    whole = np.isfinite(series).all(1)
    splits = [change_point(row, permutations=draws) if ok else None for row, ok in zip(series, whole)]
    found: dict[str, Any] = {
        "epoch": np.where(np.isfinite(at), times[np.nan_to_num(at).astype(int)], np.nan),
        "size": size,
        "change": [math.nan if s is None or s.at is None else float(times[s.at]) for s in splits],
        "change p": [math.nan if s is None else s.p for s in splits],
        "seeds": int(whole.sum()),
    }
    try:
        common = common_jump(series[whole], window=window, permutations=draws)
    except UsageError as error:  # fewer than two seeds, or a window as long as the path
        return {**found, "common": {"epoch": None, "share": None, "p": None, "reason": str(error)}}
    told = {"epoch": float(times[common.at]), "share": common.share, "p": common.p, "reason": common.reason}
    return {**found, "common": told}


def _halves(path: Path, members: slice, close: np.ndarray) -> dict[str, Any]:
    """Half-rise of the alignment and half-fall of the loss, the lag between them, and how much of the fall was over by then."""
    times = path.times[close]
    rising, falling, fallen = [], [], []
    for aligned, loss in zip(path.alignments[members][:, close], path.losses[members][:, close]):
        rising.append(half_time(aligned, times, LEAST_RISE))
        falling.append(half_time(-loss, times, LEAST_FALL * loss[0]))
        then = float(np.interp(rising[-1], times, loss)) if math.isfinite(rising[-1] + falling[-1]) else math.nan
        fallen.append((loss[0] - then) / (loss[0] - loss.min()) if math.isfinite(then) else math.nan)
    return {
        "alignment": rising,
        "loss": falling,
        "lag": [b - a for a, b in zip(rising, falling)],
        "loss fallen": fallen,
    }
