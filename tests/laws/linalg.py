"""Matrices: solvers, spectra, tests of spectra."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import ntkscope as ns
from laws.table import (
    INVARIANT,
    Case,
    array,
    case,
    choice,
    count,
    finite,
    given,
    kernel,
    matrix,
    nonnegative,
    other,
    positive,
    positive_vector,
    seed,
    share,
    switch,
    symmetric,
    vector,
)

la = ns.linalg


def _gram(axis: str = "n") -> Any:
    """A kernel as a Gram: the only form these take."""
    drawn = kernel(axis).draw
    bad: tuple[Any, ...] = (None, "x", object(), 1j, {}, np.eye(3) * np.nan)
    return other(lambda random, sizes: la.as_gram(drawn(random, sizes)), bad=bad, axes=(axis, axis))


def _at_ones(preconditioner: Any) -> Any:
    """A preconditioner is a function: its value at ones, of the one size that fits."""
    for n in (12, 3, 2, 1):
        try:
            return preconditioner(torch.ones(n, 1, dtype=torch.float64))
        except RuntimeError:  # another size
            continue
    raise AssertionError("no size fits")


SHAPE_BAD = (None, "x", 3, (3,), (0, 4), (-4, 4), (2.5, 4), (float("nan"), 4), (True, 4), object(), (3, 4, 5))
SHAPE = given((30, 20), bad=SHAPE_BAD)
SYSTEM = {"solution": -1.0}

# fmt: off
CASES: list[Case] = [
    case(la.as_gram, values=matrix("n", "m", degree=1), options={"items": {"": ("n", "m")}}),
    case(la.effective_rank, A=kernel(square=False, degree=0), of=choice("kernel"),
        options={"items": INVARIANT, "low": 1 - 1e-9, "high": 12 + 1e-9}),
    case(la.entropy_rank, values=positive_vector(degree=0, tensor=True),
        options={"items": INVARIANT, "low": 1 - 1e-9, "high": 12 + 1e-9}),
    case(la.condition_number, A=kernel(square=False, degree={"value": 0, "largest": 1, "smallest": 1}),
        cutoff=nonnegative(1e-12).may_be(None), of=choice("kernel"),
        options={"items": INVARIANT, "ranges": {"value": (1, np.inf)}, "free": ("value",)}),
    case(la.singular_values, A=kernel(square=False, degree=1), of=choice("kernel"),
        options={"items": INVARIANT, "low": 0}),
    case(la.eigenpairs, K=kernel(degree={"0": 1, "1": 0}), k=count("k").may_be(None), options={"items": {"1": None}}),
    case(la.top_eigenpairs, K=kernel(degree={"0": 1}, tensor=True), k=count("k"), by=choice("value"),
        tolerance=nonnegative(0.0), seed=seed(), options={"items": {"1": None}}),
    case(la.frobenius_norm, A=matrix(degree=1), options={"items": INVARIANT, "low": 0}),
    case(la.spectral_norm, A=matrix(degree=1), options={"items": INVARIANT, "low": 0}),
    case(la.stable_rank, A=matrix(degree=0), options={"items": INVARIANT, "low": 0, "high": 5 + 1e-9}),
    case(la.matrix_correlation, A=kernel(degree=0), B=kernel(degree=0),
        options={"items": INVARIANT, "low": -1, "high": 1}),
    case(la.principal_angles, A=matrix("n", "q", degree=0), B=matrix("n", "k", degree=0),
        options={"items": INVARIANT, "low": 0, "high": np.pi / 2 + 1e-12}),
    case(la.spiked.participation, vectors=array(lambda random,
        sizes: np.linalg.qr(random.normal(size=(sizes["n"], min(sizes["n"], sizes["k"]))))[0], "n", "k", tensor=True),
        options={"items": INVARIANT, "low": 0, "high": 1 + 1e-9}),
    case(la.cholesky_solve, K=kernel(degree=SYSTEM), Y=matrix("n", "q", degree={"solution": 1}), ridge=nonnegative(0.0),
        options={"items": {"solution": ("n", None)}, "noise": ("residual",)}),
    case(la.minimum_norm_solve, K=kernel(degree={"solution": -1, "eigenvalues": 1, "smallest_eigenvalue": 1}),
        Y=matrix("n", "q", degree={"solution": 1}), cutoff=nonnegative(1e-12).may_be(None),
        options={"items": {"solution": ("n", None)}, "noise": ("residual",)}),
    case(la.conjugate_gradient, K=kernel(degree=SYSTEM), Y=matrix("n", "q", degree={"solution": 1}),
        ridge=nonnegative(0.0), rtol=positive(1e-10).may_be(0.0), max_iter=count(200),
        options={"items": {"solution": ("n", None)}, "noise": ("relative_residual", "iterations", "passes")}),
    case(la.least_squares, A=matrix("n", "p", degree={"solution": -1, "singular_values": 1, "residual_norm": 0}),
        Y=matrix("n", "q", degree={"solution": 1, "residual_norm": 1}), ridge=nonnegative(0.0),
        weights=positive_vector(degree={"solution": 0}).may_be(None),
        rtol=share(1e-12).may_be(None), options={"items": INVARIANT}),
    case(la.lsmr, A=matrix("n", "p", degree={"solution": -1}), Y=matrix("n", "q", degree={"solution": 1}),
        ridge=nonnegative(0.0), rtol=positive(1e-10).may_be(0.0), max_iter=count(200),
        options={"items": {"history": None, "optimality": None, "relative_residual": None, "iterations": None},
        "noise": ("optimality", "relative_residual", "history", "iterations")}),
    case(la.jacobi, K=_gram(), ridge=nonnegative(0.1), options={"of": _at_ones}),
    case(la.block_jacobi, K=_gram(), ridge=nonnegative(0.1), size=count(4), options={"of": _at_ones}),
    case(la.nystrom, K=_gram(), ridge=nonnegative(0.1), rank=count(4), seed=seed(), options={"of": _at_ones}),
    case(la.psd_health, K=kernel(degree={"smallest_eigenvalue": 1, "largest_eigenvalue": 1, "negative_mass": 0,
        "condition_number": 0, "asymmetry": 0}), method=choice("eigenvalues").may_be(None), probes=count(4),
        steps=count(8), seed=seed(), options={"items": INVARIANT, "noise": ("asymmetry", "rounding", "jitter",
        "smallest_error"), "free": ("condition_number", ), "ranges": {"negative_mass": (0, 1)}}),
    case(la.nearest_psd, K=kernel(degree=1), floor=finite(0.0), method=choice("eigenvalues").may_be(None),
        pairs=count(4), max_passes=count(20), seed=seed(), options={"items": {"": ("n", "n")}}),
    case(la.pca, features=matrix("n", "p", degree={"directions": 0}), components=count(3).may_be(None),
        standardise=switch(False), method=choice("exact"), seed=seed(),
        options={"items": {"directions": None}, "noise": ("error",), "ranges": {"variance": (0, np.inf)}}),
    case(la.spectral_density, K=kernel(), points=count(20), width=positive(0.1).may_be(None),
        method=choice("exact").may_be(None), probes=count(3), steps=count(5), seed=seed(),
        options={"ranges": {"density": (0, np.inf), "standard_error": (0, np.inf)}}),
    case(la.stochastic_trace, K=kernel(degree=1), function=given(torch.abs, bad=(None, "x", 3)), probes=count(3),
        steps=count(5), seed=seed()),
    case(la.estimate_effective_rank, K=kernel(degree={"value": 0}), of=choice("kernel"), probes=count(4),
        steps=count(5), deflate=count(2, least=0), seed=seed(),
        options={"ranges": {"value": (1 - 1e-6, 12 + 1e-6), "standard_error": (0, np.inf)},
        "noise": ("standard_error",)}),
    case(la.marchenko_pastur, ratio=positive(0.5), scale=positive(1.0)),
    case(la.spiked.spike_threshold, shape=SHAPE, scale=positive(1.0), options={"low": 0}),
    case(la.spiked.spike_strength, value=nonnegative(12.0), shape=SHAPE, scale=positive(1.0), options={"low": 0}),
    case(la.spiked.spike_overlaps, strength=nonnegative(9.0), shape=SHAPE, scale=positive(1.0), options={"low": 0, "high": 1}),
    case(la.spiked.spiked_value, strength=nonnegative(9.0), shape=SHAPE, scale=positive(1.0), options={"low": 0}),
    case(la.tracy_widom.tracy_widom_sf, x=vector(meaning=(np.nan, np.inf, -np.inf)),
        options={"items": {"": ("n",)}, "low": 0, "high": 1}),
    case(la.spike_test, W=matrix("n", "p", degree={"values": 1, "scale": 1, "count": 0, "edge": 1, "p_value": 0}),
        null=choice("permutation"), level=share(0.05), draws=count(19), seed=seed(),
        options={"ranges": {"p_value": (0, 1)}}),
    case(la.power_law_tail, values=array(lambda random, sizes: random.pareto(2.0, 6 * sizes["n"]) + 1, "t",
        degree={"alpha": 0, "x_min": 1, "p_value": 0}), least=count(10), resamples=count(9, least=0), seed=seed(),
        options={"items": INVARIANT, "ranges": {"p_value": (0, 1)}, "free": ("p_value", "against")}),
    case(la.correlation.weighted_correlation, W=matrix("q", "p", degree=0), K=symmetric("q", degree=0), pearson=switch(),
        diagonal=switch(), options={"low": -1, "high": 1}),
    case(la.correlation.haar_control, W=matrix("q", "p", degree=0), K=symmetric("q", degree=0), draws=count(5), seed=seed(),
        pearson=switch(), diagonal=switch(), options={"low": -1, "high": 1}),
    case(la.correlation.centred_pair, W=matrix("q", "p", tensor=True), K=given(None),
        W0=matrix("q", "p", tensor=True).may_be(None),
        Kc=symmetric("q", tensor=True).may_be(None), centring=choice("both").may_be(None)),
    case(la.Grid, n=count(10), m=count(10), size=count(4), symmetric=switch()),
    case(la.DenseGram, values=kernel(degree=1, tensor=True, square=False, meaning=(np.nan, np.inf, -np.inf)),
        options={"items": {"": ("n", "n")}}),
    case(la.FactoredGram, left=matrix(degree=2, tensor=True, meaning=(np.nan, np.inf, -np.inf)),
        options={"items": {"": ("n", "n")}}),
]
# fmt: on
