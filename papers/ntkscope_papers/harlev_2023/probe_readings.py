"""What a record says of the probed layers of its networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ntkscope.core import Record
from ntkscope.measures.probe_agreement import PROBES, CollapseLayer, collapse_layer
from ntkscope_papers.harlev_2023.probed_networks import Probed, probed

IDENTITIES = "identities"
NETWORK = "network"
CURVED = "gaussian-svm"
PEER = "linear-svc"


def key(name: str, s: int, what: str) -> str:
    """Of a result: network `name`, the s-th of its kind, a layer or the network itself."""
    return f"{name}/{s}/{what}"


def array_name(name: str, s: int, layer: str) -> str:
    return f"right-{name}-{s}-{layer}"


@dataclass(frozen=True, eq=False)
class Network:
    """One network of a record: its own results, and those of its layers in order."""

    network: Probed
    s: int
    whole: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]

    @property
    def label(self) -> str:
        return f"{self.network.name}/{self.s}"

    @property
    def accuracy(self) -> float:
        """On the test items."""
        return float(self.whole["test"])

    @property
    def early(self) -> tuple[Mapping[str, Any], ...]:
        return self.rows[: self.network.early]

    @property
    def late(self) -> tuple[Mapping[str, Any], ...]:
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


def at(row: Mapping[str, Any], probe: str, d: int) -> float:
    """A probe's accuracy on d components, or on the most below d that were tried."""
    place = max(k for k, tried in enumerate(row["dims"]) if tried <= d)
    return float(row["accuracy"][probe][place])


def on_all(row: Mapping[str, Any], probe: str) -> float:
    """A probe's accuracy on all components."""
    return float(row["accuracy"][probe][-1])


def needed(name: str, s: int) -> list[str]:
    """The keys of a network's results."""
    return [key(name, s, what) for what in (NETWORK, *probed(name).layers)]


def of(record: Record, name: str, s: int) -> Network | None:
    """Network `name`, the s-th, where the record has all of it."""
    keys = needed(name, s)
    if any(each not in record.metrics for each in keys):
        return None
    whole, *rows = (record.metrics[each] for each in keys)
    return Network(probed(name), s, whole, tuple(rows))


def complete(record: Record, names: Sequence[str], seeds: int) -> Iterator[Network]:
    """The networks of which the record has every layer."""
    for name in names:
        for s in range(1 if probed(name).pretrained else seeds):
            found = of(record, name, s)
            if found is not None:
                yield found


def rank_correlation(values: Sequence[float]) -> float:
    """Spearman's correlation with the place in the network; 0 where the values are all equal.

    >>> rank_correlation([1.0, 3.0, 9.0]), rank_correlation([2.0, 2.0])
    (1.0, 0.0)
    """
    if len(set(values)) < 2:
        return 0.0
    return round(float(spearmanr(range(len(values)), values).statistic), 12)


@dataclass(frozen=True, eq=False)
class _Sweep:
    dims: tuple[int, ...]
    predictions: Mapping[str, Mapping[int, np.ndarray]]


def agreement(record: Record, network: Network, draws: int) -> CollapseLayer:
    """Where the three probes agree, from the bits in the record: class 0 for items that were right, 1 for wrong ones."""
    sweeps = {}
    items = int(network.whole["items"]["test"])
    for layer, row in zip(network.network.layers, network.rows):
        bits = np.asarray(record.arrays[array_name(network.network.name, network.s, layer)])
        wrong = 1 - np.unpackbits(bits, axis=2)[:, :, :items].astype(np.int64)
        dims = tuple(int(d) for d in row["dims"])
        sweeps[layer] = _Sweep(dims, {p: dict(zip(dims, wrong[k])) for k, p in enumerate(PROBES)})
    nc1 = {layer: float(row["collapse"]["nc1"]) for layer, row in zip(network.network.layers, network.rows)}
    return collapse_layer(sweeps, np.zeros(items, dtype=np.int64), nc1=nc1, draws=draws)
