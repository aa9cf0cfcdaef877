"""Verdicts on the statements of sections 3 and 4.1 from a record of `linearized-lenet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from ntkscope import models
from ntkscope.core import Record
from ntkscope_papers.framework import Reading, claim, lacking
from ntkscope_papers.samarin_2022 import readings as read

GAPS = {
    "mnist": {"x1": 4.67, "x60": 0.48},
    "shifted": {"x1": 27.65, "x60": 3.91},
    "cifar10": {"x1": 20.22, "x60": 13.17},
}
TITLES = {"mnist": "MNIST", "shifted": "shifted MNIST", "cifar10": "CIFAR-10"}
GRIDS = ["grid/mnist/network", "grid/mnist/linear"]


def legs_of(task: str, *widths: int) -> list[str]:
    return [f"train/{task}/x{width}" for width in widths]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def table(record: Record, task: str) -> dict[str, Any]:
    """Accuracies and gaps of every width, as a claim shows them."""
    found = {}
    for width in read.widths(record, task):
        gap = read.gaps(record, task, width)
        network, linear = (mean(read.accuracies(record, task, width, kind)) for kind in ("network", "linear"))
        found[f"x{width}"] = {
            "LeNet": round(network, 2),
            "LinLeNet": round(linear, 2),
            "gap": round(gap["mean"], 2),
            "sem": round(gap["sem"], 2),
            "n": gap["n"],
        }
    return found


def _missing(record: Record, task: str, widths: Sequence[int]) -> tuple[str, ...]:
    return tuple(legs_of(task, *(width for width in widths if width not in read.widths(record, task))))


def identity_reading(names: Sequence[str], config: Any, record: Record) -> Reading:
    """The deviations of an equation, at most 1e-5; those of Eq. 2 fall about fourfold when u is halved."""
    measured = {name: record.metrics["identities"][name] for name in names}
    holds = all(value <= 1e-5 for name, value in measured.items() if name not in ("eq2 factors", "outputs"))
    holds = holds and all(3 <= factor <= 5 for factor in measured.get("eq2 factors", ()))
    note = ""
    if "outputs" in names:
        note = "L passes make the gradients one by one; the sum that training needs takes one jvp and one vjp"
    return Reading(measured, holds, note, exact=True)


EQUATIONS = [
    claim(f"linearized-{id}", source, published, check, needs=["identities"])(partial(identity_reading, names))
    for id, source, published, check, names in (
        (
            "eq1-ntk",
            "Eq. 1",
            "Θ is the sum over parameters of products of derivatives",
            "explicit sum to 1e-5, relative",
            ["eq1"],
        ),
        (
            "eq2-linearisation",
            "Eq. 2",
            "f(w₀) + J u",
            "f at u = 0; linear in u to 1e-5; error falls by 3 to 5 when u is halved",
            ["eq2 start", "eq2 linear", "eq2 factors"],
        ),
        ("eq3-gradient", "Eq. 3", "2 Σ ∇f (f_lin − y)", "autograd on u equals the formula to 1e-5, relative", ["eq3"]),
        (
            "L-backward-passes",
            "Section 3",
            {"L": 10},
            "one jvp and one vjp give the sum over L = 10 outputs, made with L passes, to 1e-5, relative",
            ["eq3", "outputs"],
        ),
    )
]


@claim("linearized-nearest-onehot", "Section 3", "the nearest one-hot vector is the argmax", needs=["identities"])
def _nearest(config: Any, record: Record) -> Reading:
    """on all of 1,000 random outputs"""
    found = record.metrics["identities"]["nearest"]
    return Reading(found, found == 1.0, exact=True)


def parameters(network: str = "lenet", **options: Any) -> int:
    """Of a network with these options, without allocating it."""
    with torch.device("meta"):
        return sum(p.numel() for p in models.build(network, seed=None, **options).parameters())


@claim("linearized-lenet-params", "Section 3", {"x1": 60000, "x2": 240000})
def _counts(config: Any, record: Record) -> Reading:
    """exact counts within 5 % of 60,000 · factor²"""
    found = {f"x{width}": parameters(width=width) for width in (1, 2, 5, 10, 25, 60)}
    holds = all(abs(count / (60_000 * int(name[1:]) ** 2) - 1) <= 0.05 for name, count in found.items())
    return Reading(found, holds, "28x28 images padded by 2; without padding 44,426 at x1", exact=True)


@claim("linearized-params-at-max-width", "Section 3", {"LeNet x60": 216e6, "AlexNet x4": 960e6})
def _widest(config: Any, record: Record) -> Reading:
    """LeNet x60 within 1 %; AlexNet x4 as printed is 5 % too many: 60 million are those of 1,000 outputs"""
    found = {"LeNet x60": parameters(width=60), "AlexNet x4": parameters("alexnet", width=4)}
    note = "AlexNet x4 has 911.8 million with 10 outputs; 960 million are 16 times the 60 million of 1,000 outputs"
    return Reading(found, abs(found["LeNet x60"] / 216e6 - 1) <= 0.01, note, exact=True)


@claim("linearized-shift-quarter", "Section 4.1", {"max_shift": 7, "side": 28})
def _quarter(config: Any, record: Record) -> Reading:
    """7/28 is 1/4"""
    return Reading(7 / 28, 7 / 28 == 0.25, exact=True)


@claim(
    "linearized-training-setting",
    "Section 4",
    {"epochs": 100, "batch": 32, "momentum": 0.9, "lr drop": "10 every 30 epochs on CIFAR-10"},
)
def _setting(config: Any, record: Record) -> Reading:
    """pairs share initial weights and batches, by fingerprint"""
    pairs = read.paired(record, "train", read.TASKS)
    if not pairs:
        return lacking(*legs_of("mnist", 1))
    measured = {"epochs": config.epochs, "batch": 32, "momentum": 0.9, "pairs": pairs}
    note = (
        "the loss is the mean over items and outputs; weight decay pulls on u; f(w₀, x) is kept; 28x28 padded by 2; shifts are"
        " redrawn each epoch, test images shifted once"
    )
    return Reading(measured, all(pairs.values()), note)


@claim(
    "linearized-hparam-grid",
    "Section 4",
    {"lr": [1, 0.1, 0.01, 0.001], "weight_decay": [5e-4, 5e-5, 5e-6, 5e-7, 5e-8]},
    needs=GRIDS,
)
def _grid(config: Any, record: Record) -> Reading:
    """configuration; every point was trained at x1 for both models"""
    found = {kind: len(record.metrics[f"grid/mnist/{kind}"]["points"]) for kind in ("network", "linear")}
    other = "searched at x1 with 20 epochs on MNIST; other widths and tasks use lr 0.1, 5e-5"
    return Reading(found, all(count == 20 for count in found.values()), other=other)


@claim("linearized-best-hparams-lenet", "Section 4.1", {"lr": 0.1, "weight_decay": 5e-5}, needs=GRIDS)
def _best(config: Any, record: Record) -> Reading:
    """at x1 on MNIST within 0.5 points of the best point of the grid, chosen by validation"""
    measured, holds = {}, True
    for kind in ("network", "linear"):
        points = record.metrics[f"grid/mnist/{kind}"]["points"]
        ours = next((p for p in points if p["lr"] == 0.1 and p["weight_decay"] == 5e-5), None)
        best, picked = (read.best_point(points, by) for by in ("validation", "test"))
        holds = holds and ours is not None and ours["validation"] is not None
        holds = holds and ours["validation"] >= best["validation"] - 0.5  # type: ignore[index]
        measured[kind] = {"at 0.1, 5e-5": ours, "best by validation": best, "best by test": picked}
    return Reading(measured, holds)


def shrinks(found: Mapping[str, Mapping[str, float]]) -> bool:
    values = [row["gap"] for row in found.values()]
    return all(later < earlier for earlier, later in pairwise(values))


def gap_reading(task: str, config: Any, record: Record) -> Reading:
    """The gaps of a task by width."""
    found = table(record, task)
    if "x1" not in found:
        return lacking(*legs_of(task, 1))
    low, high = {"mnist": (3, 7), "shifted": (18, 38), "cifar10": (14, 27)}[task]
    first = found["x1"]["gap"]
    holds = low <= first <= high and shrinks(found)
    if task == "mnist":
        holds = holds and all(found[w]["gap"] <= most for w, most in (("x25", 2), ("x60", 1.5)) if w in found)
    if task == "cifar10":
        holds = holds and all(row["gap"] >= 7 for name, row in found.items() if int(name[1:]) >= 10)
    if task == "shifted" and 1 in read.widths(record, "mnist"):
        holds = holds and first >= 3 * read.gaps(record, "mnist", 1)["mean"]
    note = _ceiling(record) if task == "mnist" else ""
    return Reading(found, holds, note, _missing(record, task, config.widths_of(task)), _missing(record, task, (60,)))


GAP_CLAIMS = [
    claim(f"linearized-{id}", source, GAPS[task], check)(partial(gap_reading, task))
    for id, source, task, check in (
        ("mnist-gap", "Figure 2", "mnist", "x1 in 3 ... 7 points; shrinks with width; x25 at most 2, x60 at most 1.5"),
        (
            "shift-gap",
            "Figure 3",
            "shifted",
            "x1 in 18 ... 38 points and at least 3 times the gap of MNIST; shrinks with width",
        ),
        ("cifar-gap", "Figure 4", "cifar10", "x1 in 14 ... 27 points; smaller, but at least 7, from x10 on"),
    )
]


def _ceiling(record: Record) -> str:
    """What LSMR reaches of the linearisation's training loss, beside SGD: the optimiser or the model?"""
    words = []
    for width in read.widths(record, "mnist"):
        solved = record.metrics.get(f"lsmr/x{width}")
        if solved is None:
            continue
        losses = [run["train loss"] for run in record.metrics[f"train/mnist/x{width}/linear"]["runs"]]
        words.append(
            f"x{width}: training loss {min(losses):.5f} by SGD, {solved['loss']:.5f} after {solved['iterations']} steps of LSMR"
            f" (train {solved['train']:.2f}, test {solved['test']:.2f})"
        )
    return "; ".join(words)


@claim("linearized-mnist-lenet-flat", "Figure 2", "LeNet gains almost nothing from width")
def _flat(config: Any, record: Record) -> Reading:
    """LeNet within 0.5 points at all widths; linearisation gains at least 2 from x1 to x10"""
    found = table(record, "mnist")
    if "x1" not in found or "x10" not in found:
        return lacking(*legs_of("mnist", 1, 10))
    own = [row["LeNet"] for row in found.values()]
    gain = found["x10"]["LinLeNet"] - found["x1"]["LinLeNet"]
    measured = {"LeNet": [min(own), max(own)], "gain of LinLeNet, x1 to x10": round(gain, 2)}
    return Reading(measured, max(own) - min(own) <= 0.5 and gain >= 2)


def _ends(found: Sequence[int]) -> tuple[int, int] | None:
    """Width 1 and the widest, where there is another."""
    return (1, found[-1]) if 1 in found and found[-1] > 1 else None


@claim("linearized-trajectories", "Supp. Figure A.2", "statistics of outputs become alike with width")
def _trajectories(config: Any, record: Record) -> Reading:
    """distance of means and deviations of outputs over training smaller at the widest than at x1; there the outputs
    themselves are further apart than that"""
    ends = _ends(read.widths(record, "mnist"))
    if ends is None:
        return lacking(*legs_of("mnist", 1, 10))
    found = {f"x{w}": round(read.statistics_distance(record, "mnist", w), 5) for w in read.widths(record, "mnist")}
    last = f"x{ends[1]}"
    paths = {f"x{w}": round(read.outputs_distance(record, "mnist", w), 5) for w in ends}
    larger = [f"{late} than at {early}" for early, late in pairwise(found) if found[late] > found[early]]
    counts = ", ".join(f"{len(read.accuracies(record, 'mnist', int(w[1:]), 'network'))} at {w}" for w in found)
    note = f"networks: {counts}" + (f"; not at every step: larger at {', '.join(larger)}" if larger else "")
    holds = found[last] < found["x1"] and paths[last] > found[last]
    return Reading({**found, "outputs at the end": paths}, holds, note)


@claim("linearized-lazy-similarity", "Figure 1", "wide networks and linearisations predict alike")
def _alike(config: Any, record: Record) -> Reading:
    """agreement on test images higher at the widest than at x1"""
    measured, holds = {}, True
    for task in read.TASKS:
        ends = _ends(read.compared(record, task))
        if ends is None:
            continue
        measured[TITLES[task]] = {f"x{w}": read.likeness(record, task, w) for w in ends}
        first, last = measured[TITLES[task]].values()
        holds = holds and last["agreement"] > first["agreement"]
    return Reading(measured, holds) if measured else lacking(*legs_of("mnist", 1, 10))


@claim("linearized-logreg", "Section 4.1", {"train": 93, "test": 92})
def _pixels(config: Any, record: Record) -> Reading:
    """test in 91.5 ... 93, train in 92 ... 94.5; LinLeNet x1 test 0.5 to 4 points better"""
    found = record.metrics.get("pixels")
    if found is None or 1 not in read.widths(record, "mnist"):
        return lacking("pixels", *legs_of("mnist", 1))
    lead = mean(read.accuracies(record, "mnist", 1, "linear")) - found["test"]
    measured = {"train": found["train"], "test": found["test"], "lead of LinLeNet x1": round(lead, 2)}
    return Reading(measured, 91.5 <= found["test"] <= 93 and 92 <= found["train"] <= 94.5 and 0.5 <= lead <= 4)


@claim("linearized-cifar-lin60-over-lenet1", "Figure 4", "LinLeNet x60 beats LeNet x1 in training and test")
def _colour60(config: Any, record: Record) -> Reading:
    """sign of both differences, at x60"""
    found = read.widths(record, "cifar10")
    if 60 not in found or 1 not in found:
        return lacking(*legs_of("cifar10", 1, 60))
    lead = {}
    for where in ("train", "test"):
        lin, net = (read.accuracies(record, "cifar10", w, k, where) for w, k in ((60, "linear"), (1, "network")))
        lead[where] = round(mean(lin) - mean(net), 2)
    return Reading(lead, all(value > 0 for value in lead.values()))


@claim(
    "linearized-gap-grows-with-difficulty",
    "Sections 1, 4.1, 5",
    {
        "x1": {"MNIST": 4.67, "shifted": 27.65, "CIFAR-10": 20.22},
        "x60": {"MNIST": 0.48, "shifted": 3.91, "CIFAR-10": 13.17},
    },
    stand_in="without the snakes of ImageNet, which are not available",
)
def _difficulty(config: Any, record: Record) -> Reading:
    """MNIST smallest at every width; shifted below CIFAR-10 at the widest only, as the figures say and the prose does not"""
    both = [w for w in read.widths(record, "mnist") if all(w in read.widths(record, task) for task in read.TASKS)]
    if not both:
        return lacking(*(leg for task in read.TASKS for leg in legs_of(task, 1)))
    found = {f"x{w}": {task: round(read.gaps(record, task, w)["mean"], 2) for task in read.TASKS} for w in both}
    smallest = all(row["mnist"] < min(row["shifted"], row["cifar10"]) for row in found.values())
    note = "the prose (CIFAR-10 above shifted) " + ", ".join(
        f"{'holds' if row['cifar10'] > row['shifted'] else 'fails'} at {name}" for name, row in found.items()
    )
    widest = max(config.colour_widths)
    wider = () if widest in both else tuple(leg for task in read.TASKS for leg in _missing(record, task, (widest,)))
    return Reading(found, smallest, note, wider)


@claim("linearized-gap-closes-with-width", "Figure 1", "the gap shrinks because the linearisation improves")
def _closes(config: Any, record: Record) -> Reading:
    """on MNIST and shifted MNIST the gap falls with every width, and the linearisation gains more than the network"""
    measured, holds = {}, True
    for task in ("mnist", "shifted"):
        ends = _ends(read.widths(record, task))
        if ends is None:
            return lacking(*legs_of(task, 1, 2, 5, 10))
        rows = table(record, task)
        last = rows[f"x{ends[1]}"]
        gains = {kind: round(last[kind] - rows["x1"][kind], 2) for kind in ("LeNet", "LinLeNet")}
        measured[TITLES[task]] = {"gaps": {name: row["gap"] for name, row in rows.items()}, "gains": gains}
        holds = holds and shrinks(rows) and gains["LinLeNet"] > gains["LeNet"]
    lacks = tuple(leg for task in ("mnist", "shifted") for leg in _missing(record, task, config.widths))
    return Reading(measured, holds, lacks=lacks)


@claim("linearized-double-precision", "Section 4", "no striking difference in double precision")
def _double(config: Any, record: Record) -> Reading:
    """x1 on MNIST, same seed: within 0.3 points, or the spread of seeds if larger"""
    lacks = [f"double/mnist/{kind}" for kind in ("network", "linear") if f"double/mnist/{kind}" not in record.metrics]
    if lacks or 1 not in read.widths(record, "mnist"):
        return lacking(*lacks, *legs_of("mnist", 1))
    measured, holds = {}, True
    for kind in ("network", "linear"):
        single = read.accuracies(record, "mnist", 1, kind)
        double = record.metrics[f"double/mnist/{kind}"]["runs"][0]["test"]
        measured[kind] = {"single": single, "double": double}
        spread = max(0.3, max(single) - min(single))
        holds = holds and double is not None and abs(double - single[0]) <= spread
    return Reading(measured, holds)


@claim("linearized-l2-vs-ce", "Section 3", "squared error trains to similar accuracy as cross-entropy")
def _entropy(config: Any, record: Record) -> Reading:
    """test within 0.5 points on MNIST, 4 on CIFAR-10"""
    measured, lacks, plain = {}, [], []
    for task, most in (("mnist", 0.5), ("cifar10", 4.0)):
        other = record.metrics.get(f"cross-entropy/{task}")
        if other is None or 1 not in read.widths(record, task):
            lacks += [f"cross-entropy/{task}", *legs_of(task, 1)]
            continue
        own = read.accuracies(record, task, 1, "network")[0]
        measured[TITLES[task]] = {"squared": own, "cross-entropy": other["runs"][0]["test"], "at most": most}
        chosen = read.searched(record, task, "cross-entropy")
        if not chosen or any(other.get(name) != value for name, value in chosen.items()):
            plain.append(TITLES[task])
    if not measured:
        return lacking(*lacks)
    holds = all(abs(row["squared"] - (row["cross-entropy"] or 0)) <= row["at most"] for row in measured.values())
    note = f"rate and decay of cross-entropy are not those of a search on {', '.join(plain)}" if plain else ""
    return Reading(measured, holds, note, lacks=tuple(lacks))
