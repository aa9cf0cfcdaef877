"""What certificates cost: the same kernel with every block held to plain autograd, with one in eight, and with none."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

import ntkscope as ns
from benchmarks import networks
from benchmarks.networks import Case
from benchmarks.outcome import Check, Outcome
from benchmarks.timing import interleaved, ratio, wall

MEMORY = "8GiB"
ROUNDS, QUICK_ROUNDS = 7, 1
ALLOWED = {"all": 0.15, "one": 0.50}  # of the time without certificates


def call(case: Case, outputs: int | None, certify: str | bool) -> Callable[[], Tensor]:
    return lambda: ns.kernel("trntk0", case.model, case.x, outputs=outputs, memory=MEMORY, certify=certify).dense()


def run(quick: bool = False) -> Outcome:
    rows, checks = [], []
    for name, size in (networks.QUICK_SIZES if quick else networks.SIZES).items():
        case = networks.case(name, size)
        for label, outputs in (("all", None), ("one", 0)):
            modes: tuple[str | bool, ...] = ("every", "sampled", False)
            timed = {str(mode): wall(call(case, outputs, mode)) for mode in modes}
            spreads = interleaved(timed, rounds=QUICK_ROUNDS if quick else ROUNDS)
            cost = ratio(spreads["every"], spreads["False"])
            rows.append(
                {
                    "network": name,
                    "inputs": size,
                    "outputs": "all 10" if outputs is None else 1,
                    "every": str(spreads["every"]),
                    "sampled": str(spreads["sampled"]),
                    "none": str(spreads["False"]),
                    "cost": f"{cost.median - 1:+.1%} ({cost.low - 1:+.1%} … {cost.high - 1:+.1%})",
                }
            )
            allowed = ALLOWED[label]
            checks.append(
                Check(
                    f"{name}, {label} outputs: certificates on every block",
                    f"≤ {allowed:.0%} more time",
                    f"{cost.median - 1:+.1%}",
                    None if quick else cost.median - 1 <= allowed,
                )
            )
            print(rows[-1], flush=True)
    return Outcome("What certificates cost", rows, checks)
