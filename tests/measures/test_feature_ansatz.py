"""The feature ansatz against its definitions written out, and its control against one that forms every matrix."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.measure import MeasureContract
from ntkscope.core import NumericalError, UsageError, generator, numpy_generator
from ntkscope.linalg.features import correlation as feature_correlation
from ntkscope.measures.feature_ansatz import (
    double_centred_ratio,
    egop,
    haar_control,
    nfa_correlation,
    sixteen_terms,
)
from ntkscope_papers.beaglehole_2024.data import chain_monomial

shapes = st.tuples(st.integers(2, 7), st.integers(2, 7))


def drawn(seed: int, out: int, inside: int) -> tuple[np.ndarray, ...]:
    """W, W₀, tangents B and B₀ (n, out)."""
    random = numpy_generator(seed, "test", "feature ansatz")
    return (
        random.normal(size=(out, inside)),
        random.normal(size=(out, inside)),
        random.normal(size=(9, out)) * np.arange(1, out + 1),
        random.normal(size=(9, out)),
    )


def quadratic(x: torch.Tensor, form: torch.Tensor) -> torch.Tensor:
    return ((x @ form) * x).sum(1)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


@settings(max_examples=40)
@given(shape=shapes, seed=st.integers(0, 1000), scale=st.sampled_from([1.0, 1e-90, 1e80]))
def test_the_four_correlations_are_their_definitions(shape: tuple[int, int], seed: int, scale: float) -> None:
    W, W0, B, B0 = drawn(seed, *shape)
    K, Kc, Wc = B.T @ B / 9, (B - B0).T @ (B - B0) / 9, W - W0
    pairs = {None: (W, K), "weights": (Wc, K), "both": (Wc, Kc), "tangents": (W0, Kc)}
    for centring, (w, k) in pairs.items():
        F, G = w.T @ w, w.T @ k @ w
        given_ = {"W0": W0 * scale, "Kc": Kc * scale, "centring": centring}
        assert nfa_correlation(W * scale, K * scale, **given_) == pytest.approx(cosine(F, G), abs=1e-12)
        pearson = np.corrcoef(F.flatten(), G.flatten())[0, 1]
        assert nfa_correlation(W * scale, K * scale, pearson=True, **given_) == pytest.approx(pearson, abs=1e-10)
        plain = nfa_correlation(W * scale, K * scale, diagonal=True, **given_)
        assert plain == pytest.approx(cosine(np.diag(F), np.diag(G)), abs=1e-12)
        diagonals = np.corrcoef(np.diag(F), np.diag(G))[0, 1]
        both = nfa_correlation(W * scale, K * scale, pearson=True, diagonal=True, **given_)
        assert both == pytest.approx(diagonals, abs=1e-10)


@settings(max_examples=30)
@given(shape=shapes, seed=st.integers(0, 1000))
def test_the_sixteen_terms_add_up(shape: tuple[int, int], seed: int) -> None:
    W, W0, B, B0 = drawn(seed, *shape)
    K, Kc, Wc = B.T @ B / 9, (B - B0).T @ (B - B0) / 9, W - W0
    terms = sixteen_terms(W, W0, K)
    assert len(terms) == 16
    whole = np.trace(W.T @ W @ W.T @ K @ W)
    assert sum(terms.values()) == pytest.approx(whole, rel=1e-10, abs=1e-9 * max(map(abs, terms.values())))
    centred = np.trace(Wc.T @ Wc @ Wc.T @ K @ Wc)
    assert terms["cccc"] == pytest.approx(centred, rel=1e-10)
    assert terms["c00c"] == pytest.approx(np.trace(Wc.T @ W0 @ W0.T @ K @ Wc), rel=1e-9)
    assert terms["0ccc"] == pytest.approx(np.trace(W0.T @ Wc @ Wc.T @ K @ Wc), rel=1e-9, abs=1e-9)
    double = np.trace(Wc.T @ Wc @ Wc.T @ Kc @ Wc)
    assert double_centred_ratio(W, W0, K, Kc) == pytest.approx(double / centred, rel=1e-10)


@settings(max_examples=20)
@given(shape=shapes, seed=st.integers(0, 1000), pearson=st.booleans(), diagonal=st.booleans(), rank=st.integers(1, 7))
def test_the_control_is_the_correlation_with_every_matrix_formed(
    shape: tuple[int, int], seed: int, pearson: bool, diagonal: bool, rank: int
) -> None:
    W, _, B, _ = drawn(seed, *shape)
    B = B[:rank]
    K = B.T @ B
    control = haar_control(W, K, draws=3, seed=seed, pearson=pearson, diagonal=diagonal)
    assert control.observed == nfa_correlation(W, K, pearson=pearson, diagonal=diagonal)
    random = generator(seed, "haar control")
    kept = min(rank, len(K))
    spectrum = np.linalg.eigvalsh(K)[::-1][:kept]
    for value in control.values:
        V = torch.linalg.qr(torch.randn(len(K), kept, generator=random, dtype=torch.float64)).Q.numpy()
        Q = V @ np.diag(spectrum) @ V.T
        assert value == pytest.approx(nfa_correlation(W, Q, pearson=pearson, diagonal=diagonal), abs=1e-9)


@settings(max_examples=20)
@given(
    inside=st.integers(1, 4),
    seed=st.integers(0, 1000),
    pearson=st.booleans(),
    diagonal=st.booleans(),
    rank=st.integers(5, 8),
)
def test_a_wide_layers_control_draws_in_the_space_of_its_weights(
    inside: int, seed: int, pearson: bool, diagonal: bool, rank: int
) -> None:
    """Against Q formed from the corners that were drawn: `WᵀQW` does not depend on what Q does outside that space."""
    W, _, B, _ = drawn(seed, 8, inside)
    if pearson and inside == 1:
        return  # one entry, less its mean
    K = B[:rank].T @ B[:rank]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_correlation, "WIDE", 4)
        control = haar_control(W, K, draws=3, seed=seed, pearson=pearson, diagonal=diagonal)
    random = generator(seed, "haar control")
    spectrum = torch.from_numpy(np.linalg.eigvalsh(K)[::-1][:rank].copy())
    U = torch.linalg.qr(torch.from_numpy(W / np.abs(W).max())).Q
    for value in control.values:
        V = U @ feature_correlation.haar_corner(8, inside, rank, random)
        Q = (V * spectrum) @ V.T
        assert value == pytest.approx(nfa_correlation(W, Q.numpy(), pearson=pearson, diagonal=diagonal), abs=1e-9)


def test_corners_of_haar_matrices() -> None:
    """Entries have mean 0 (with LAPACK's signs they would not) and variance 1/size; both ways draw from one distribution."""
    random = generator(0, "corners")
    corners = torch.stack([feature_correlation.haar_corner(6, 2, 5, random) for _ in range(1500)])
    error = 4 * (1 / 6 / 1500) ** 0.5
    assert float(corners.mean(0).abs().max()) < error
    assert float((corners.square().mean(0) - 1 / 6).abs().max()) < error
    W, _, B, _ = drawn(3, 9, 2)
    plain = haar_control(W, B.T @ B, draws=600, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_correlation, "WIDE", 4)
        cornered = haar_control(W, B.T @ B, draws=600, seed=2)
    assert plain.values[0] != cornered.values[0]
    assert abs(plain.mean - cornered.mean) < 4 * (plain.values.var() / 300) ** 0.5
    assert plain.values.std() == pytest.approx(cornered.values.std(), rel=0.23)  # 4 / √300
    for q, value in plain.quantiles.items():
        assert cornered.quantiles[q] == pytest.approx(value, abs=0.08)


def test_the_controls_eigenvectors_are_haar() -> None:
    """`E[WᵀQW] = tr(K)/out · WᵀW`; the mean over draws of `ρ` of rank-one Q against W = I is 1/√out exactly."""
    K = torch.zeros(6, 6)
    K[0, 0] = 1
    assert haar_control(torch.eye(6), K, draws=20).mean == pytest.approx(6**-0.5)
    W = torch.diag(torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    control = haar_control(W, K, draws=1500, seed=1)
    # v uniform on the sphere: ρ = Σ d² v² / (√Σd² Σ d v²), d = W's squares
    v = torch.randn(200_000, 6, generator=generator(0, "sphere"), dtype=torch.float64)
    d = W.diagonal().double().square()
    expected = ((v**2 @ d**2) / ((v**2 @ d) * d.norm())).numpy()
    error = float(np.std(control.values) / 1500**0.5)
    assert abs(control.mean - expected.mean()) < 4 * error + 4 * expected.std() / 200_000**0.5
    assert control.quantiles[0.025] == pytest.approx(np.quantile(expected, 0.025), abs=0.02)
    assert control.p_value == (1 + (control.values >= control.observed).sum()) / 1501


def test_chain_monomial_targets() -> None:
    """The EGOP of samples is near the expectation; its rank is r, but r - 2 where 4 divides r (erratum: printed as r)."""
    for r in range(2, 13):
        split = chain_monomial(rank=r, dimension=14, unit_labels=False, train=4, test=4)
        exact, form = split.extras["egop"].double(), split.extras["form"].double()
        x = torch.randn(20_000, 14, generator=generator(r, "egop"), dtype=torch.float64)
        sampled = egop(partial(quadratic, form=form), x)
        assert float((sampled - exact).norm() / exact.norm()) < 0.05
        rank = int((torch.linalg.eigvalsh(exact) > 1e-9).sum())
        assert rank == (r - 2 if r % 4 == 0 else r)


def test_the_egop_of_several_outputs_is_the_sum_of_theirs() -> None:
    forms = torch.randn(3, 5, 5, generator=generator(0, "forms"), dtype=torch.float64)
    x = torch.randn(20, 5, generator=generator(1, "forms"), dtype=torch.float64)

    def several(x: torch.Tensor, forms: torch.Tensor) -> torch.Tensor:
        shared = x.tanh()
        return torch.stack([quadratic(shared, form) for form in forms], 1)

    each = [egop(partial(several, forms=form[None]), x) for form in forms]
    torch.testing.assert_close(egop(partial(several, forms=forms), x), sum(each), rtol=1e-12, atol=1e-12)


def test_bad_input() -> None:
    W, K = torch.ones(3, 2), torch.eye(3)
    with pytest.raises(UsageError, match="without initial weights"):
        nfa_correlation(W, K, centring="weights")
    with pytest.raises(UsageError, match="not the difference of two covariances"):
        nfa_correlation(W, K, W0=0 * W, centring="both")
    with pytest.raises(NumericalError, match="are the initial ones"):
        nfa_correlation(W, K, W0=W, centring="weights")
    with pytest.raises(NumericalError, match="undefined"):
        nfa_correlation(W, 0 * K)
    with pytest.raises(NumericalError, match="constant"):
        nfa_correlation(W, K, pearson=True, diagonal=True)
    with pytest.raises(UsageError, match=r"\(out, in\) and"):
        nfa_correlation(W, torch.eye(4))
    with pytest.raises(UsageError, match="not symmetric"):
        nfa_correlation(W, torch.tensor([[1.0, 1, 0], [0, 1, 0], [0, 0, 1]]))
    with pytest.raises(UsageError, match="one shape"):
        nfa_correlation(W, K, W0=torch.ones(2, 2), centring="weights")
    with pytest.raises(UsageError, match="one shape"):
        sixteen_terms(W, torch.ones(2, 2), K)
    with pytest.raises(UsageError, match=r"gives \(2,\) for 3 inputs"):
        egop(lambda x: x[:2, 0], torch.ones(3, 2))
    with pytest.raises(UsageError, match="do not depend on x"):
        egop(lambda x: x[:, 0].detach(), torch.ones(3, 2))
    with pytest.raises(NumericalError, match="NaN"):
        egop(lambda x: x[:, 0].sqrt(), torch.zeros(3, 2))
    assert feature_correlation.CENTRINGS == (None, "weights", "both", "tangents")


class TestFeatureAnsatz(MeasureContract):
    name = "feature-ansatz"

    def arguments(self, seed: int) -> tuple[np.ndarray, ...]:
        W, _, B, _ = drawn(seed, 30, 7)
        return W, B.T @ B

    def perfect(self) -> tuple[np.ndarray, ...]:
        return self.arguments(0)[0], 3 * np.eye(30)
