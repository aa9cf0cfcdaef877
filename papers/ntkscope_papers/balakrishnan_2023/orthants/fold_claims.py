"""Fold or copy: this project's statements on how networks answer in an orthant they never saw, and how each is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope.measures.uncertainty import bootstrap_means, percentile_interval
from ntkscope_papers.balakrishnan_2023.orthants.machines import READINGS as OUTPUTS
from ntkscope_papers.balakrishnan_2023.orthants.swap_effect import SwapEffect, swap_effect
from ntkscope_papers.framework.claims import Reading, claim, lacking
from ntkscope_papers.framework.intervals import SHARE, interval, short
from ntkscope_papers.framework.results import under

SMALL = 0.1  # an effect within this of 0 is folding
SEEDS = 10


def swaps_of(record: Record) -> dict[int, Mapping[str, Any]]:
    """What was measured of each depth."""
    return {int(depth): row for depth, row in under(record, "swaps/").items()}


def effect_of(row: Mapping[str, Any]) -> SwapEffect:
    """The swap effect at one depth."""
    near, far = ([one["empty"] for one in row[arm]] for arm in ("near", "far"))
    return swap_effect(near, far)


def profile_gaps(row: Mapping[str, Any]) -> list[float]:
    """Of each seed: correlation one sign from the empty orthant minus that of its opposite; NaN where one is not known."""
    profiles = [profile["empty"] for profile in row["folding"]]
    return [np.nan if None in (p[1], p[-1]) else p[1] - p[-1] for p in profiles]


def attributions_of(record: Record, depth: int) -> list[Mapping[str, Any]]:
    return list(under(record, f"attribution/{depth}/").values())


def _missing(config: Any, record: Record, name: str) -> Reading | None:
    """Where a depth was not measured: which legs are lacking."""
    have = {int(key.split("/")[0]) for key in under(record, f"{name}/")}
    absent = [f"{name}/{depth}" for depth in config.depths if depth not in have]
    return lacking(*absent) if absent else None


def _fewest(record: Record) -> int:
    return min(len(row["plain"]) for row in swaps_of(record).values())


def _told(effect: SwapEffect) -> list[float]:
    return [round(value, 4) for value in (effect.mean, effect.low, effect.high)]


@claim(
    "own-swap-effect-planted",
    "this project",
    "the swap effect tells learners that copy their neighbours from those that fold",
    "a planted copier >= 0.9, a planted folder within 0.05 of 0",
    needs=["planted"],
)
def _planted(config: Any, record: Record) -> Reading:
    found = record.metrics["planted"]
    effects = {kind: found[kind]["effect"] for kind in ("copier", "folder")}
    return Reading(effects, effects["copier"] >= 0.9 and abs(effects["folder"]) <= 0.05)


@claim(
    "own-swaps-are-learned",
    "this project",
    "networks learn exchanged labels where they have training items",
    "mean accuracy against the exchanged labels >= 0.8 in the swapped orthants, near and far, at every depth",
    seeds=SEEDS,
)
def _learned(config: Any, record: Record) -> Reading:
    if (missing := _missing(config, record, "swaps")) is not None:
        return missing
    found = {
        f"{arm}, depth {depth}": interval((one["exchanged labels"] for one in row[arm]), SHARE)
        for depth, row in swaps_of(record).items()
        for arm in ("near", "far")
    }
    holds = all(row["mean"] >= 0.8 for row in found.values())
    return Reading({name: short(row) for name, row in found.items()}, holds, seeds=_fewest(record))


@claim(
    "own-depth-3-folds",
    "this project",
    "networks of three hidden layers fold: what they say in the empty orthant does not hang on its neighbours",
    f"at depth 3 the bootstrap interval of the swap effect within ±{SMALL}, mean plain accuracy there >= 0.65",
    seeds=SEEDS,
    needs=["swaps/3"],
)
def _folds(config: Any, record: Record) -> Reading:
    row = swaps_of(record)[3]
    effect, plain = effect_of(row), interval((one["empty"] for one in row["plain"]), SHARE)
    holds = effect.low >= -SMALL and effect.high <= SMALL and plain["mean"] >= 0.65
    return Reading({"swap effect": _told(effect), "plain accuracy": short(plain)}, holds, seeds=len(row["plain"]))


@claim(
    "own-networks-copy",
    "this project",
    "networks copy: their answers in the empty orthant follow the neighbours' labels",
    f"the bootstrap interval of the swap effect above {SMALL} at every depth",
    seeds=SEEDS,
)
def _copies(config: Any, record: Record) -> Reading:
    if (missing := _missing(config, record, "swaps")) is not None:
        return missing
    found = {depth: effect_of(row) for depth, row in swaps_of(record).items()}
    arms = {
        f"{arm}, depth {depth}": round(float(np.mean([one["empty"] for one in row[arm]])), 3)
        for depth, row in swaps_of(record).items()
        for arm in ("plain", "near", "far")
    }
    note = "accuracy in the empty orthant: " + ", ".join(f"{name} {value}" for name, value in arms.items())
    holds = all(effect.low > SMALL for effect in found.values())
    return Reading({str(depth): _told(effect) for depth, effect in found.items()}, holds, note, seeds=_fewest(record))


@claim(
    "own-copying-grows-with-depth",
    "this project",
    "networks of four and five hidden layers copy more than those of three",
    "interval of the difference in swap effect, paired over seeds, above 0 for both",
    seeds=SEEDS,
    needs=["swaps/3", "swaps/4", "swaps/5"],
)
def _grows(config: Any, record: Record) -> Reading:
    effects = {depth: np.array(effect_of(row).each) for depth, row in swaps_of(record).items()}
    found = {}
    for depth in (4, 5):
        gaps = effects[depth] - effects[3]
        means = bootstrap_means(gaps[:, None], lambda means: means, resamples=10_000)[:, 0]
        ends = percentile_interval(means, items=len(gaps))
        found[f"{depth} - 3"] = [round(float(value), 4) for value in (gaps.mean(), *ends)]
    return Reading(found, all(low > 0 for _, low, _ in found.values()), seeds=len(effects[3]))


@claim(
    "own-mirror-images-fade",
    "this project",
    "networks treat mirror images the less alike the more signs differ",
    "correlation one sign from the empty orthant minus that at all signs: interval over seeds above 0 at every depth",
    seeds=SEEDS,
)
def _fades(config: Any, record: Record) -> Reading:
    if (missing := _missing(config, record, "swaps")) is not None:
        return missing
    found = {depth: interval(profile_gaps(row)) for depth, row in swaps_of(record).items()}
    holds = all(row["n"] > 1 and row["low"] > 0 for row in found.values())
    fewest = int(min(row["n"] for row in found.values()))
    return Reading({str(depth): short(row) for depth, row in found.items()}, holds, seeds=fewest)


@claim(
    "own-attribution-is-near",
    "this project",
    "tangent machines make their scores in the empty orthant of its neighbours",
    "share of Σ|c_i K| at distance 1 at least twice those orthants' share of the items, mean over seeds, every depth,"
    " both readings",
    seeds=3,
)
def _near(config: Any, record: Record) -> Reading:
    if (missing := _missing(config, record, "attribution")) is not None:
        return missing
    found, fewest = {}, 10**9
    for depth in config.depths:
        rows = attributions_of(record, depth)
        fewest = min(fewest, len(rows))
        for reading in OUTPUTS:
            found[f"{reading}, depth {depth}"] = interval(
                row[reading]["mass"][0] / row[reading]["items"][0] for row in rows
            )
    holds = all(row["mean"] >= 2 for row in found.values())
    note = "times the share of the items"
    return Reading({name: short(row) for name, row in found.items()}, holds, note, seeds=fewest)
