"""Probes of principal components: the contract, bits that come back as they were, and verdicts that can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contracts.dataset import given
from contracts.experiment import ExperimentContract, judged, made_record, readings
from ntkscope.core import Part, Record, Split, UsageError
from ntkscope.measures.probe_agreement import PROBES
from ntkscope.measures.probes import grid, sweep
from ntkscope.tangent import activations
from ntkscope_papers.harlev_2023 import pca_probes as experiment
from ntkscope_papers.harlev_2023.pca_probes import PcaProbes
from ntkscope_papers.harlev_2023.probe_claims import RIGHT, complete
from ntkscope_papers.harlev_2023.probed_networks import NETWORKS, build, probed

READINGS = readings("pca-probes")

LAYERS = NETWORKS["resnet18"].layers


@pytest.mark.guard
class TestPcaProbes(ExperimentContract):
    name = "pca-probes"
    tiny = given(train_items=60, test_items=30, epochs=1, components=8, draws=20)
    identities = ("probes-ncc-saturation-identity", "probes-90pct-rule", "probes-ncc-is-affine")


def test_layers_have_the_published_sizes() -> None:
    """A ResNet-18 with the pooling after its stem, an eighth as wide: every size is an eighth."""
    images = Split(train=_part(), test=_part(), classes=tuple("0123456789"), name="made up")
    model = build(PcaProbes(width=0.125), images, 0).eval()
    sizes = [row.shape[1] * 8 for row in activations(model, images.train.x, LAYERS).values()]
    assert sizes == [16384, 16384, 16384, 8192, 8192, 4096, 4096, 2048, 2048]
    assert [len(network.layers) for network in NETWORKS.values()] == [9, 10, 10]
    with pytest.raises(UsageError, match="expected one of resnet18, resnet20, resnet56"):
        probed("resnet1")


def _part() -> Part:
    return Part(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))


def test_bits_come_back_as_they_were(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    Z, y = random.normal(size=(40, 6)), random.integers(0, 3, 40)
    found = sweep(Z, y, Z, y, [1, 3, 6], probes=PROBES, k=3, C=1.0)
    bits = np.unpackbits(experiment.packed(found), axis=2)[:, :, :40]
    for k, probe in enumerate(PROBES):
        for place, d in enumerate(found.dims):
            assert bits[k, place].mean() == pytest.approx(found.accuracy[probe][d])


def test_identities_hold_and_are_exact() -> None:
    found = experiment.identities()
    assert found["predictions changed by directions across the means"] == 0
    assert found["points where NCC is its affine form"] == found["points"] == 500
    assert (found["best"], found["mark"], found["accuracy chosen"]) == (96.0, 86.4, 86.4)


def rises(dims: list[int], top: float, at: int, end: float | None = None) -> list[float]:
    """Accuracies that rise up to `top` at d = `at`, then move to `end`."""
    last = top if end is None else end
    return [top * (0.3 + 0.7 * d / at) if d < at else (top if d <= 150 else last) for d in dims]


def good() -> dict[str, Any]:
    """A record in which every published statement holds."""
    widths = (16384, 16384, 16384, 8192, 8192, 4096, 4096, 2048, 2048)
    rows: dict[str, Any] = {
        "identities": experiment.identities(),
        "resnet18/0/network": {"train": 1.0, "test": 0.925, "items": {"train": 50000, "test": 10000}},
    }
    for k, (layer, width) in enumerate(zip(LAYERS, widths)):
        dims = grid(width)
        if k < 5:
            peak = 10 + 10 * k if k else 12
            level = 0.5 + 0.05 * k
            curves = {
                "knn": rises(dims, level, 20, level - 0.05),
                "ncc": rises(dims, level - 0.03, peak),
                "svm": [min(0.1 + 0.05 * level * d / 20, level) if d <= 100 else level + 0.03 + 1e-6 * d for d in dims],
            }
            needs = {"knn": 20, "ncc": peak, "svm": 5000 - 1000 * k}
        else:
            level = 0.92 + 0.001 * k
            curves = {probe: rises(dims, level, 3 if k > 5 else 5) for probe in PROBES}
            needs = dict.fromkeys(PROBES, 3 if k > 5 else 5)
        share = {d: min(1.0, 0.2 + 0.15 * (9 - k) / 9 + 0.1 * np.log10(d)) for d in dims}
        rows[f"resnet18/0/{layer}"] = {
            "width": width,
            "components": width,
            "dims": dims,
            "accuracy": curves,
            "variance": [share[d] for d in dims],
            "C": [0.1] * len(dims),
            "smallest": needs,
            "best": {probe: [10, max(values)] for probe, values in curves.items()},
            "best by validation": {probe: [10, max(values)] for probe, values in curves.items()},
            "90 % of variance": 500,
            "collapse": {"nc1": 10.0 / (k + 1), "cdnv": 1.0 / (k + 1)},
        }
    return rows


def made_up(folder: Path, change: Callable[[dict[str, Any]], None] | None = None, bits: bool = True) -> Record:
    """The good record, changed; items are right in the order of their places, as many as the accuracies say."""
    rows = good()
    if change is not None:
        change(rows)
    record = made_record(folder, "pca-probes", **rows)
    for layer in LAYERS if bits else ():
        row = rows.get(f"resnet18/0/{layer}")
        if row is not None:
            right = [[np.arange(10000) < 10000 * value for value in row["accuracy"][probe]] for probe in PROBES]
            record.array(RIGHT.format("resnet18", 0, layer), np.packbits(np.array(right), axis=2))
    return record


CONFIG = PcaProbes(networks=("resnet18",), draws=20)


def test_all_statements_hold_in_a_made_up_record_that_fits_them(tmp_path: Path) -> None:
    found = judged(made_up(tmp_path), CONFIG)
    assert [name for name, claim in found.items() if not claim.holds] == []


@pytest.mark.parametrize(
    ("claim", "layer", "path", "change"),
    [
        ("network-accuracy", "network", ("test",), 0.90),
        ("protocol", "network", ("items", "train"), 10000),
        ("protocol", LAYERS[3], ("accuracy",), lambda old: {"knn": old["knn"], "svm": old["svm"]}),
        ("layer-sizes", LAYERS[0], ("width",), 65536),
        ("svm-best", LAYERS[2], ("best", "svm", 1), lambda old: old - 0.2),
        ("100-pcs-suffice", LAYERS[1], ("accuracy", "ncc", -1), lambda old: old + 0.02),
        ("knn-overfits", LAYERS[4], ("accuracy", "knn", -1), lambda old: old + 0.04),
        ("ncc-plateaus", LAYERS[1], ("accuracy", "ncc", -1), lambda old: old + 0.02),
        ("svm-keeps-improving", LAYERS[0], ("accuracy", "svm", -1), lambda old: old - 0.4),
        ("accuracy-grows-with-depth", LAYERS[0], ("best", "knn", 1), 0.99),
        ("late-blocks-identical", LAYERS[6], ("accuracy", "svm"), lambda old: [value - 0.03 for value in old]),
        ("hunchback", LAYERS[0], ("smallest", "ncc"), 300),
        ("svm-profile-monotone", LAYERS[8], ("smallest", "svm"), 9000),
        ("two-three-pcs", LAYERS[8], ("smallest", "knn"), 4),
        ("variance-20-40", LAYERS[7], ("variance",), lambda old: [0.7] * len(old)),
        ("variance-decreases-to-block5", LAYERS[3], ("variance",), lambda old: [0.95] * len(old)),
        ("collapse-between-4-and-5", LAYERS[5], ("collapse", "nc1"), 99.0),
        ("collapse-between-4-and-5", LAYERS[6], ("accuracy", "svm"), lambda old: [value - 0.03 for value in old]),
        ("90pct-variance-rule-wasteful", LAYERS[5], ("90 % of variance",), 10),
    ],
)
def test_a_verdict_follows_what_was_measured(
    claim: str, layer: str, path: tuple[Any, ...], change: Any, tmp_path: Path
) -> None:
    def changed(rows: dict[str, Any]) -> None:
        place = rows[f"resnet18/0/{layer}"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = change(place[path[-1]]) if callable(change) else change

    record = made_up(tmp_path, changed, bits=claim.startswith("collapse"))
    assert READINGS[f"probes-{claim}"](CONFIG, record).holds is False


def test_a_missing_layer_names_the_command_that_makes_it(tmp_path: Path) -> None:
    record = made_up(tmp_path / "run", lambda rows: rows.pop("resnet18/0/layer3.1"), bits=False)
    assert list(complete(CONFIG, record)) == []
    claims = judged(record, CONFIG)
    assert claims["probes-svm-best"].verdict == "not testable here"
    assert '"resnet18/0/layer3.1"' in claims["probes-svm-best"].note
    assert claims["probes-ncc-is-affine"].verdict == "reproduced"
