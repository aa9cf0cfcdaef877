"""Balakrishnan (2023), appendix A: what is published of the training modes, and verdicts from a record of `training-modes`.

Judged as the text reads most plainly, with the whole first layer frozen, the optimiser's state kept and raw targets; what
the other readings say is in the note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float64

from ntkscope.core import Record
from ntkscope_papers.balakrishnan_2023.polynomials.data import Task
from ntkscope_papers.balakrishnan_2023.polynomials.readings import over_seeds
from ntkscope_papers.framework.claims import Read, Reading, claim, lacking
from ntkscope_papers.framework.intervals import R2, interval

MODES = ("reg", "stop-first", "first-last", "reinit")
RESTRICTED = MODES[1:]
FREEZES = ("layer", "weights")
STATES = ("kept", "reset")
PLAIN = ("layer", "kept")


def networks_key(mode: str, freeze: str, state: str) -> str:
    return f"networks/{mode}" if mode == "reg" else f"networks/{mode}/{freeze}/{state}"


def kernels_key(mode: str, degree: int) -> str:
    """Of the machines with the NTK of a mode's networks, or with the Gaussian kernel (`mode` "rbf")."""
    return f"kernels/{mode}/{degree}"


def variants() -> list[tuple[str, str]]:
    """What is frozen and what becomes of the optimiser's state, the plain reading first."""
    return list(product(FREEZES, STATES))


class Modes:
    """A record's networks in one reading: what is frozen, what becomes of the optimiser's state, and the targets."""

    def __init__(self, record: Record, freeze: str, state: str, target: str) -> None:
        self._metrics, self._variant, self._target = record.metrics, (freeze, state), target

    def scores(self, mode: str, degree: int) -> Mapping[str, Any]:
        key = networks_key(mode, *self._variant)
        found: Mapping[str, Any] = self._metrics[key]["tasks"][Task("isotropic", degree, self._target).key]
        return found

    def of(self, mode: str, degree: int, what: str = "r2 test") -> Float64[np.ndarray, " seeds"]:
        return np.array(self.scores(mode, degree)[what])

    def machine(self, mode: str, degree: int, model: str) -> Float64[np.ndarray, " seeds"]:
        return np.array(self._metrics[kernels_key(mode, degree)]["models"][model]["mse test"])

    def r2(self, degree: int) -> dict[str, Any]:
        return {mode: over_seeds(self.of(mode, degree), R2) for mode in MODES}


Judged = Callable[[Modes], tuple[Any, bool]]


def needed(*variant: str) -> list[str]:
    return [networks_key(mode, *variant) for mode in MODES]


def on_readings(judged: Judged, *further: str) -> Read:
    """A reading of the plain case; whether the check holds in the others, where they were measured, is in the note.

    `further`: legs that the check needs besides the networks.
    """

    def read(config: Any, record: Record) -> Reading:
        if absent := [key for key in (*needed(*PLAIN), *further) if key not in record.metrics]:
            return lacking(*absent)
        first = config.targets[0]
        measured, holds = judged(Modes(record, *PLAIN, first))
        others = {}
        for (freeze, state), target in product(variants(), config.targets):
            if (freeze, state, target) == (*PLAIN, first) or any(
                key not in record.metrics for key in needed(freeze, state)
            ):
                continue
            others[f"{freeze} frozen, state {state}, {target}"] = judged(Modes(record, freeze, state, target))[1]
        against = [name for name, held in others.items() if held != holds]
        note = (
            f"the verdict is the same in {len(others) - len(against)} of {len(others)} other readings" if others else ""
        )
        note += f", not in: {'; '.join(against)}" if against else ""
        return Reading(measured, holds, note, seeds=config.kernel_seeds if further else config.seeds)

    return read


@claim(
    "relu-poly-modes",
    "Section 5.1.1",
    {"modes": list(MODES), "epochs before the switch": 1},
    "first-layer weights bit-identical after epoch 1 in three modes, readout weights unchanged in epoch 1"
    " of first-last; both change in reg",
)
def _frozen(config: Any, record: Record) -> Reading:
    keys = [networks_key(mode, *variant) for mode in MODES for variant in variants()]
    keys = list(dict.fromkeys(keys))
    if absent := [key for key in keys if key not in record.metrics]:
        return lacking(*absent)
    measured, holds = {}, True
    for key in keys:
        changes = record.metrics[key]["changes"]
        still = changes["first-layer weights after epoch 1"] == 0
        readout = changes["readout weights in epoch 1"] == 0
        holds = holds and still == (key != "networks/reg") and readout == ("first-last" in key)
        if "/layer/" in key or "/weights/" in key:
            holds = holds and (changes["first-layer biases after epoch 1"] == 0) == ("/layer/" in key)
        measured[key.removeprefix("networks/")] = changes
    note = "where the weights alone are frozen the biases of the first layer go on learning"
    return Reading(measured, holds, note)


def _odd_even(modes: Modes) -> tuple[Any, bool]:
    three, six = ({mode: float(modes.of(mode, degree).mean()) for mode in MODES} for degree in (3, 6))
    holds = min(three.values()) >= 0.8 and all(six["reg"] - six[mode] >= 0.3 for mode in RESTRICTED)
    return {"3": modes.r2(3), "6": modes.r2(6)}, holds


def _three(modes: Modes) -> tuple[Any, bool]:
    reg, gaps = modes.of("reg", 3), {}
    for mode in RESTRICTED:
        gaps[mode] = interval(modes.of(mode, 3) - reg)
    best = all(gap["low"] <= 0 for gap in gaps.values())
    enough = all(float(modes.of(mode, 3).mean()) >= 0.85 for mode in MODES)
    differences = {mode: [round(gap[end], 4) for end in ("mean", "low", "high")] for mode, gap in gaps.items()}
    return {"R²": modes.r2(3), "less reg": differences}, enough and best


def _six(modes: Modes) -> tuple[Any, bool]:
    means = {mode: float(modes.of(mode, 6, "mse test").mean()) for mode in MODES}
    rbf = modes.machine("rbf", 6, "rbf svr")
    machines = {mode: modes.machine(mode, 6, "ntk svr") for mode in MODES}
    learning = {mode: modes.machine(mode, 6, "learning ntk svr") for mode in RESTRICTED}
    far = all(means["reg"] <= 0.5 * means[mode] for mode in RESTRICTED)
    own = all(float(rbf.mean()) < means[mode] for mode in RESTRICTED)
    below = all(float(rbf.mean()) < float(machines[mode].mean()) for mode in RESTRICTED)
    measured = {
        "network": {mode: over_seeds(modes.of(mode, 6, "mse test")) for mode in MODES},
        "NTK": {mode: over_seeds(values) for mode, values in machines.items()},
        "NTK of what learns": {mode: over_seeds(values) for mode, values in learning.items()},
        "RBF": over_seeds(rbf),
    }
    return measured, far and own and below


RELU_POLY_MODES_ODD_EVEN = claim(
    "relu-poly-modes-odd-even",
    "Section 5.2.1",
    "restricted modes fit odd degrees and fail at even ones",
    "mean test R²: ≥ 0.8 in all modes at degree 3; at degree 6 in the restricted modes at least 0.3 below reg",
    seeds=10,
)(on_readings(_odd_even))
RELU_APPA_D3_MODES = claim(
    "relu-appA-d3-modes",
    "Appendix A, Figure 6",
    "degree 3: reg slightly better, results not significantly affected; NTK beats RBF",
    "mean test R² ≥ 0.85 in all four modes; no mode's is above that of reg by more than the interval of the paired"
    " difference",
    seeds=10,
)(on_readings(_three))
RELU_APPA_D6_MODES = claim(
    "relu-appA-d6-modes",
    "Appendix A, Figure 7",
    "degree 6: reg vastly outperforms the rest; RBF outperforms the network and its NTK in these",
    "mean test MSE of reg ≤ 0.5 of each restricted mode's; mean test MSE of the RBF SVR below that of the network and"
    " of the NTK SVR in each restricted mode",
    seeds=3,
)(on_readings(_six, *(kernels_key(mode, 6) for mode in ("rbf", *MODES))))
