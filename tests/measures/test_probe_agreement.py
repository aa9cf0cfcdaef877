"""The layer at which three probes agree: planted layers, the rule written out, and a bootstrap that knows how sure it is."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from ntkscope.core import UsageError, numpy_generator
from ntkscope.measures import probe_agreement
from ntkscope.measures.probe_agreement import PROBES, collapse_layer

DIMS = (1, 2, 3, 5, 10, 50)


@dataclass
class MadeUp:
    predictions: dict[str, dict[int, torch.Tensor]]
    dims: tuple[int, ...] = DIMS
    labels: torch.Tensor | None = None
    others: dict[str, Any] = field(default_factory=dict)


def sweep(y: np.ndarray, curves: dict[str, tuple[float, ...]], seed: int = 0) -> MadeUp:
    """Predictions with exactly these accuracies at each d; an item that is right at one is so at any higher one."""
    order = numpy_generator(seed, "test", "sweep").permutation(len(y))
    predictions: dict[str, dict[int, torch.Tensor]] = {}
    for probe, accuracies in curves.items():
        predictions[probe] = {}
        for d, accuracy in zip(DIMS, accuracies):
            wrong = (y + 1) % 10
            wrong[order[: round(accuracy * len(y))]] = y[order[: round(accuracy * len(y))]]
            predictions[probe][d] = torch.from_numpy(wrong)
    return MadeUp(predictions)


def network(y: np.ndarray, at: int, layers: int = 5) -> dict[str, MadeUp]:
    """Before layer `at` the probes differ in counts and accuracies, from there on they are the same."""
    early = {
        "knn": (0.1, 0.2, 0.3, 0.4, 0.5, 0.45),
        "ncc": (0.1, 0.2, 0.3, 0.35, 0.36, 0.36),
        "svm": (0.1, 0.2, 0.3, 0.4, 0.5, 0.65),
    }
    late = dict.fromkeys(PROBES, (0.3, 0.6, 0.9, 0.92, 0.92, 0.92))
    return {f"layer{k}": sweep(y, late if k >= at else early, k) for k in range(layers)}


@pytest.fixture
def y() -> np.ndarray:
    return numpy_generator(0, "test", "labels").integers(0, 10, 400)


@pytest.mark.parametrize("at", [1, 3, 4])
def test_the_planted_layer_is_found(y: np.ndarray, at: int) -> None:
    nc1 = {f"layer{k}": 1.0 / (1 + k) for k in range(5)}
    found = collapse_layer(network(y, at), y, nc1=nc1, draws=200)
    assert (found.layer, found.before, found.once) == (f"layer{at}", f"layer{at - 1}", True)
    assert found.distribution[f"layer{at}"] == 1.0
    assert sum(found.distribution.values()) == pytest.approx(1.0)
    assert found.share_once == 1.0
    assert found.nc1_falls is True
    assert found.layers[at].counts == dict.fromkeys(PROBES, 3)
    assert found.layers[0].counts == {"knn": 10, "ncc": 5, "svm": 50}
    assert found.layers[0].best == pytest.approx({"knn": 0.5, "ncc": 0.36, "svm": 0.65})


def test_no_layer_and_the_first_layer(y: np.ndarray) -> None:
    never = collapse_layer(network(y, 9), y, draws=50)
    assert (never.layer, never.before, never.once, never.distribution[None]) == (None, None, False, 1.0)
    always = collapse_layer(network(y, 0), y, draws=50)
    assert (always.layer, always.before, always.once) == ("layer0", None, False)
    assert always.nc1_falls is None


def test_agreement_that_ends_again_is_not_one_transition(y: np.ndarray) -> None:
    sweeps = network(y, 2, 5)
    sweeps["layer4"] = network(y, 9)["layer4"]
    found = collapse_layer(sweeps, y, draws=50)
    assert (found.layer, found.once) == ("layer2", False)


def test_the_rule_is_what_it_says(y: np.ndarray) -> None:
    """Counts and accuracies at the margin, and beyond it by one."""
    base = {"knn": (0.9,) * 6, "ncc": (0.5, 0.6, 0.9, 0.9, 0.9, 0.9), "svm": (0.9,) * 6}
    assert collapse_layer({"a": sweep(y, base)}, y, draws=1).layers[0].counts == {"knn": 1, "ncc": 3, "svm": 1}
    assert collapse_layer({"a": sweep(y, base)}, y, draws=1).layer == "a"
    assert collapse_layer({"a": sweep(y, base)}, y, draws=1, components=1).layer is None
    apart = {"knn": (0.9,) * 6, "ncc": (0.88,) * 6, "svm": (0.9,) * 6}
    assert collapse_layer({"a": sweep(y, apart)}, y, draws=1).layer == "a"
    assert collapse_layer({"a": sweep(y, apart)}, y, draws=1, accuracy=0.019).layer is None


def test_the_bootstrap_is_that_of_the_definition(y: np.ndarray) -> None:
    """At the margin of accuracy, the share of draws that agree is that of resampled items, one after the other."""
    random = numpy_generator(3, "test", "margin")
    right = {probe: random.random(len(y)) < level for probe, level in zip(PROBES, (0.9, 0.88, 0.9))}
    predictions = {
        probe: {d: torch.from_numpy(np.where(right[probe], y, (y + 1) % 10)) for d in DIMS} for probe in PROBES
    }
    found = collapse_layer({"a": MadeUp(predictions, labels=torch.from_numpy(y))}, draws=4000)
    draws = []
    for _ in range(4000):
        rows = random.integers(0, len(y), len(y))
        accuracies = [right[probe][rows].mean() for probe in PROBES]
        draws.append(max(accuracies) - min(accuracies) <= 0.02 + 1e-12)
    expected = float(np.mean(draws))
    assert 0.05 < expected < 0.95
    assert found.distribution["a"] == pytest.approx(expected, abs=4 * (expected * (1 - expected) * 2 / 4000) ** 0.5)
    assert found == collapse_layer({"a": MadeUp(predictions)}, y, draws=4000)


def test_draws_are_made_few_at_a_time(y: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws, in the room of few."""
    whole = collapse_layer(network(y, 2), y, draws=500)
    monkeypatch.setattr(probe_agreement, "CHUNK", 4 * len(y))
    tracemalloc.start()
    found = collapse_layer(network(y, 2), y, draws=500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == whole
    assert peak < 500 * len(y) * 8  # what the weights of all draws alone would take


def test_what_cannot_be_judged_is_refused(y: np.ndarray) -> None:
    sweeps = network(y, 2, 3)
    with pytest.raises(UsageError, match="without labels"):
        collapse_layer(sweeps)
    with pytest.raises(UsageError, match="the same test items"):
        collapse_layer(sweeps, y[:-1])
    with pytest.raises(UsageError, match="got nc1 without layer2"):
        collapse_layer(sweeps, y, nc1={"layer0": 1.0, "layer1": 1.0})
    del sweeps["layer1"].predictions["svm"]
    with pytest.raises(UsageError, match="layer1 without svm"):
        collapse_layer(sweeps, y)
    with pytest.raises(UsageError, match="no layers"):
        collapse_layer({}, y)
