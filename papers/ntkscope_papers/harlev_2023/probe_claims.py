"""Harlev et al.: what is published of the probes of a ResNet-18's layers, and how each statement is judged.

Every statement is judged on the first network of the configuration, at the paper scale the ResNet-18; what the others say of
it is in the note. Numbers of layers are those of the paper: the pooling, then blocks 1 to 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ntkscope.core import Record
from ntkscope.measures.probe_agreement import PROBES, CollapseLayer, collapse_layer
from ntkscope.measures.probes import GRID, grid
from ntkscope_papers.framework import Reading, claim
from ntkscope_papers.framework.claims import Statement
from ntkscope_papers.harlev_2023.probed_networks import TRAINED_HERE, Probed, probed

SIZES = (16384, 16384, 16384, 8192, 8192, 4096, 4096, 2048, 2048)
RIGHT = "right-{}-{}-{}"  # the array of a layer: network, its number, layer


def needed(name: str, s: int) -> list[str]:
    """The keys of the results of network `name`, the s-th of its kind."""
    return [f"{name}/{s}/{what}" for what in ("network", *probed(name).layers)]


@dataclass(frozen=True, eq=False)
class Network:
    """One network of a record: its own results, and those of its layers in order."""

    config: Any
    record: Record
    network: Probed
    s: int

    @property
    def label(self) -> str:
        return f"{self.network.name}/{self.s}"

    @property
    def whole(self) -> Mapping[str, Any]:
        result: Mapping[str, Any] = self.record.metrics[f"{self.label}/network"]
        return result

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [self.record.metrics[f"{self.label}/{layer}"] for layer in self.network.layers]

    @property
    def accuracy(self) -> float:
        """On the test items."""
        return float(self.whole["test"])

    @property
    def early(self) -> list[Mapping[str, Any]]:
        return self.rows[: self.network.early]

    @property
    def late(self) -> list[Mapping[str, Any]]:
        return self.rows[self.network.late :]

    def best(self, probe: str, rule: str = "best") -> list[float]:
        """Accuracies at the best number of components of each layer; rule: "best" on test items, or "best by validation"."""
        return [float(row[rule][probe][1]) for row in self.rows]

    def counts(self, probe: str) -> list[int]:
        """How many components each layer needs for 90 % of the probe's best accuracy there."""
        return [int(row["smallest"][probe]) for row in self.rows]

    def variances(self, probe: str) -> list[float]:
        """The share of the variance in those components."""
        return [float(row["variance"][row["dims"].index(row["smallest"][probe])]) for row in self.rows]

    def agreement(self) -> CollapseLayer:
        """Where the three probes agree, from the bits in the record: class 0 for items that were right, 1 for wrong ones."""
        sweeps, nc1 = {}, {}
        items = int(self.whole["items"]["test"])
        for layer, row in zip(self.network.layers, self.rows):
            bits = np.asarray(self.record.arrays[RIGHT.format(self.network.name, self.s, layer)])
            wrong = 1 - np.unpackbits(bits, axis=2)[:, :, :items].astype(np.int64)
            dims = tuple(int(d) for d in row["dims"])
            sweeps[layer] = _Sweep(dims, {p: dict(zip(dims, wrong[k])) for k, p in enumerate(PROBES)})
            nc1[layer] = float(row["collapse"]["nc1"])
        return collapse_layer(sweeps, np.zeros(items, dtype=np.int64), nc1=nc1, draws=self.config.draws)


@dataclass(frozen=True, eq=False)
class _Sweep:
    dims: tuple[int, ...]
    predictions: Mapping[str, Mapping[int, np.ndarray]]


def at(row: Mapping[str, Any], probe: str, d: int) -> float:
    """A probe's accuracy on d components, or on the most below d that were tried."""
    place = max(k for k, tried in enumerate(row["dims"]) if tried <= d)
    return float(row["accuracy"][probe][place])


def on_all(row: Mapping[str, Any], probe: str) -> float:
    """A probe's accuracy on all components."""
    return float(row["accuracy"][probe][-1])


def rank_correlation(values: Sequence[float]) -> float:
    """Spearman's correlation with the place in the network; 0 where the values are all equal.

    >>> rank_correlation([1.0, 3.0, 9.0]), rank_correlation([2.0, 2.0])
    (1.0, 0.0)
    """
    if len(set(values)) < 2:
        return 0.0
    return round(float(spearmanr(range(len(values)), values).statistic), 12)


def complete(config: Any, record: Record) -> Iterator[Network]:
    """The networks of which the record has every layer."""
    for name, s in config.cases():
        if all(key in record.metrics for key in needed(name, s)):
            yield Network(config, record, probed(name), s)


Judged = Callable[[Network], tuple[Any, bool]]


def on_networks(note: str, judged: Judged, config: Any, record: Record) -> Reading:
    """A reading of the first network; the measured values have all of them, the note says where the check holds."""
    results = {network.label: judged(network) for network in complete(config, record)}
    first, *others = results
    words = [f"the check {'holds' if results[label][1] else 'does not hold'} on {label}" for label in others]
    measured = {label: value for label, (value, _) in results.items()}
    return Reading(measured, results[first][1], "; ".join([note, *words] if note else words))


def network_claim(
    id: str, source: str, published: Any, *, note: str = "", stand_in: str = TRAINED_HERE
) -> Callable[[Judged], Statement]:
    """Decorator: a claim that a function of one network judges, by what its docstring says."""
    return claim(id, source, published, needs=of_first, through=partial(on_networks, note), stand_in=stand_in)


def of_first(config: Any) -> list[str]:
    """The results of the first network."""
    return needed(config.networks[0], 0)


def _short(values: Any, places: int = 4) -> list[float]:
    return [round(float(value), places) for value in values]


@network_claim(
    "probes-network-accuracy",
    "Section 3",
    {"test %": 92.5, "test %, Paper 1": 93.07},
    note="erratum: 92.5 % here is 93.07 % in Paper 1, for the same release of weights",
)
def accuracy(network: Network) -> tuple[Any, bool]:
    """within 1 point of 92.5 %; a pretrained network within 0.3 points of its own published accuracy"""
    test, own = 100 * network.accuracy, network.network.accuracy
    allowed = 0.3 if network.network.pretrained else 1.0
    return {"test %": round(test, 2), "published %": own}, abs(test - own) <= allowed


@network_claim(
    "probes-protocol",
    "Section 3",
    {"k": 10, "first dims": list(GRID), "then every": 1000, "layers": 9, "train": 50000, "test": 10000},
    note="activations flattened, as the grid up to a layer's size says; directions without variance are left out of it",
    stand_in="",
)
def protocol(network: Network) -> tuple[Any, bool]:
    """the same three probes, neighbours, grid, number of layers and items"""
    items, k, count = network.whole["items"], network.config.k, len(network.rows)
    published = all(list(row["dims"]) == grid(int(row["components"])) for row in network.rows)
    probes = all(set(row["accuracy"]) == set(PROBES) for row in network.rows)
    measured = {"k": k, "layers": count, **items, "grid as published": published, "all three probes": probes}
    counted = (k, count, items["train"], items["test"]) == (10, len(SIZES), 50000, 10000)
    return measured, counted and published and probes


@network_claim("probes-layer-sizes", "Figure 16", list(SIZES), stand_in="")
def sizes(network: Network) -> tuple[Any, bool]:
    """the same flattened sizes"""
    widths = [int(row["width"]) for row in network.rows]
    return widths, tuple(widths) == SIZES


@network_claim(
    "probes-svm-best",
    "Section 1, Section 5",
    "the SVM equals or beats k-NN and NCC at every layer",
    note="d chosen on the test items, as published; beside it on a validation split",
)
def svm_best(network: Network) -> tuple[Any, bool]:
    """best accuracy over d of the SVM at least that of each other probe - 0.01, at every layer"""
    best = {probe: network.best(probe) for probe in PROBES}
    margins = [min(svm - knn, svm - ncc) for knn, ncc, svm in zip(*(best[p] for p in ("knn", "ncc", "svm")))]
    validated = {probe: _short(network.best(probe, "best by validation")) for probe in PROBES}
    shown = {probe: _short(values) for probe, values in best.items()}
    return {"best": shown, "best, d chosen on a validation split": validated}, min(margins) >= -0.01


@network_claim(
    "probes-100-pcs-suffice",
    "Abstract, Section 5",
    "about 100 components give k-NN and NCC their best accuracy at every layer",
)
def hundred(network: Network) -> tuple[Any, bool]:
    """best accuracy over d ≤ 150 within 0.01 of the best over all d, at every layer, k-NN and NCC"""
    lost = {
        probe: _short(
            max(row["accuracy"][probe])
            - max(value for d, value in zip(row["dims"], row["accuracy"][probe]) if d <= 150)
            for row in network.rows
        )
        for probe in ("knn", "ncc")
    }
    return {"lost by d ≤ 150": lost}, all(value <= 0.01 for values in lost.values() for value in values)


@network_claim(
    "probes-knn-overfits", "Section 4", "up to block 4 k-NN improves up to about 100 components, then drops markedly"
)
def overfits(network: Network) -> tuple[Any, bool]:
    """accuracy on 100 components at least 0.03 above that on all, from the pooling to block 4"""
    drops = _short(at(row, "knn", 100) - on_all(row, "knn") for row in network.early)
    return {"100 - all": drops}, min(drops) >= 0.03


@network_claim(
    "probes-ncc-plateaus", "Section 4", "up to block 4 NCC peaks at about 100 components and then stays constant"
)
def plateaus(network: Network) -> tuple[Any, bool]:
    """accuracy on 200 components within 0.01 of that on all, from the pooling to block 4"""
    moved = _short(at(row, "ncc", 200) - on_all(row, "ncc") for row in network.early)
    return {"200 - all": moved}, max(map(abs, moved)) <= 0.01


@network_claim(
    "probes-svm-keeps-improving",
    "Section 4, Section 5",
    "up to block 4 the SVM improves beyond 100 components and is best on all",
)
def improves(network: Network) -> tuple[Any, bool]:
    """accuracy on all components at least 0.02 above that on 100, from the pooling to block 4"""
    gains = _short(on_all(row, "svm") - at(row, "svm", 100) for row in network.early)
    strengths = [row["C"][-1] for row in network.early]
    return {"all - 100": gains, "C on all": strengths}, min(gains) >= 0.02


@network_claim("probes-accuracy-grows-with-depth", "Section 4", "all three probes improve steadily with depth")
def deeper(network: Network) -> tuple[Any, bool]:
    """Spearman correlation of best accuracy and depth at least 0.9 for each probe"""
    found = {probe: round(rank_correlation(network.best(probe)), 4) for probe in PROBES}
    return found, min(found.values()) >= 0.9


@network_claim(
    "probes-late-blocks-identical",
    "Section 4",
    "from block 5 on, all probes reach the network's accuracy within ten components and stay there",
)
def late(network: Network) -> tuple[Any, bool]:
    """from block 5 on (others: last stage): on 10 components within 0.02 of the network and of each other, no change
    above 0.02 beyond"""
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


@network_claim(
    "probes-hunchback", "Figure 18a", "the number of components that NCC needs first rises, then falls with depth"
)
def hunchback(network: Network) -> tuple[Any, bool]:
    """its largest value lies strictly inside the network, above both ends"""
    counts = network.counts("ncc")
    inside = max(counts[1:-1])
    return {probe: network.counts(probe) for probe in ("ncc", "knn")}, inside > max(counts[0], counts[-1])


@network_claim(
    "probes-svm-profile-monotone",
    "Figure 18a, Section 5",
    "the number of components that the SVM needs starts very high and falls with depth",
)
def monotone(network: Network) -> tuple[Any, bool]:
    """Spearman correlation with depth at most -0.8"""
    counts = network.counts("svm")
    found = rank_correlation([float(count) for count in counts])
    return {"components": counts, "Spearman": round(found, 4)}, found <= -0.8


def two_three(network: Network) -> tuple[Any, bool]:
    counts = {probe: network.counts(probe)[network.network.last :] for probe in PROBES}
    allowed = 8 if network.network.pretrained else 3
    return counts, max(max(values) for values in counts.values()) <= allowed


@claim(
    "probes-two-three-pcs",
    "Section 4, Figure 18a",
    {"components": [2, 3], "blocks": [6, 7, 8]},
    "blocks 6 to 8 need at most 3 components for all probes; pretrained networks: their last two layers at most 8",
    needs=of_first,
    stand_in=TRAINED_HERE,
)
def components(config: Any, record: Record) -> Reading:
    """With what an SVM that is not linear needs, where it was tried."""
    reading = on_networks("", two_three, config, record)
    words = [reading.note] if reading.note else []
    for name in config.networks:
        found = record.metrics.get(f"{name}/0/gaussian-svm", {})
        counts = [str(row["smallest"]) for row in found.values() if isinstance(row, dict)]
        if counts:
            words.append(f"an SVM with a Gaussian kernel needs {', '.join(counts)} there in {name}")
    return replace(reading, note="; ".join(words))


@network_claim(
    "probes-variance-20-40",
    "Abstract, Figure 18b",
    {"least": 0.2, "most": 0.4},
    note="variance of standardised activations",
)
def variance(network: Network) -> tuple[Any, bool]:
    """variance in the components for 90 % of the accuracy below 0.6 from block 5 on, for all probes"""
    found = {probe: _short(network.variances(probe)) for probe in PROBES}
    late = [value for values in found.values() for value in values[network.network.late :]]
    ranges = {"from block 5 on": [min(late), max(late)]}
    early = [value for probe in ("knn", "ncc") for value in found[probe]]
    return {**found, **ranges, "k-NN and NCC everywhere": [min(early), max(early)]}, max(late) < 0.6


@network_claim(
    "probes-variance-decreases-to-block5", "Section 5", "the variance needed decreases until block 5, for all probes"
)
def falling(network: Network) -> tuple[Any, bool]:
    """that of the SVM falls from each layer to the next, from the pooling to block 5"""
    found = {probe: _short(network.variances(probe)[: network.network.late + 1]) for probe in PROBES}
    return found, all(a > b for a, b in pairwise(found["svm"]))


@network_claim(
    "probes-collapse-between-4-and-5",
    "Section 5",
    {"between blocks": [4, 5]},
    note="bootstrap over test items; pretrained networks: at any one transition",
)
def collapse(network: Network) -> tuple[Any, bool]:
    """counts agree within 2 and accuracies within 0.02 from block 5 on and not before, and NC1 falls there"""
    found = network.agreement()
    measured = {
        "first layer": found.layer,
        "one transition": found.once,
        "bootstrap": {str(layer): round(share, 4) for layer, share in found.distribution.items() if share},
        "one transition in draws": round(found.share_once, 4),
        "NC1": _short(row["collapse"]["nc1"] for row in network.rows),
    }
    place = found.layer == network.network.layers[network.network.late] or network.network.pretrained
    return measured, found.once and bool(found.nc1_falls) and place


@network_claim(
    "probes-90pct-variance-rule-wasteful",
    "Section 5",
    "components for 90 % of the variance are far more than classification needs",
)
def wasteful(network: Network) -> tuple[Any, bool]:
    """more than 3 times those for 90 % of the accuracy, k-NN and NCC, at every layer"""
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
    needs=["identities"],
)
def saturation(config: Any, record: Record) -> Reading:
    """no prediction changes when directions across all of them are added"""
    changed = record.metrics["identities"]["predictions changed by directions across the means"]
    return Reading({"predictions changed": changed}, changed == 0, exact=True)


@claim(
    "probes-ncc-is-affine",
    "Section 4, Section 5",
    "the SVM is called the only affine-linear probe, k-NN and NCC non-linear",
    needs=["identities"],
)
def affine(config: Any, record: Record) -> Reading:
    """argmin ‖x - μ‖² equals argmax (⟨μ, x⟩ - ‖μ‖²/2) at every point: NCC is affine, and the text wrong"""
    found = record.metrics["identities"]
    same, points = found["points where NCC is its affine form"], found["points"]
    note = "erratum: NCC by Euclidean distance is an affine rule as the SVM is; of the three probes only k-NN is not"
    return Reading({"same decision": same, "points": points}, same == points, note, exact=True)


@claim("probes-90pct-rule", "Section 3", {"best %": 96.0, "mark %": 86.4}, needs=["identities"])
def mark(config: Any, record: Record) -> Reading:
    """the first of the grid at or above 0.9 of the best, on the paper's example"""
    found = record.metrics["identities"]
    measured = {"best %": found["best"], "mark %": found["mark"], "first at or above it %": found["accuracy chosen"]}
    holds = (found["best"], found["mark"]) == (96.0, 86.4) and found["accuracy chosen"] == 86.4
    return Reading(measured, holds, exact=True)
