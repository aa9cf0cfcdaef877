"""What a record of orthant shells holds: networks and machines by depth and seed, Table 2's columns, Figure 2's curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkscope.core import Record, numpy_generator
from ntkscope_papers.balakrishnan_2023.orthants.data import AUTHORS, radii_probed
from ntkscope_papers.framework.intervals import SHARE, interval, short
from ntkscope_papers.framework.results import under

DEPTHS = (1, 2, 3, 4, 5)
COLUMNS = ("empty", "remaining")
JUDGED, BESIDE = "probability", "logit"
HIGH = 0.75  # a share of class 1 that is high
SHOWN = ("empty", "neighbour", "other")
Rows = Sequence[Mapping[str, Any]]


def networks_of(record: Record, depth: int) -> Rows:
    """The networks of a depth, one row per seed, by the authors' settings if those were run; none if they were not measured."""
    found = record.metrics.get(f"{AUTHORS}/{depth}", record.metrics.get(f"networks/{depth}"))
    rows: Rows = () if found is None else found["networks"]
    return rows


def own_networks(record: Record, depth: int) -> Rows:
    """The networks of a depth by the settings that our grid chose."""
    rows: Rows = record.metrics[f"networks/{depth}"]["networks"]
    return rows


def machines_of(record: Record, name: str) -> dict[int, Mapping[str, Any]]:
    """The machines under `svm/NAME/`, by the number of the seed."""
    return {int(seed): row for seed, row in under(record, f"svm/{name}/").items() if seed.isdigit()}


def tangent_of(record: Record, depth: int, reading: str) -> dict[int, Mapping[str, Any]]:
    return {seed: row[reading] for seed, row in _tangents(record, depth).items()}


def _tangents(record: Record, depth: int) -> dict[int, Mapping[str, Any]]:
    """Those of the authors' networks, if they were fitted."""
    return machines_of(record, f"{AUTHORS}/{depth}") or machines_of(record, f"ntk/{depth}")


def networks_fitted(record: Record, depth: int) -> dict[int, Mapping[str, Any]]:
    """The networks whose tangent machines were fitted, by the number of the seed; of records whose machines do not name
    theirs, those of the same number."""
    by_seed = dict(enumerate(networks_of(record, depth)))
    found = {seed: row.get("network", by_seed.get(seed)) for seed, row in _tangents(record, depth).items()}
    return {seed: row for seed, row in found.items() if row is not None}


def spread(rows: Rows) -> dict[str, dict[str, float]]:
    """Mean and interval over seeds of both columns."""
    return {column: interval((row[column] for row in rows), SHARE) for column in COLUMNS}


def told(found: Mapping[str, dict[str, float]]) -> dict[str, Any]:
    return {column: short(values) for column, values in found.items()}


def matches_of(rows: Rows, features: str = "hidden") -> dict[str, dict[str, float]]:
    """The four columns of Table 2, mean and interval over seeds."""
    places = {
        "class 0 initial": ("initial matches", 0),
        "class 0 final": ("matches", 0),
        "class 1 initial": ("initial matches", 1),
        "class 1 final": ("matches", 1),
    }
    return {name: interval((row[key][features][label] for row in rows), SHARE) for name, (key, label) in places.items()}


def shown_orthants(orthants: int, seed: int) -> tuple[int, int, int]:
    """The three orthants of Figure 2, counted from the empty one: itself, a neighbour, and one that is not, at random."""
    far = np.bitwise_count(np.arange(orthants))
    random = numpy_generator(seed, "figure 2")
    return 0, int(random.choice(np.flatnonzero(far == 1))), int(random.choice(np.flatnonzero(far > 1)))


def array_of(record: Record, name: str) -> str:
    """The array of this name, or its like of the authors' networks."""
    return f"{AUTHORS}-{name}" if f"{AUTHORS}-{name}" in record.arrays else name


def network_curves(record: Record, depth: int = 3) -> np.ndarray | None:
    """Probabilities (seeds, three orthants, radii) of the networks."""
    rows, name = networks_of(record, depth), array_of(record, f"profile-{depth}")
    if not rows or name not in record.arrays:
        return None
    profiles = np.asarray(record.arrays[name], dtype=np.float64)
    return np.stack([p[list(shown_orthants(len(p), row["seed"]))] for p, row in zip(profiles, rows)])


def machine_curves(record: Record, reading: str, depth: int = 3) -> np.ndarray | None:
    """Shares of class 1 (seeds, three orthants, radii) of the tangent machines."""
    names = {s: array_of(record, f"share-{reading}-{depth}-{s}") for s in tangent_of(record, depth, reading)}
    seeds = [s for s, name in names.items() if name in record.arrays]
    if not seeds:
        return None
    shares = [np.asarray(record.arrays[names[seed]], dtype=np.float64) for seed in seeds]
    first = dict(record.seeds).get("seed", 0)
    return np.stack([share[list(shown_orthants(len(share), first + s))] for share, s in zip(shares, seeds)])


def dip(curve: np.ndarray) -> dict[str, Any]:
    """Where a curve over the radii is smallest, and whether that is near 1 and the curve is high at both ends."""
    radii = radii_probed().numpy()
    at, least = float(radii[curve.argmin()]), float(curve.min())
    holds = 0.7 <= at <= 1.4 and bool(min(curve[0], curve[-1]) >= HIGH > least)
    return {"at": at, "least": round(least, 3), "ends": [round(float(curve[k]), 3) for k in (0, -1)], "holds": holds}
