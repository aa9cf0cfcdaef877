"""Probes of layers: the whole path on a small network of digits, against scikit-learn, with and without a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from torch import nn

import ntkscope as ns
from ntkscope.core import Part, Split, UsageError
from ntkscope.explain import probes


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Split]:
    split = ns.data.load("digits")
    model = ns.models.build("mlp", in_features=64, widths=48, depth=3, classes=10)
    parts = [Part(part.x.flatten(1)[:n], part.y[:n]) for part, n in ((split.train, 300), (split.test, 100))]
    ns.training.fit(model, parts[0], optimizer="adam", lr=1e-2, loss="cross_entropy", epochs=3, batch_size=100).final()
    return model.eval(), split.replace(train=parts[0], test=parts[1])


def test_every_layer_is_what_scikit_learn_makes_of_it(trained: tuple[nn.Module, Split]) -> None:
    model, split = trained
    found = probes(model, split.train, split.test, probes=("ncc",), dims=[1, 5, 20], validation=0.2)
    rows, ahead = (ns.tangent.activations(model, part.x) for part in (split.train, split.test))
    assert list(found) == list(rows)
    for name, layer in found.items():
        scaler = StandardScaler().fit(rows[name].double())
        peer = PCA(20, svd_solver="full").fit(scaler.transform(rows[name].double()))
        Z, new = (peer.transform(scaler.transform(part[name].double())) for part in (rows, ahead))
        for d in (1, 5, 20):
            expected = NearestCentroid().fit(Z[:, :d], split.train.y).predict(new[:, :d])
            agreement = (layer.sweep.predictions["ncc"][d].numpy() == expected).mean()
            assert agreement >= 0.98, f"{name}, {d} components: {agreement}"  # scores in single precision
            assert layer.sweep.variance[d] == pytest.approx(peer.explained_variance_ratio_[:d].sum(), rel=1e-4)
        assert layer.width == rows[name].shape[1]
        assert layer.validation is not None
        assert len(layer.validation.labels) == 60
        d, accuracy = layer.best("validation")["ncc"]
        assert d == layer.validation.best()["ncc"]
        assert accuracy == layer.sweep.accuracy["ncc"][d] <= layer.best()["ncc"][1]
    assert found.smallest(0.9)["ncc"][name] == layer.sweep.smallest(0.9)["ncc"]


def test_svm_objectives_are_those_of_linear_svc_at_three_layers_and_dimensions(
    trained: tuple[nn.Module, Split],
) -> None:
    model, split = trained
    rows = ns.tangent.activations(model, split.train.x)
    for name, d in zip(rows, (10, 40, 3), strict=True):
        found = ns.linalg.pca(rows[name])
        Z = found.transform(rows[name]).double()
        ours = ns.measures.probes.sweep(Z, split.train.y, Z[:10], split.train.y[:10], [2, d], probes=("svm",), C=1e-3)
        svm = LinearSVC(C=1e-3, tol=1e-8, max_iter=1_000_000, dual=False).fit(Z[:, :d], split.train.y)
        short = np.maximum(0, 1 - (2 * np.eye(10)[split.train.y] - 1) * svm.decision_function(Z[:, :d]))
        minimum = ((svm.coef_**2).sum() + (svm.intercept_**2).sum()) / 2 + 1e-3 * (short**2).sum()
        assert ours.objective["svm"][d] == pytest.approx(minimum, rel=1e-4), (name, d)


def test_a_store_changes_nothing(trained: tuple[nn.Module, Split], tmp_path: Path) -> None:
    model, split = trained
    options = {"probes": ("knn", "ncc"), "components": 8, "validation": None}
    here = probes(model, split.train, (split.test.x, split.test.y), **options)
    there = probes(model, split.train, split.test, store=tmp_path, **options)
    assert list(here) == list(there)
    for name in here:
        assert here[name].sweep.accuracy == there[name].sweep.accuracy
        assert here[name].sweep.dims == (1, 2, 3, 4, 5, 6, 7, 8)
    with pytest.raises(UsageError, match="validation share"):
        here[name].best("validation")


def test_what_cannot_be_probed_is_refused(trained: tuple[nn.Module, Split]) -> None:
    model, split = trained
    with pytest.raises(UsageError, match="expected fields of ProbeProtocol"):
        probes(model, split.train, split.test, neighbours=3)
    with pytest.raises(UsageError, match="expected a Part or 2 values"):
        probes(model, split.train.x, split.test)
    with pytest.raises(UsageError, match="whole numbers from 1 to"):
        probes(model, split.train, split.test, dims=[10_000])
    with pytest.raises(UsageError, match="one class"):
        probes(model, Part(split.train.x, torch.zeros(300)), split.test)
