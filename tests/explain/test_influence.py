"""Influence: what refits of the surrogate give, what a dense Gauss-Newton step gives, and the laws both obey."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ntkscope as ns
from contracts.counted import CountedGram
from ntkscope.core import NtkscopeError, NumericalError, UsageError, numpy_generator
from ntkscope.explain import attribute, average, influence, removal_effects
from ntkscope.explain.removal import gauss_newton, ridge_inverse
from ntkscope.explain.removal.influences import margin_directions
from ntkscope.linalg import as_gram
from ntkscope.measures.faithfulness import correct_class_log_odds
from ntkscope.surrogates import KernelRidge


def problem(
    n: int = 24, m: int = 5, c: int = 3, rank: int = 6, seed: int = 0, *, copies: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A kernel of `rank` features, singular where there are fewer than points; with `copies`, half are repeated."""
    random = numpy_generator(seed, "test", "influence")
    x, t = random.normal(size=(n, rank)), random.normal(size=(m, rank))
    if copies:
        x[n // 2 :] = x[: n - n // 2]
    return x @ x.T, t @ x.T, np.arange(n) % c


def refit(K: np.ndarray, K_test: np.ndarray, Y: np.ndarray, alpha: float, kept: np.ndarray) -> np.ndarray:
    """The predictions of a ridge fitted on some of the points."""
    return KernelRidge(alpha).fit(K[np.ix_(kept, kept)], Y[kept]).predict(K_test[:, kept])


class TestLeaveOneOut:
    @settings(max_examples=12)
    @given(
        seed=st.integers(0, 10_000),
        n=st.integers(3, 30),
        rank=st.integers(1, 40),
        alpha=st.sampled_from([1e-3, 0.1, 1.0, 50.0]),
        copies=st.booleans(),
    )
    def test_equals_refits_of_the_surrogate(self, seed: int, n: int, rank: int, alpha: float, copies: bool) -> None:
        K, K_test, y = problem(n, rank=rank, seed=seed, copies=copies)
        random = numpy_generator(seed, "test", "influence", "draws")
        Y = np.eye(3)[y] if seed % 2 else random.normal(size=(n, 3))
        found = influence(K, K_test, Y, alpha=alpha)
        everything = np.arange(n)
        fitted = refit(K, K_test, Y, alpha, everything)
        assert np.abs(found.logits - fitted).max() < 1e-8
        for i in random.permutation(n)[:4]:
            without = refit(K, K_test, Y, alpha, np.delete(everything, i))
            assert np.abs(found.values[:, i] - (fitted - without)).max() < 1e-8
        group = random.permutation(n)[: max(1, n // 3)]
        without = refit(K, K_test, Y, alpha, np.delete(everything, group))
        assert np.abs(found.without(group) - (without - fitted)).max() < 1e-8

    def test_the_default_strength_is_the_mean_diagonal(self) -> None:
        K, K_test, y = problem()
        expected = influence(K, K_test, y, alpha=float(np.diag(K).mean()))
        assert np.allclose(influence(K, K_test, y).values, expected.values, atol=1e-12)
        assert np.allclose(influence(7 * K, 7 * K_test, y).values, expected.values, atol=1e-12)

    def test_a_point_whose_target_is_what_the_others_predict_does_nothing(self) -> None:
        K, K_test, y = problem()
        Y = np.eye(3)[y]
        others = np.arange(1, len(y))
        Y[0] = refit(K, K[:1], Y, 2.0, others)[0]
        found: Any = influence(K, K_test, Y, alpha=2.0)
        assert np.abs(found.values[:, 0]).max() < 1e-10
        assert np.abs(found.errors[0]).max() < 1e-10
        assert np.abs(found.values[:, 1]).max() > 1e-3

    def test_errors_are_those_of_leave_one_out(self) -> None:
        K, K_test, y = problem()
        ridge = KernelRidge(2.0).fit(K, np.eye(3)[y])
        found: Any = influence(K, K_test, y, alpha=2.0)
        assert np.allclose(found.errors, np.eye(3)[y] - ridge.leave_one_out(K), atol=1e-10)

    def test_without_everything_nothing_is_left(self) -> None:
        K, K_test, y = problem()
        found = influence(K, K_test, y)
        assert np.allclose(found.without(np.ones(len(y), dtype=bool)), -found.logits, atol=1e-10)
        assert np.abs(found.without([])).max() == 0

    def test_points_that_share_nothing_add_up(self) -> None:
        K = np.kron(np.eye(4), np.full((3, 3), 0.5)) + 0.5 * np.eye(12)
        found = influence(K, K[:2], np.arange(12) % 2)
        alone = sum(found.without([i]) for i in (0, 3, 6))
        assert np.allclose(found.without([0, 3, 6]), alone, atol=1e-12)
        assert not np.allclose(found.without([0, 1]), found.without([0]) + found.without([1]), atol=1e-3)

    def test_it_is_not_the_decomposition(self) -> None:
        """A pair of copies: each term of the sum is large, and neither is missed."""
        K = np.kron(np.eye(2), np.ones((2, 2)))
        found = influence(K, K[:1], [0, 0, 1, 1], alpha=0.01)
        parts = attribute(KernelRidge(0.01).fit(K, np.eye(2)[[0, 0, 1, 1]]), K[:1])
        assert parts.item(0)[0, 0] > 0.4
        assert 0 < found.item(0)[0, 0] < 0.02
        assert found.without([0, 1])[0, 0] < -0.9


class TestLargeKernels:
    """Through products alone, as for kernels that cannot be formed."""

    @pytest.fixture
    def products_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ridge_inverse, "lapack_is_safe", lambda n, device: False)

    def test_close_to_the_formed_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        K, K_test, y = problem(400, rank=300, m=4)
        exact: Any = influence(K, K_test, y)
        monkeypatch.setattr(ridge_inverse, "lapack_is_safe", lambda n, device: False)
        monkeypatch.setattr(ridge_inverse, "RANK", 40)
        found: Any = influence(CountedGram(torch.from_numpy(K)), K_test, y)
        assert found.diagonal_error > 0
        assert np.allclose(found.logits, exact.logits, atol=1e-7)
        assert np.allclose(found.without([1, 5, 7]), exact.without([1, 5, 7]), atol=1e-7)
        relative = np.abs(found.errors / exact.errors - 1).max()
        assert found.diagonal_error < 0.1  # of a flat spectrum, 40 of 300 directions known
        assert relative < 4 * found.diagonal_error  # the largest of 400, four standard errors
        assert np.corrcoef(found.values.ravel(), exact.values.ravel())[0, 1] > 0.995

    @pytest.mark.usefixtures("products_only")
    def test_never_formed(self) -> None:
        K, K_test, y = problem(60)
        gram = CountedGram(torch.from_numpy(K))
        found = influence(gram, K_test, y)
        assert np.isfinite(found.item(0)).all()
        assert gram.log["passes"] > 0  # forming it would have raised


class Net(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def network(n: int = 12, m: int = 4, c: int = 3) -> dict[str, Any]:
    with torch.random.fork_rng():
        model = Net(c).double()
        x, t = torch.randn(n, 4).double(), torch.randn(m, 4).double()
    y = np.arange(n) % c
    with torch.no_grad():
        z, zt = model(x).numpy(), model(t).numpy()
    return {"model": model, "x": x, "t": t, "y": y, "z": z, "zt": zt}


def jacobians(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    params = dict(model.named_parameters())
    rows = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, (x,)))(params)
    return torch.cat([rows[name].flatten(2) for name in params], 2).detach().numpy()


class TestGaussNewton:
    @pytest.mark.parametrize(("c", "lam"), [(2, None), (3, 1e-3), (3, 1.0)])
    def test_equals_a_dense_inverse_over_parameters(
        self, c: int, lam: float | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        case = network(c=c)
        K, K_test = ns.kernel("entk", case["model"], case["x"]), ns.kernel("entk", case["model"], case["t"], case["x"])

        def made() -> Any:
            return influence(
                K, K_test, case["y"], alpha=lam, method="gauss-newton", logits=case["zt"], train_logits=case["z"]
            )

        found = made()
        J, Jt = jacobians(case["model"], case["x"]), jacobians(case["model"], case["t"])
        p = np.exp(case["z"]) / np.exp(case["z"]).sum(1, keepdims=True)
        A = np.einsum("nc,cd->ncd", p, np.eye(c)) - p[:, :, None] * p[:, None]
        M = np.einsum("nca,ncd,ndb->ab", J, A, J) + found.alpha * np.eye(J.shape[2])
        pulls = np.einsum("nca,nc->na", J, np.eye(c)[case["y"]] - p)
        expected = np.einsum("mca,na->mnc", Jt, np.linalg.solve(M, pulls.T).T)
        assert np.allclose(found.values, expected, atol=1e-9 / found.alpha)
        assert np.allclose(found.without([2, 3]), -expected[:, [2, 3]].sum(1), atol=1e-9 / found.alpha)
        directions = margin_directions(case["zt"], np.zeros(4, dtype=int))
        assert np.allclose(
            found.margins(np.zeros(4, dtype=int)),
            np.einsum("mnc,mc->mn", expected, directions),
            atol=1e-9 / found.alpha,
        )
        monkeypatch.setattr(gauss_newton, "lapack_is_safe", lambda n, device: False)
        monkeypatch.setattr(ridge_inverse, "lapack_is_safe", lambda n, device: False)
        assert np.allclose(made().values, expected, atol=1e-7 / found.alpha)

    def test_one_row_per_sample_stands_for_every_output(self) -> None:
        case = network()
        K, K_test = (ns.kernel("trntk0", case["model"], *a) for a in ((case["x"],), (case["t"], case["x"])))
        options: dict[str, Any] = {
            "method": "gauss-newton",
            "logits": case["zt"],
            "train_logits": case["z"],
            "alpha": 0.1,
        }
        found = influence(K, K_test, case["y"], **options)
        wide = [as_gram(np.kron(k.numpy(), np.eye(3))).with_labels(outputs=3) for k in (K, K_test)]
        assert np.allclose(found.values, influence(wide[0], wide[1], case["y"], **options).values, atol=1e-9)

    def test_a_point_the_network_is_sure_of_does_nothing(self) -> None:
        case = network()
        z = case["z"].copy()
        z[0] = 60 * np.eye(3)[case["y"][0]]
        K, K_test = ns.kernel("entk", case["model"], case["x"]), ns.kernel("entk", case["model"], case["t"], case["x"])
        found = influence(K, K_test, case["y"], method="gauss-newton", train_logits=z)
        assert np.abs(found.values[:, 0]).max() < 1e-12 < np.abs(found.values[:, 1]).max()
        with pytest.raises(UsageError, match="got no logits of the test items"):
            found.margins([0, 0, 0, 0])


def both() -> dict[str, Any]:
    K, K_test, y = problem()
    z = numpy_generator(0, "test", "logits").normal(size=(len(y), 3))
    ridge = influence(K, K_test, y)
    newton = influence(K, K_test, y, method="gauss-newton", train_logits=z, logits=K_test @ z)
    return {"leave-one-out": ridge, "gauss-newton": newton, "mean": average([ridge, newton])}


class TestShape:
    @pytest.mark.parametrize("kind", ["leave-one-out", "gauss-newton", "mean"])
    def test_every_way_to_read_it_agrees(self, kind: str) -> None:
        found = both()[kind]
        values = found.values
        assert found.shape == values.shape == (5, 24, 3)
        assert np.allclose(found.item(3), values[3], atol=1e-12)
        assert np.allclose(found.item(-1), values[4], atol=1e-12)
        assert np.allclose(np.asarray(found), values)
        assert len(found) == 5
        top = found.top(2, 4, output=1)
        assert np.array_equal(top.indices, np.argsort(-values[2, :, 1], kind="stable")[:4])
        assert np.allclose(top.values, values[2, top.indices, 1])
        assert found.top(2, 4).output == found.logits[2].argmax()
        assert found.top(2, 1, output=1, opposing=True).indices[0] == values[2, :, 1].argmin()
        assert len(repr(found)) < 100
        assert len(repr(top)) < 100

    def test_margins_are_the_change_of_the_log_odds(self) -> None:
        K, K_test, y = problem()
        random = numpy_generator(1, "test", "margins")
        z, labels = random.normal(size=(5, 3)), np.array([0, 1, 2, 0, 1])
        found = influence(K, K_test, y, logits=z)
        step = 1e-6
        for i in (0, 7):
            moved = correct_class_log_odds(z - step * found.values[:, i], labels)
            change = (correct_class_log_odds(z, labels) - moved) / step
            assert np.allclose(found.margins(labels)[:, i], change, atol=1e-5)

    def test_blocks_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = both()["mean"]
        values, margins = whole.values, whole.margins([0, 1, 2, 0, 1])
        monkeypatch.setattr("ntkscope.explain.removal.influences.BLOCK", 1)
        monkeypatch.setattr("ntkscope.explain.removal.gauss_newton.BLOCK", 1)
        assert np.allclose(whole.values, values, atol=1e-12)
        assert np.allclose(whole.margins([0, 1, 2, 0, 1]), margins, atol=1e-12)

    def test_the_mean_is_the_mean(self) -> None:
        members = both()
        expected = (members["leave-one-out"].values + members["gauss-newton"].values) / 2
        assert np.allclose(members["mean"].values, expected, atol=1e-12)
        assert average([members["mean"]]) is members["mean"]
        assert np.allclose(members["mean"].without([1]), -expected[:, 1], atol=1e-10)

    def test_attributions_have_a_top_too(self) -> None:
        K, K_test, y = problem()
        found = attribute(KernelRidge(1.0).fit(K, np.eye(3)[y]), K_test)
        top = found.top(1, 3)
        assert top.output == found.sums()[1].argmax()
        assert np.array_equal(top.indices, np.argsort(-found.item(1)[:, top.output], kind="stable")[:3])
        assert len(repr(found)) < 100
        with pytest.raises(UsageError, match="expected one of 0 … 2"):
            found.top(1, 3, output=3)


class TestRemovalEffects:
    def test_are_the_largest_influences(self) -> None:
        K, K_test, y = problem()
        values = influence(K, K_test, y, alpha=2.0).values
        classes = np.array([[0, 2]] * 5)
        found = removal_effects(K, K_test, y, alpha=2.0, classes=classes, k=4)
        assert found.indices.shape == found.values.shape == (5, 2, 4)
        for t in range(5):
            for place, c in enumerate((0, 2)):
                order = np.argsort(-values[t, :, c], kind="stable")[:4]
                assert np.array_equal(found.indices[t, place], order)
                assert np.allclose(found.values[t, place], values[t, order, c])
        assert removal_effects(K, K_test, np.eye(3)[y], k=1).indices.shape == (5, 3, 1)
        assert len(repr(found)) < 100

    @pytest.mark.parametrize(
        "bad", [{"k": 0}, {"k": 25}, {"classes": [[3]] * 5}, {"classes": [[0]]}, {"classes": [[0.5]] * 5}]
    )
    def test_refused(self, bad: dict[str, Any]) -> None:
        K, K_test, y = problem()
        with pytest.raises(UsageError, match="expected"):
            removal_effects(K, K_test, y, **bad)


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"alpha": 0.0}, "above 0"),
            ({"logits": np.zeros((4, 3))}, r"expected \(5, 3\)"),
            ({"method": "gauss-newton"}, "train_logits"),
            ({"y": np.arange(23)}, "expected"),
            ({"y": np.arange(24) % 5, "logits": np.zeros((5, 3))}, "label 4 with 3 classes"),
            ({"K_test": np.zeros((5, 23))}, "expected the kernel of the training points"),
            ({"K_train": np.ones((24, 23))}, "symmetric"),
        ],
    )
    def test_wrong_arguments(self, changes: dict[str, Any], words: str) -> None:
        K, K_test, y = problem()
        arguments: dict[str, Any] = {"K_train": K, "K_test": K_test, "y": y, **changes}
        with pytest.raises(NtkscopeError, match=words):
            influence(arguments.pop("K_train"), arguments.pop("K_test"), arguments.pop("y"), **arguments)

    def test_points_and_members(self) -> None:
        found = both()["leave-one-out"]
        for points in ([24], [0, 0], [0.5], [[1]]):
            with pytest.raises(UsageError, match="expected"):
                found.without(points)
        with pytest.raises(UsageError, match="at least one"):
            average([])

    def test_what_is_no_kernel(self) -> None:
        K, K_test, y = problem()
        with pytest.raises(NumericalError, match="not positive definite"):
            influence(K - 20 * np.eye(len(y)), K_test, y, alpha=1.0)
