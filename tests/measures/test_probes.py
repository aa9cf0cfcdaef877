"""Probe sweeps: against refits of scikit-learn and naive neighbours at every d, the published rules, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.svm import LinearSVC
from torch import Tensor

from ntkscope.core import UsageError
from ntkscope.measures._sweeps import chosen_strengths, voted
from ntkscope.measures.probes import ProbeSweep, grid, sweep

Problem = tuple[Tensor, Tensor, Tensor, Tensor]


def problem(n: int = 240, m: int = 90, p: int = 24, classes: int = 4, seed: int = 0) -> Problem:
    """Scores as principal components have them: columns of falling variance, some of it between classes."""
    g = torch.Generator().manual_seed(seed)
    centres = 0.8 * torch.randn(classes, p, generator=g, dtype=torch.float64)
    y = torch.cat([torch.arange(classes), torch.randint(0, classes, (n + m - classes,), generator=g)])
    Z = (centres[y] + torch.randn(n + m, p, generator=g, dtype=torch.float64)) * torch.logspace(1, -1, p).double()
    return Z[:n], y[:n], Z[n:], y[n:]


def naive_neighbours(Z: np.ndarray, y: np.ndarray, new: np.ndarray, k: int) -> list[int]:
    """Majority of the k nearest; of tied classes the one of the nearest neighbour."""
    found = []
    for row in new:
        order = np.argsort(((Z - row) ** 2).sum(1), kind="stable")[:k]
        votes = np.bincount(y[order])
        found.append(int(next(label for label in y[order] if votes[label] == votes.max())))
    return found


@settings(max_examples=10, deadline=None)
@given(
    st.integers(12, 150), st.integers(1, 40), st.integers(1, 12), st.integers(2, 5), st.integers(1, 11), st.integers(0, 99)
)  # fmt: skip
def test_neighbours_and_centres_are_those_of_naive_refits(
    n: int, m: int, p: int, classes: int, k: int, seed: int
) -> None:
    Z, y, new, truth = problem(n, m, p, classes, seed)
    dims = sorted({1, (p + 1) // 2, p})
    nearby = sweep(Z, y, new, truth, dims, probes=("knn", "ncc"), k=k)
    first = sweep(Z, y, new, truth, dims, probes=("knn",), k=k, ties="first")
    for d in dims:
        a, b = Z[:, :d].numpy(), new[:, :d].numpy()
        assert nearby.predictions["knn"][d].tolist() == naive_neighbours(a, y.numpy(), b, k)
        peer = KNeighborsClassifier(k, algorithm="brute").fit(a, y)
        assert first.predictions["knn"][d].tolist() == peer.predict(b).tolist()
        assert nearby.predictions["ncc"][d].tolist() == NearestCentroid().fit(a, y).predict(b).tolist()
        right = (nearby.predictions["ncc"][d] == truth).double().mean()
        assert nearby.accuracy["ncc"][d] == pytest.approx(float(right))


def test_many_test_items_pass_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sweep(*problem(), [3, 24], probes=("knn",))
    monkeypatch.setattr("ntkscope.measures._sweeps.ROOM", 240 * 8 * 7)
    parts = sweep(*problem(), [3, 24], probes=("knn",))
    assert all(torch.equal(whole.predictions["knn"][d], parts.predictions["knn"][d]) for d in (3, 24))


@pytest.mark.parametrize("C", [1e-3, 1.0])
def test_linear_probes_reach_the_minimum_that_scikit_learn_reaches(C: float) -> None:
    Z, y, new, truth = problem()
    found = sweep(Z, y, new, truth, [3, 24], probes=("svm", "logistic"), C=C)
    signs = 2 * np.eye(4)[y] - 1
    for d in (3, 24):
        a = Z[:, :d].numpy()
        svm = LinearSVC(C=C, tol=1e-7, max_iter=1_000_000, dual=False).fit(a, y)
        short = np.maximum(0, 1 - signs * svm.decision_function(a))
        minimum = ((svm.coef_**2).sum() + (svm.intercept_**2).sum()) / 2 + C * (short**2).sum()
        assert found.objective["svm"][d] == pytest.approx(minimum, rel=1e-4)  # ours is within 1e-5 of its minimum
        assert (found.predictions["svm"][d].numpy() == svm.predict(new[:, :d])).mean() > 0.97
        fit = LogisticRegression(C=C, tol=1e-6, solver="newton-cg").fit(a, y)
        loss = torch.nn.functional.cross_entropy(torch.from_numpy(fit.decision_function(a)), y, reduction="sum")
        assert found.objective["logistic"][d] == pytest.approx((fit.coef_**2).sum() / 2 + C * float(loss), rel=1e-4)
        assert found.C["svm"][d] == C


@pytest.mark.parametrize("probe", ["svm", "logistic"])
def test_many_coordinates_reach_the_same_minimum(monkeypatch: pytest.MonkeyPatch, probe: str) -> None:
    """Where Hessians are too large to be factored, their diagonals only lead the steps."""
    few = sweep(*problem(), [3, 24], probes=(probe,), C=0.1)
    monkeypatch.setattr("ntkscope.measures._sweeps.FACTORED", 8)
    many = sweep(*problem(), [3, 24], probes=(probe,), C=0.1)
    assert many.objective[probe][24] == pytest.approx(few.objective[probe][24], rel=2e-5)  # each within 1e-5 of it


def test_two_classes_are_one_margin_twice() -> None:
    Z, y, new, truth = problem(classes=2)
    found = sweep(Z, y, new, truth, [24], probes=("svm",), C=0.1)
    svm = LinearSVC(C=0.1, tol=1e-7, max_iter=1_000_000, dual=False).fit(Z, y)
    assert (found.predictions["svm"][24].numpy() == svm.predict(new)).all()


def test_the_strength_is_chosen_on_training_items_only() -> None:
    Z, y, new, truth = problem()
    dims = [2, 8, 24]
    chosen = sweep(Z, y, new, truth, dims, probes=("svm",))
    assert chosen.C["svm"] == chosen_strengths("svm", Z, y, dims)
    fixed = {d: sweep(Z, y, new, truth, [d], probes=("svm",), C=chosen.C["svm"][d]) for d in dims}
    for d in dims:
        assert chosen.objective["svm"][d] == pytest.approx(fixed[d].objective["svm"][d], rel=2e-5)  # warm or cold
    assert chosen.accuracy["svm"][24] >= 0.9 * max(
        sweep(Z, y, new, truth, [24], probes=("svm",), C=C).accuracy["svm"][24] for C in (1e-3, 1e-1, 10.0)
    )


def test_the_strength_is_chosen_at_each_of_few_dimensions() -> None:
    Z, y, _, _ = problem()
    dims = [1, 8, 24]
    alone = {d: chosen_strengths("logistic", Z, y, [d])[d] for d in dims}
    assert len(set(alone.values())) > 1
    assert chosen_strengths("logistic", Z, y, dims) == alone


def test_labels_are_kept_as_they_came_and_single_precision_is_taken() -> None:
    Z, y, new, truth = problem()
    names = torch.tensor([7, 3, 40, -2])
    wide = sweep(Z, y, new, truth, [24], probes=("knn", "ncc"))
    named = sweep(Z.float(), names[y], new.float(), names[truth], [24], probes=("knn", "ncc"))
    assert named.classes == (-2, 3, 7, 40)
    for probe in ("knn", "ncc"):
        same = (names[wide.predictions[probe][24]] == named.predictions[probe][24]).double().mean()
        assert same > 0.98
    assert torch.equal(named.labels, names[truth])


def test_variance_is_a_share_of_the_total() -> None:
    Z, y, new, truth = problem()
    found = sweep(Z, y, new, truth, [1, 24], probes=("ncc",))
    assert found.variance[24] == pytest.approx(1)
    halved = sweep(Z, y, new, truth, [1, 24], probes=("ncc",), total=2 * float(Z.var(0, correction=0).sum()))
    assert halved.variance[1] == pytest.approx(found.variance[1] / 2)


# -- the published rules --------------------------------------------------------------------------------------------------


def made(accuracy: dict[int, float]) -> ProbeSweep:
    return ProbeSweep(
        dims=tuple(accuracy), classes=(0, 1), labels=torch.zeros(1, dtype=torch.long), predictions={"knn": {}},
        accuracy={"knn": accuracy}, variance={},
    )  # fmt: skip


def test_ninety_percent_of_96_is_86_4() -> None:
    """Claim probes-90pct-rule, its worked example."""
    assert made({1: 0.5, 2: 0.8639, 3: 0.8641, 4: 0.96, 5: 0.9}).smallest(0.9) == {"knn": 3}
    assert made({1: 0.5, 2: 0.96, 3: 0.96}).best() == {"knn": 2}
    with pytest.raises(UsageError, match="share of the best"):
        made({1: 1.0}).smallest(90)


def test_the_grid_is_the_published_one() -> None:
    published = [*range(1, 21), 30, 40, 50, 100, 150, 200, 250, 300, 400, 500, 750, 1000, 1250, 1500, 1750, 2000]
    assert grid(16384) == [*published, *range(3000, 17000, 1000), 16384]
    assert grid(3000)[-2:] == [2000, 3000]
    assert grid(1) == [1]


def test_centres_saturate() -> None:
    """Claim probes-ncc-saturation-identity: coordinates in which all class means agree change no prediction."""
    Z, y, new, truth = problem(p=6)
    more = torch.randn(len(Z), 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    means = torch.stack([more[y == c].mean(0) for c in range(4)])
    more = 5 * (more - means[y]) + 1
    ahead = torch.randn(len(new), 10, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    wide, wider = torch.cat([Z, more], 1), torch.cat([new, 5 * ahead + 1], 1)
    found = sweep(wide, y, wider, truth, range(1, 17), probes=("ncc", "knn"), k=3)
    assert all(torch.equal(found.predictions["ncc"][6], found.predictions["ncc"][d]) for d in range(7, 17))
    assert not torch.equal(
        found.predictions["knn"][6], found.predictions["knn"][16]
    )  # the canary: neighbours do change


# -- refusals -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_probed_is_refused() -> None:
    Z, y, new, truth = problem()

    def refused(words: str, *arguments: object, **options: object) -> None:
        with pytest.raises(UsageError, match=words):
            sweep(*arguments, **options)

    for dims in ([25], [0, 3], []):
        refused("expected whole numbers from 1 to 24", Z, y, new, truth, dims)
    refused("expected a whole number", Z, y, new, truth, [1.5])
    refused("one class", Z, torch.zeros(240), new, truth, [1])
    refused("24 columns for training and 20", Z, y, new[:, :20], truth, [1])
    refused("y_test for 5 items", Z, y, new, truth[:5], [1])
    refused("expected a whole number", Z, y + 0.5, new, truth, [1])
    refused("k=241", Z, y, new, truth, [1], k=241)
    refused("probes=", Z, y, new, truth, [1], probes=("forest",))
    refused("probes=", Z, y, new, truth, [1], probes="knn")


@pytest.mark.parametrize(("offset", "scale"), [(1e4, 1.0), (0.0, 1e25), (0.0, 1e-25), (-1e30, 1e26)])
def test_neighbours_and_centres_do_not_depend_on_where_the_data_lie(offset: float, scale: float) -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    Z = [((torch.randn(60, 4, generator=random) + y[:, None]) * scale + offset).float() for _ in range(2)]
    Z[0][:, 2] = Z[1][:, 2] = 3.0  # constant
    found = sweep(Z[0], y, Z[1], y, [1, 4], probes=("knn", "ncc"), k=5)
    wide = [z.double() / scale for z in Z]
    for d in (1, 4):
        a, b = wide[0][:, :d], wide[1][:, :d]
        nearest = y[(b[:, None] - a).square().sum(2).topk(5, dim=1, largest=False).indices]
        assert torch.equal(found.predictions["knn"][d], voted(nearest, "nearest"))
        centres = torch.stack([a[y == c].mean(0) for c in range(3)])
        assert torch.equal(found.predictions["ncc"][d], (b[:, None] - centres).square().sum(2).argmin(1))
