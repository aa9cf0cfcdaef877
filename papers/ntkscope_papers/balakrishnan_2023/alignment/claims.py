"""Balakrishnan (2023), Figures 8 to 19: what is published of alignment in training, and how each statement is judged.

The document shows one run of each. Here a statement about a run is a question to every seed, and holds if a majority of seeds
say yes with confidence (Wilson's 95 % interval above one half: nine of ten).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope.measures.uncertainty import wilson_interval
from ntkscope_papers.balakrishnan_2023.alignment.tasks import PICTURES, STARTS
from ntkscope_papers.framework import Reading, claim
from ntkscope_papers.framework.intervals import ANY, CORRELATION, R2, SHARE, estimate, interval, short

END = "end"
SEEDS = 10
TOGETHER = ("cosine", "correlation", "fit")
MOST = "in a majority of seeds (Wilson's 95 % interval above one half): "
P = 0.05
STILL = 0.9  # correlation of units' cosines with those at the start
INITIAL = "correlation with the network, initial kernel"
Cosines = Mapping[str, Any]
Asked = Callable[[Cosines], Sequence[bool | None]]

# -- how a record is read -----------------------------------------------------------------------------------------------------


def numbers(values: Iterable[Any]) -> list[float]:
    """What the record has as None is NaN."""
    return [math.nan if value is None else float(value) for value in values]


def mean_of(values: Iterable[Any], within: tuple[float, float] = ANY) -> dict[str, Any]:
    """Mean with its 95 % interval over the seeds where it is defined, and their number; empty if there are none.

    >>> mean_of([1.0, 3.0, None])
    {'estimate': 2.0, 'low': -10.7062, 'high': 14.7062, 'n': 2}
    """
    told = interval(numbers(values), within)
    return short(told) if told["n"] else {}


def at(row: Mapping[str, Any], epoch: int | str) -> list[float]:
    """Of every seed, a quantity at an epoch, or at the last one before it that was measured."""
    if epoch == END:
        return numbers(row[END])
    measured = max(float(key) for key in row if key != END and float(key) <= float(epoch))
    return numbers(row[f"{measured:g}"])


class Most:
    """In how many seeds something is the case: it holds if that is a majority with confidence, by Wilson's 95 % interval.

    Seeds in which it is undefined (None) do not count. Of ten seeds, nine are enough and eight are not.

    >>> Most([True] * 9 + [False]).holds, Most([True] * 8 + [False] * 2).holds, Most([True, None]).seeds
    (True, False, 1)
    """

    def __init__(self, truths: Sequence[bool | None]) -> None:
        counted = [truth for truth in truths if truth is not None]
        self.seeds, self.true = len(counted), sum(counted)
        self.interval = wilson_interval(self.true, self.seeds)

    @property
    def holds(self) -> bool:
        return self.interval[0] > 0.5

    def told(self) -> dict[str, Any]:
        share = self.true / self.seeds if self.seeds else math.nan
        return {"share of seeds": estimate(share, *self.interval, self.seeds, 3)}


def each(*columns: Sequence[float]) -> list[tuple[float, ...] | None]:
    """The values of every seed, side by side; None where one is undefined."""
    return [row if all(math.isfinite(value) for value in row) else None for row in zip(*columns)]


def lags(jumps: Mapping[str, Any], how: str = "epoch") -> dict[str, dict[str, Any]]:
    """How much later than that of the cosines each series' jump comes, in epochs, paired by seed: mean and interval.

    `how`: "epoch" for the steepest epoch, "change" for the change of level.
    """
    found = {}
    for name, row in jumps.items():
        if name != "cosine":
            pairs = each(numbers(jumps["cosine"][how]), numbers(row[how]))
            found[name] = mean_of(None if pair is None else pair[1] - pair[0] for pair in pairs)
    return found


def common(jumps: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Epoch, share of the rise and p of the jump that seeds have in common."""
    return {
        name: {key: jumps[name]["common"][key] for key in ("epoch", "share", "p")} for name in names if name in jumps
    }


def silence(half: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the alignment's half-rise comes before the loss's half-fall: the interval of the lag lies above 0.

    None where fewer than two seeds have both.
    """
    told = interval(numbers(half["lag"]))
    return {
        "lag, epochs": mean_of(half["lag"]),
        "half-rise of the alignment": mean_of(half["alignment"]),
        "half-fall of the loss": mean_of(half["loss"]),
        "loss fallen by then": mean_of(half["loss fallen"]),
        "silent": None if told["n"] < 2 else bool(told["low"] > 0),
    }


def beside(row: Mapping[str, Any], asked: Asked) -> str:
    """How many seeds say yes at the other learning rates."""
    words = []
    for rate, other in row.get("other rates", {}).items():
        found, fit = Most(asked(other["cosines"])), mean_of(other["network"]["fit"])
        said = f"{fit['estimate']:.3g}" if fit else "undefined"
        words.append(f"at learning rate {rate}: {found.true} of {found.seeds}, network's R² {said}")
    return "; ".join(words)


def by_authors(record: Record, leg: str) -> tuple[Mapping[str, Any], str]:
    """What was measured by the authors' own settings, if it was, with a word on it."""
    found = record.metrics.get(f"authors/{leg}")
    return (record.metrics[leg], "") if found is None else (found, "judged by the settings of the public code;")


def course(row: Mapping[str, Any]) -> dict[str, Any]:
    """When each series jumps, how much later than the cosines, and whether in all seeds together; how well the network fits,
    and whether its alignment was silent."""
    jumps = row["jumps"]
    return {
        "steepest epoch begins at": {name: mean_of(jumps[name]["epoch"]) for name in jumps},
        "lag behind the cosines, epochs": lags(jumps),
        "lag of changes of level": lags(jumps, how="change"),
        "common jump": common(jumps, jumps),
        "network's R²": mean_of(row["network"]["fit"], R2),
        "silence": silence(row["half"]),
    }


# -- claims -------------------------------------------------------------------------------------------------------------------


def _shares(cosines: Cosines) -> dict[str, Any]:
    return {
        "share of units ≥ 0.8 after epoch 1": mean_of(at(cosines["share ≥ 0.8"], 1), SHARE),
        "at the end": mean_of(at(cosines["share ≥ 0.8"], END), SHARE),
        "mean |cos| after epoch 1": mean_of(at(cosines["mean"], 1), SHARE),
    }


def _early(least: float, most: float, cosines: Cosines) -> list[bool | None]:
    """Whether the share of aligned units after epoch 1 is in this range."""
    return [least <= value <= most if math.isfinite(value) else None for value in at(cosines["share ≥ 0.8"], 1)]


def _static(cosines: Cosines) -> list[bool | None]:
    pairs = each(at(cosines["largest"], 0), at(cosines["largest"], END))
    return [None if pair is None else pair[1] <= pair[0] + 0.15 for pair in pairs]


def _largest(cosines: Cosines) -> dict[str, Any]:
    return {
        f"largest |cos|, {name}": mean_of(at(cosines["largest"], when), SHARE)
        for name, when in (("start", 0), ("end", END))
    }


def of_cosines(
    leg: str, asked: Asked, shown: Callable[[Cosines], dict[str, Any]], config: Any, record: Record
) -> Reading:
    """A question to the cosines of a task."""
    row, said = by_authors(record, leg)
    found = Most(asked(row["cosines"]))
    if said:
        own = Most(asked(record.metrics[leg]["cosines"]))
        said += f" by those of this experiment {own.true} of {own.seeds}"
    words = "; ".join(word for word in (said, beside(row, asked)) if word)
    return Reading({**found.told(), **shown(row["cosines"]), **course(row)}, found.holds, words, seeds=found.seeds)


COSINES = [
    claim(identity, source, published, MOST + check, needs=[leg], seeds=SEEDS)(partial(of_cosines, leg, asked, shown))
    for leg, identity, source, published, check, asked, shown in (
        (
            "d3",
            "relu-fig8-d3-cosines",
            "Appendix B, Figure 8",
            {"degree": 3, "epoch": 1},
            "at least 10 % of the units have |cos| ≥ 0.8 after epoch 1",
            partial(_early, 0.1, 1.0),
            _shares,
        ),
        (
            "d6",
            "relu-fig9-d6-cosines",
            "Appendix B, Figure 9",
            {"degree": 6, "epoch": 1},
            "at most 2 % of the units have |cos| ≥ 0.8 after epoch 1",
            partial(_early, 0.0, 0.02),
            _shares,
        ),
    )
]


@claim("relu-d8-static", "Appendix B, Figure 13", {"degree": 8}, seeds=SEEDS, needs=["d8"])
def static(config: Any, record: Record) -> Reading:
    """in a majority of seeds (Wilson's 95 % interval above one half): largest |cos| of the trained network at most 0.15 above
    that of the initial one; and, of weights that are hardly updated, cosines of units that correlate with those at the start by
    0.9 or more"""
    found = of_cosines("d8", _static, _largest, config, record)
    name = "cosines-authors-d8" if "authors/d8" in record.metrics else "cosines-d8"
    if name not in record.arrays:
        return replace(found, other="how far the weights move was not kept")
    units = np.asarray(record.arrays[name], dtype=np.float64)[:SEEDS]
    kept = [float(np.corrcoef(one[0], one[-1])[0, 1]) for one in units]
    still = Most([value >= STILL for value in kept])
    told = {"weights still": still.told(), "units' cosines, start against end": mean_of(kept, CORRELATION)}
    told |= {"no alignment": found.measured}
    return replace(found, measured=told, holds=bool(found.holds) and still.holds)


@claim(
    "relu-d7-jump-epoch2",
    "Section 5.2.3, Appendix B, Figures 10–12",
    {"degree": 7, "epoch": 2},
    seeds=SEEDS,
    needs=["d7"],
)
def together(config: Any, record: Record) -> Reading:
    """in a majority of seeds (Wilson's 95 % interval above one half): the steepest epochs of mean |cos|, correlation and R²
    begin within one epoch of each other and within the first five; each of the three jumps together in all seeds (p ≤ 0.05)"""
    row = record.metrics["d7"]
    jumps = row["jumps"]
    epochs = each(*(numbers(jumps[name]["epoch"]) for name in TOGETHER))
    found = Most([None if three is None else max(three) - min(three) <= 1 and max(three) < 5 for three in epochs])
    shared = common(jumps, TOGETHER)
    gathered = all((p := shared[name]["p"]) is not None and p <= P for name in TOGETHER)
    measured = {**found.told(), **course(row)}
    note = "the document's epoch 2 is one run; a jump during it begins between 0 and 2 here"
    return Reading(measured, found.holds and gathered, note, seeds=found.seeds)


@claim(
    "relu-d11corr-epoch16",
    "Section 5.2.3, Appendix B, Figures 14–16",
    {"degree": 11, "epoch": 16, "cos above": 0.5},
    seeds=SEEDS,
    needs=["d11-correlated"],
)
def slow(config: Any, record: Record) -> Reading:
    """in a majority of seeds (Wilson's 95 % interval above one half): the first |cos| above 0.5 comes between epochs 5 and 40,
    and the correlation rises by at most 0.3 within any epoch around it"""
    row = record.metrics["d11-correlated"]
    when, rises = numbers(row["cosines"]["first above 0.5"]), numbers(row["correlation at the crossing"])
    truths: list[bool | None] = []
    for epoch, rise in zip(when, rises):
        if not 5 <= epoch <= 40:  # NaN, for never, among them
            truths.append(False)
        else:
            truths.append(None if not math.isfinite(rise) else rise <= 0.3)
    found = Most(truths)
    measured = {
        **found.told(),
        "first |cos| > 0.5 at epoch": mean_of(when),
        "seeds with one": sum(map(math.isfinite, when)),
        "share of units ≥ 0.5 after epoch 16": mean_of(at(row["cosines"]["share ≥ 0.5"], 16), SHARE),
        "largest |cos| by epoch": {
            str(e): mean_of(at(row["cosines"]["largest"], e), SHARE) for e in (0, 1, 5, 16, 40, END)
        },
        "rise of the correlation around it": mean_of(rises),
        **course(row),
    }

    def crossing(cosines: Cosines) -> list[bool | None]:
        return [5 <= epoch <= 40 for epoch in numbers(cosines["first above 0.5"])]

    other = beside(row, crossing)
    note = f"crossings between epochs 5 and 40 {other}" if other else ""
    return Reading(measured, found.holds, note, seeds=found.seeds)


@claim(
    "relu-d12corr-epoch1",
    "Appendix B, Figures 17–19",
    {"degree": 12, "epoch": 1},
    seeds=SEEDS,
    needs=["d12-correlated"],
)
def first_epoch(config: Any, record: Record) -> Reading:
    """in a majority of seeds (Wilson's 95 % interval above one half): mean |cos| changes more in epoch 1 than from then to the
    end, and the correlation is lower at the end than after epoch 1"""
    row, said = by_authors(record, "d12-correlated")
    mean, correlation = row["cosines"]["mean"], row["machine"]["correlation"]
    cosines = [at(mean, when) for when in (0, 1, END)]
    moved = [None if three is None else abs(three[1] - three[0]) > abs(three[2] - three[1]) for three in each(*cosines)]
    weaker = [None if pair is None else pair[1] < pair[0] for pair in each(at(correlation, 1), at(correlation, END))]
    found = Most([None if a is None or b is None else a and b for a, b in zip(moved, weaker)])
    measured = {
        **found.told(),
        "mean |cos| at the start, after epoch 1, at the end": [mean_of(values, SHARE) for values in cosines],
        "cosines moved in epoch 1": Most(moved).told(),
        "correlation by epoch": {str(e): mean_of(at(correlation, e), CORRELATION) for e in (0, 1, 20, END)},
        "correlation weaker at the end": Most(weaker).told(),
        "R² of the machine at the end": mean_of(at(row["machine"]["fit"], END), R2),
        "spread of the network's outputs / targets": mean_of(row["network"]["spread"]),
        **course(row),
    }
    note = said + (
        " the correlation of two nearly constant functions is that of what little they vary; where either varies by less than"
        " a thousandth of the targets it is undefined and the seed does not count"
    )
    return Reading(measured, found.holds, note, seeds=found.seeds)


def _closeness(row: Mapping[str, Any]) -> tuple[Most, dict[str, Any]]:
    correlation = row["machine"]["correlation"]
    pairs = each(at(correlation, 0), at(correlation, END))
    found = Most([None if pair is None else pair[1] > pair[0] and pair[1] >= 0.9 for pair in pairs])
    return found, {
        **found.told(),
        INITIAL: mean_of(at(correlation, 0), CORRELATION),
        "final kernel": mean_of(at(correlation, END), CORRELATION),
        "final kernel, more points": mean_of(at(row["more points"]["correlation"], END), CORRELATION),
        "network's R²": mean_of(row["network"]["fit"], R2),
        "silence": silence(row["half"]),
    }


@claim(
    "relu-silent-alignment-reported",
    "Section 2",
    "MNIST and CIFAR-10, classes 0 and 1: the final NTK's machine is close to the network, the initial one's is not",
    seeds=SEEDS,
    needs=[f"{name}/small" for name in PICTURES],
)
def reported(config: Any, record: Record) -> Reading:
    """from a small start, on both: in a majority of seeds (Wilson's 95 % interval above one half): test correlation with the
    network ≥ 0.9 for the final kernel, and above that of the initial one"""
    measured, judged, words = {}, [], []
    for name in PICTURES:
        for start in STARTS:
            if (leg := f"{name}/{start}") in record.metrics:
                found, measured[leg] = _closeness(record.metrics[leg])
                if start == "small":
                    judged.append(found)
                else:
                    words.append(f"{leg}: {found.true} of {found.seeds}")
    note = "network, width and start are not stated: one hidden layer, judged from a small start"
    if words:
        note += f"; from PyTorch's own, {', '.join(words)}"
    initial = [measured[f"{name}/small"][INITIAL]["estimate"] for name in PICTURES]
    if min(initial) >= 0.9:
        note += (
            f"; the statement goes further than its check: the initial kernel's correlations are high too, {initial}"
        )
    return Reading(measured, all(found.holds for found in judged), note, seeds=min(found.seeds for found in judged))
