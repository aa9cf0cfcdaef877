"""Change points: false alarms, power, and places beside ruptures.

`change_point` on noise and on steps of one to three deviations, at three places of 100 values; the same series go to
ruptures (squared error, one change). `common_jump` on 10 seeds × 200 moments: steady growth, each seed's jump at a moment of
its own, and a share of the rise in one window that all seeds share. Steps vary as much as they rise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from benchmarks.outcome import Check, Outcome
from benchmarks.peers import Peer, PeerUnavailable
from ntkscope.core import numpy_generator
from ntkscope.measures.changepoint import change_point, common_jump

LENGTH, PLACES = 100, (20, 50, 75)
STEPS = {1: 0.25, 2: 0.25, 3: 1.0}  # deviations, and the share of the sets that are tried
SEEDS, MOMENTS, WINDOW = 10, 200, 10
LEVEL, NEAR = 0.05, 2
Draw = Callable[[np.random.Generator], np.ndarray]

NOISE: dict[str, Draw] = {
    "normal": lambda random: random.normal(size=LENGTH),
    "t with 2 degrees of freedom": lambda random: random.standard_t(2, size=LENGTH),
    "signs": lambda random: random.choice([-1.0, 1.0], size=LENGTH),
}
GROWTH: dict[str, Draw] = {
    "normal steps": lambda random: random.normal(1, 1, size=(SEEDS, MOMENTS)),
    "exponential steps": lambda random: random.exponential(size=(SEEDS, MOMENTS)),
    "own jumps, a third of the rise": lambda random: _own_jumps(random),
}
SHARES = (1 / 100, 1 / 50, 1 / 3)


def _own_jumps(random: np.random.Generator) -> np.ndarray:
    steps = random.normal(1, 1, size=(SEEDS, MOMENTS))
    steps[np.arange(SEEDS), random.integers(0, MOMENTS, SEEDS)] += MOMENTS / 2
    return steps


def _common(random: np.random.Generator, share: float) -> tuple[np.ndarray, int]:
    """Steps with `share` of the rise added within one window, and the moment at which that window begins."""
    steps, start = random.normal(1, 1, size=(SEEDS, MOMENTS)), int(random.integers(1, MOMENTS - WINDOW))
    steps[:, start : start + WINDOW] += share / (1 - share) * MOMENTS / WINDOW
    return steps, start - 1


def false_alarms(sets: int, permutations: int) -> list[dict[str, Any]]:
    """Rejections at 5 % of what has no change."""
    low, high = binom.interval(0.99, sets, LEVEL)
    rows = []
    for measure, laws in (("change_point", NOISE), ("common_jump", GROWTH)):
        for name, draw in laws.items():
            random = numpy_generator(0, "false alarms", name)
            rejected = 0
            for k in range(sets):
                series = draw(random)
                found = (
                    change_point(series, permutations=permutations, seed=k)
                    if measure == "change_point"
                    else common_jump(series.cumsum(1), window=WINDOW, permutations=permutations, seed=k)
                )
                rejected += found.p <= LEVEL
            rows.append(
                {"measure": measure, "on": name, "sets": sets, "rejected": rejected, "allowed": f"{low:.0f}–{high:.0f}"}
                | {"inside": bool(low <= rejected <= high)}
            )
    return rows


def steps_located(sets: int, permutations: int, peer: Peer | None, folder: str) -> list[dict[str, Any]]:
    """Share of steps located within ± 2 and found at 5 %, ours; located by ruptures on the same series."""
    rows = []
    for size, part in STEPS.items():
        for place in PLACES:
            random, count = numpy_generator(0, "steps", place, size), int(part * sets)
            series = random.normal(size=(count, LENGTH)) + size * (np.arange(LENGTH) >= place)
            found = [change_point(row, permutations=permutations, seed=k) for k, row in enumerate(series)]
            places = {"ours": [one.at or 0 for one in found]}
            if peer is not None:
                path = Path(folder) / "series.npy"
                np.save(path, series)
                places["ruptures"] = peer.ask("locate", path=str(path))["places"]
            row: dict[str, Any] = {"measure": "change_point", "sets": count}
            row["on"] = f"step of {size} deviation{'s' * (size > 1)} at {place} of {LENGTH}"
            row["found at 5 %"] = float(np.mean([one.p <= LEVEL for one in found]))
            for who, there in places.items():
                row[f"within ± {NEAR}, {who}"] = float(np.mean([abs(at - place) <= NEAR for at in there]))
            if peer is not None:
                row["same place as ruptures"] = float(np.mean(np.equal(places["ours"], places["ruptures"])))
            rows.append(row)
    return rows


def jumps_found(sets: int, permutations: int) -> list[dict[str, Any]]:
    """Common jumps found at 5 % and located within ± 2 moments."""
    rows = []
    for share in SHARES:
        random = numpy_generator(0, "jumps", f"{share:g}")
        found = near = 0
        for k in range(sets):
            steps, start = _common(random, share)
            jump = common_jump(steps.cumsum(1), window=WINDOW, permutations=permutations, seed=k)
            found += jump.p <= LEVEL
            near += abs(jump.at - start) <= NEAR
        row = {"measure": "common_jump", "on": f"{share:.0%} of the rise in {WINDOW} of {MOMENTS} steps", "sets": sets}
        rows.append(row | {"found at 5 %": found / sets, f"within ± {NEAR}, ours": near / sets})
    return rows


def run(quick: bool = False) -> Outcome:
    """The three tables and their promises."""
    sets, permutations = (40, 99) if quick else (400, 499)
    notes = [
        f"{permutations} permutations or shifts per p-value; allowed: the exact 99 % binomial interval around 5 %."
    ]
    alarms = false_alarms(sets, permutations)
    with tempfile.TemporaryDirectory() as folder:
        try:
            with Peer("ruptures") as peer:
                notes.append(f"ruptures {peer.ask('about')['version']}, model l2, one change, min_size=1, jump=1.")
                steps = steps_located(sets, permutations, peer, folder)
        except PeerUnavailable as error:
            notes.append(f"ruptures: {error}")
            steps = steps_located(sets, permutations, None, folder)
    jumps = jumps_found(sets, permutations)
    near = f"within ± {NEAR}, ours"
    ours = min(row[near] for row in steps if row["on"].startswith(f"step of {max(STEPS)}"))
    lead = [row[near] - row[f"within ± {NEAR}, ruptures"] for row in steps if f"within ± {NEAR}, ruptures" in row]
    worst = min(lead, default=0.0)
    third = jumps[-1]["found at 5 %"]
    inside = sum(row["inside"] for row in alarms)
    return Outcome(
        title="Change points: false alarms, power, and places beside ruptures",
        rows=[*alarms, *steps, *jumps],
        checks=[
            Check(
                "false alarms at 5 %",
                "inside the interval, every law",
                f"{inside} of {len(alarms)}",
                inside == len(alarms),
            ),
            Check("a step of three deviations within ± 2", "at least 95 % at every place", f"{ours:.1%}", ours >= 0.95),
            Check(
                "located no worse than ruptures",
                "every step and place",
                f"{worst:+.1%}",
                worst >= 0 if lead else None,
            ),
            Check("a common jump of a third of the rise is found", "at least 95 %", f"{third:.1%}", third >= 0.95),
        ],
        notes=notes,
        details={"permutations": permutations, "length": LENGTH, "seeds": SEEDS, "moments": MOMENTS, "window": WINDOW},
    )
