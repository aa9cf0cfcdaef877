"""Harlev et al.: what is published of the probes of a ResNet-18's layers, and how each statement is judged.

Every statement is judged on the first network of the configuration, at the paper scale the ResNet-18; what the others say of
it is in the note. Numbers of layers are those of the paper: the pooling, then blocks 1 to 8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ntkscope.core import Record
from ntkscope.measures.probe_agreement import PROBES
from ntkscope.measures.probes import GRID, grid
from ntkscope_papers.framework.claims import Read, Reading, claim, lacking
from ntkscope_papers.harlev_2023.probe_readings import (
    CURVED,
    IDENTITIES,
    Network,
    agreement,
    at,
    complete,
    key,
    needed,
    of,
    on_all,
    rank_correlation,
)

SIZES = (16384, 16384, 16384, 8192, 8192, 4096, 4096, 2048, 2048)


Judged = Callable[[Network], tuple[Any, bool]]


def on_networks(judged: Judged, note: str = "") -> Read:
    """A reading of the first network; the measured values have all of them, the note says where the check holds."""

    def read(config: Any, record: Record) -> Reading:
        first = of(record, config.networks[0], 0)
        if first is None:
            return lacking(*(key for key in needed(config.networks[0], 0) if key not in record.metrics))
        results = {network.label: judged(network) for network in complete(record, config.networks, config.seeds)}
        measured = {label: value for label, (value, _) in results.items()}
        words = [note] if note else []
        if len(results) > 1:
            others = {label: holds for label, (_, holds) in results.items() if label != first.label}
            words += [
                f"the check {'holds' if holds else 'does not hold'} on {label}" for label, holds in others.items()
            ]
        return Reading(measured, results[first.label][1], "; ".join(words))

    return read


def _short(values: Any, places: int = 4) -> list[float]:
    return [round(float(value), places) for value in values]


def _accuracy(network: Network) -> tuple[Any, bool]:
    test, own = 100 * network.accuracy, network.network.accuracy
    return {"test %": round(test, 2), "published %": own}, abs(test - own) <= (
        0.3 if network.network.pretrained else 1.0
    )


@claim(
    "probes-protocol",
    "Section 3",
    {"k": 10, "first dims": list(GRID), "then every": 1000, "layers": 9, "train": 50000, "test": 10000},
    "the same neighbours, grid, number of layers and items",
)
def _protocol(config: Any, record: Record) -> Reading:
    def judged(network: Network) -> tuple[Any, bool]:
        items = network.whole["items"]
        published = all(list(row["dims"]) == grid(int(row["components"])) for row in network.rows)
        measured = {"k": config.k, "layers": len(network.rows), **items, "grid as published": published}
        count = len(SIZES) if not network.network.pretrained else len(network.rows)
        right = (config.k, len(network.rows), items["train"], items["test"]) == (10, count, 50000, 10000)
        return measured, published and right

    note = (
        "activations flattened, as the grid up to a layer's size says; directions without variance are left out of it"
    )
    return on_networks(judged, note)(config, record)


def _sizes(network: Network) -> tuple[Any, bool]:
    widths = [int(row["width"]) for row in network.rows]
    return widths, tuple(widths) == SIZES


def _svm_best(network: Network) -> tuple[Any, bool]:
    best = {probe: network.best(probe) for probe in PROBES}
    margins = [min(svm - knn, svm - ncc) for knn, ncc, svm in zip(*(best[p] for p in ("knn", "ncc", "svm")))]
    validated = {probe: _short(network.best(probe, "best by validation")) for probe in PROBES}
    shown = {probe: _short(values) for probe, values in best.items()}
    return {"best": shown, "best, d chosen on a validation split": validated}, min(margins) >= -0.01


def _hundred(network: Network) -> tuple[Any, bool]:
    lost = {
        probe: _short(
            max(row["accuracy"][probe])
            - max(value for d, value in zip(row["dims"], row["accuracy"][probe]) if d <= 150)
            for row in network.rows
        )
        for probe in ("knn", "ncc")
    }
    return {"lost by d ≤ 150": lost}, all(value <= 0.01 for values in lost.values() for value in values)


def _overfits(network: Network) -> tuple[Any, bool]:
    drops = _short(at(row, "knn", 100) - on_all(row, "knn") for row in network.early)
    return {"100 - all": drops}, min(drops) >= 0.03


def _plateaus(network: Network) -> tuple[Any, bool]:
    moved = _short(at(row, "ncc", 200) - on_all(row, "ncc") for row in network.early)
    return {"200 - all": moved}, max(map(abs, moved)) <= 0.01


def _improves(network: Network) -> tuple[Any, bool]:
    gains = _short(on_all(row, "svm") - at(row, "svm", 100) for row in network.early)
    strengths = [row["C"][-1] for row in network.early]
    return {"all - 100": gains, "C on all": strengths}, min(gains) >= 0.02


def _deeper(network: Network) -> tuple[Any, bool]:
    found = {probe: round(rank_correlation(network.best(probe)), 4) for probe in PROBES}
    return found, min(found.values()) >= 0.9


def _late(network: Network) -> tuple[Any, bool]:
    on_ten = [[at(row, probe, 10) for probe in PROBES] for row in network.late]
    away = max(abs(value - network.accuracy) for row in on_ten for value in row)
    apart = max(max(row) - min(row) for row in on_ten)
    moves = [
        abs(value - at(row, probe, 10))
        for row in network.late
        for probe in PROBES
        for d, value in zip(row["dims"], row["accuracy"][probe])
        if d > 10
    ]
    beyond = max(moves, default=0.0)
    measured = {"from the network": round(away, 4), "from each other": round(apart, 4), "beyond 10": round(beyond, 4)}
    return measured, max(away, apart, beyond) <= 0.02


def _hunchback(network: Network) -> tuple[Any, bool]:
    counts = network.counts("ncc")
    inside = max(counts[1:-1])
    return {probe: network.counts(probe) for probe in ("ncc", "knn")}, inside > max(counts[0], counts[-1])


def _monotone(network: Network) -> tuple[Any, bool]:
    counts = network.counts("svm")
    found = rank_correlation([float(count) for count in counts])
    return {"components": counts, "Spearman": round(found, 4)}, found <= -0.8


def _two_three(network: Network) -> tuple[Any, bool]:
    counts = {probe: network.counts(probe)[network.network.last :] for probe in PROBES}
    allowed = 8 if network.network.pretrained else 3
    return counts, max(max(values) for values in counts.values()) <= allowed


@claim(
    "probes-two-three-pcs",
    "Section 4, Figure 18a",
    {"components": [2, 3], "blocks": [6, 7, 8]},
    "blocks 6 to 8 need at most 3 components for all probes; pretrained networks: their last two layers at most 8",
)
def _components(config: Any, record: Record) -> Reading:
    """With what an SVM that is not linear needs, where it was tried."""
    reading = on_networks(_two_three)(config, record)
    said = []
    for name in config.networks:
        found = record.metrics.get(key(name, 0, CURVED), {})
        counts = [row["smallest"] for row in found.values() if isinstance(row, dict)]
        if counts:
            said.append(f"an SVM with a Gaussian kernel needs {', '.join(map(str, counts))} there in {name}")
    return replace(reading, note="; ".join([*([reading.note] if reading.note else []), *said]))


def _variance(network: Network) -> tuple[Any, bool]:
    found = {probe: _short(network.variances(probe)) for probe in PROBES}
    late = [value for values in found.values() for value in values[network.network.late :]]
    ranges = {"from block 5 on": [min(late), max(late)]}
    early = [value for probe in ("knn", "ncc") for value in found[probe]]
    return {**found, **ranges, "k-NN and NCC everywhere": [min(early), max(early)]}, max(late) < 0.6


def _falling(network: Network) -> tuple[Any, bool]:
    found = {probe: _short(network.variances(probe)[: network.network.late + 1]) for probe in PROBES}
    return found, all(a > b for a, b in pairwise(found["svm"]))


@claim(
    "probes-collapse-between-4-and-5",
    "Section 5",
    {"between blocks": [4, 5]},
    "counts agree within 2 and accuracies within 0.02 from block 5 on and not before, and NC1 falls there",
)
def _collapse(config: Any, record: Record) -> Reading:
    def judged(network: Network) -> tuple[Any, bool]:
        found = agreement(record, network, config.draws)
        layers = network.network.layers
        measured = {
            "first layer": found.layer,
            "one transition": found.once,
            "bootstrap": {str(layer): round(share, 4) for layer, share in found.distribution.items() if share},
            "one transition in draws": round(found.share_once, 4),
            "NC1": _short(row["collapse"]["nc1"] for row in network.rows),
        }
        place = found.layer == layers[network.network.late] or network.network.pretrained
        return measured, found.once and bool(found.nc1_falls) and place

    note = "bootstrap over test items; pretrained networks: at any one transition"
    return on_networks(judged, note)(config, record)


def _wasteful(network: Network) -> tuple[Any, bool]:
    ratios: dict[str, list[float]] = {"knn": [], "ncc": []}
    for row in network.rows:
        whole = row["90 % of variance"] or row["components"] + 1  # beyond what was computed
        for probe, values in ratios.items():
            values.append(round(whole / row["smallest"][probe], 2))
    return ratios, min(min(values) for values in ratios.values()) > 3


@claim(
    "probes-ncc-saturation-identity",
    "Section 4",
    "NCC cannot change once the components span all differences of class means",
    "no prediction changes when directions across all of them are added",
    needs=[IDENTITIES],
)
def _saturation(config: Any, record: Record) -> Reading:
    changed = record.metrics[IDENTITIES]["predictions changed by directions across the means"]
    return Reading({"predictions changed": changed}, changed == 0, exact=True)


@claim(
    "probes-ncc-is-affine",
    "Section 4, Section 5",
    "the SVM is called the only affine-linear probe, k-NN and NCC non-linear",
    "argmin ‖x - μ‖² equals argmax (⟨μ, x⟩ - ‖μ‖²/2) at every point: NCC is affine, and the text wrong",
    needs=[IDENTITIES],
)
def _affine(config: Any, record: Record) -> Reading:
    found = record.metrics[IDENTITIES]
    same, points = found["points where NCC is its affine form"], found["points"]
    note = "erratum: NCC by Euclidean distance is an affine rule as the SVM is; of the three probes only k-NN is not"
    return Reading({"same decision": same, "points": points}, same == points, note, exact=True)


@claim(
    "probes-90pct-rule",
    "Section 3",
    {"best %": 96.0, "mark %": 86.4},
    "the first of the grid at or above 0.9 of the best, on the paper's example",
    needs=[IDENTITIES],
)
def _mark(config: Any, record: Record) -> Reading:
    found = record.metrics[IDENTITIES]
    measured = {"best %": found["best"], "mark %": found["mark"], "first at or above it %": found["accuracy chosen"]}
    holds = (found["best"], found["mark"]) == (96.0, 86.4) and found["accuracy chosen"] == 86.4
    return Reading(measured, holds, exact=True)


PAPER_1 = "92.5 % here is 93.07 % in Paper 1, for the same release of weights"
PROBES_NETWORK_ACCURACY = claim(
    "probes-network-accuracy",
    "Section 3",
    {"test %": 92.5, "test %, Paper 1": 93.07},
    "within 1 point of 92.5 %; a pretrained network within 0.3 points of its own published accuracy",
)(on_networks(_accuracy, f"erratum: {PAPER_1}; the ResNet-18 is trained here"))
PROBES_LAYER_SIZES = claim("probes-layer-sizes", "Figure 16", list(SIZES), "the same flattened sizes")(
    on_networks(_sizes)
)
PROBES_SVM_BEST = claim(
    "probes-svm-best",
    "Section 1, Section 5",
    "the SVM equals or beats k-NN and NCC at every layer",
    "best accuracy over d of the SVM at least that of each other probe - 0.01, at every layer",
)(on_networks(_svm_best, "d chosen on the test items, as published; beside it on a validation split"))
PROBES_100_PCS_SUFFICE = claim(
    "probes-100-pcs-suffice",
    "Abstract, Section 5",
    "about 100 components give k-NN and NCC their best accuracy at every layer",
    "best accuracy over d ≤ 150 within 0.01 of the best over all d, at every layer, k-NN and NCC",
)(on_networks(_hundred))
PROBES_KNN_OVERFITS = claim(
    "probes-knn-overfits",
    "Section 4",
    "up to block 4 k-NN improves up to about 100 components, then drops markedly",
    "accuracy on 100 components at least 0.03 above that on all, from the pooling to block 4",
)(on_networks(_overfits))
PROBES_NCC_PLATEAUS = claim(
    "probes-ncc-plateaus",
    "Section 4",
    "up to block 4 NCC peaks at about 100 components and then stays constant",
    "accuracy on 200 components within 0.01 of that on all, from the pooling to block 4",
)(on_networks(_plateaus))
PROBES_SVM_KEEPS_IMPROVING = claim(
    "probes-svm-keeps-improving",
    "Section 4, Section 5",
    "up to block 4 the SVM improves beyond 100 components and is best on all",
    "accuracy on all components at least 0.02 above that on 100, from the pooling to block 4",
)(on_networks(_improves))
PROBES_ACCURACY_GROWS_WITH_DEPTH = claim(
    "probes-accuracy-grows-with-depth",
    "Section 4",
    "all three probes improve steadily with depth",
    "Spearman correlation of best accuracy and depth at least 0.9 for each probe",
)(on_networks(_deeper))
PROBES_LATE_BLOCKS_IDENTICAL = claim(
    "probes-late-blocks-identical",
    "Section 4",
    "from block 5 on, all probes reach the network's accuracy within ten components and stay there",
    "from block 5 on (others: last stage): on 10 components within 0.02 of the network and of each other, no change"
    " above 0.02 beyond",
)(on_networks(_late))
PROBES_HUNCHBACK = claim(
    "probes-hunchback",
    "Figure 18a",
    "the number of components that NCC needs first rises, then falls with depth",
    "its largest value lies strictly inside the network, above both ends",
)(on_networks(_hunchback))
PROBES_SVM_PROFILE_MONOTONE = claim(
    "probes-svm-profile-monotone",
    "Figure 18a, Section 5",
    "the number of components that the SVM needs starts very high and falls with depth",
    "Spearman correlation with depth at most -0.8",
)(on_networks(_monotone))
PROBES_VARIANCE_20_40 = claim(
    "probes-variance-20-40",
    "Abstract, Figure 18b",
    {"least": 0.2, "most": 0.4},
    "variance in the components for 90 % of the accuracy below 0.6 from block 5 on, for all probes",
)(on_networks(_variance, "variance of standardised activations"))
PROBES_VARIANCE_DECREASES_TO_BLOCK5 = claim(
    "probes-variance-decreases-to-block5",
    "Section 5",
    "the variance needed decreases until block 5, for all probes",
    "that of the SVM falls from each layer to the next, from the pooling to block 5",
)(on_networks(_falling))
PROBES_90PCT_VARIANCE_RULE_WASTEFUL = claim(
    "probes-90pct-variance-rule-wasteful",
    "Section 5",
    "components for 90 % of the variance are far more than classification needs",
    "more than 3 times those for 90 % of the accuracy, k-NN and NCC, at every layer",
)(on_networks(_wasteful))
