"""Measures: pure functions of kernels, features, logits and labels."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import ntkscope as ns
from laws.table import (
    INVARIANT,
    Argument,
    Case,
    array,
    case,
    choice,
    count,
    finite,
    given,
    kernel,
    labels,
    matrix,
    nonnegative,
    other,
    positive,
    seed,
    share,
    switch,
    symmetric,
    targets,
    vector,
)

M = ns.measures
NO_FUNCTIONS = (None, "x", 3, object())
PAIR_BAD = (None, "x", 3, (3,), (0, 2), (-1, 2), (2.5, 2), (float("nan"), 2), object())
ONE = {"items": INVARIANT, "low": -1, "high": 1}
SHARE = {"items": INVARIANT, "low": 0, "high": 1}
ANY = {"items": INVARIANT, "low": 0}
UNDEFINED = ("tau", "pearson", "r2", "r2_before", "r2_isotonic", "agreement_wrong", "r2_logits", "intervals")
TWO_LOGITS = {"surrogate_logits": matrix("n", "c"), "network_logits": matrix("n", "c")}


def _classes(axis: str = "n") -> Argument:
    """Labels that name the columns of logits."""
    return labels(axis)


def _sweeps() -> Argument:
    """Two layers, three probes, three numbers of components."""

    def draw(random: np.random.Generator, sizes: Any) -> Any:
        def layer() -> Any:
            answers = {d: torch.from_numpy(random.integers(0, sizes["c"], sizes["n"])) for d in (1, 2, 4)}
            return SimpleNamespace(dims=(1, 2, 4), predictions=dict.fromkeys(("knn", "ncc", "svm"), answers))

        return {"first": layer(), "second": layer()}

    return other(draw, bad=(None, "x", 3, object(), {}, {"first": None}))


def _results() -> Argument:
    return given([{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 2.5}], bad=(None, "x", 3, object(), [None]))


MOMENTS = M.collapse.class_moments(np.random.default_rng(0).normal(size=(12, 5)), np.arange(12) % 3)
SCORE = M.datamodeling.linear_datamodeling_score(*np.random.default_rng(0).normal(size=(2, 9, 4)), resamples=20)
NOT_MADE = (None, "x", 3, object())

# fmt: off
CASES: list[Case] = [
    # Kernels and labels
    case(M.alignment.kernel_target_alignment, K=kernel(degree=0), y=targets(), centred=switch(), options=ONE),
    case(M.alignment.centred_alignment, K1=kernel(degree=0), K2=kernel(degree=0), options=ONE),
    case(M.alignment.kernel_distance, K0=kernel(degree=0), K1=kernel(degree=0),
        options={"items": INVARIANT, "low": 0, "high": 2}),
    case(M.alignment.power_in, vectors=other(lambda random,
        sizes: torch.from_numpy(np.linalg.qr(random.normal(size=(sizes["n"], min(sizes["k"], sizes["n"]))))[0]),
        bad=NOT_MADE), y=targets(), options={"low": 0, "high": 1 + 1e-9}),
    case(M.alignment.kernel_velocity, K0=kernel(), K1=kernel(), elapsed=positive(2.0), options=ANY),
    case(M.change.relative_change, K0=kernel(), K1=kernel(), centred=switch(), options=ANY),
    case(M.change.linearisation_error, change=matrix("n", "c"), predicted=matrix("n", "c"),
        options={**ANY, "free": ("",)}),
    # Series
    case(M.changepoint.change_point, series=vector(degree={"before": 1, "after": 1, "p": 0}), permutations=count(99),
        seed=seed(), options={"ranges": {"p": (0, 1)}}),
    case(M.changepoint.common_jump, series=matrix("k", "n"), window=count(3), permutations=count(99), seed=seed(),
        options={"ranges": {"p": (0, 1)}, "free": ("share",)}),
    # Features and labels
    case(M.collapse.class_moments, features=matrix(), y=labels(), options={"ranges": {"within": (0, np.inf)}}),
    case(M.collapse.nc1, features=matrix(degree=0), y=labels(), options=ANY),
    case(M.collapse.nc2_norms, features=matrix(degree=0), y=labels(), options=ANY),
    case(M.collapse.nc2_angles, features=matrix(degree=0), y=labels(), options={**ANY, "high": 2}),
    case(M.collapse.cdnv, features=matrix(degree=0), y=labels(), options=ANY),
    case(M.collapse.nc3, features=matrix(degree=0), y=labels(), readout=matrix("c", "p", degree=0), centred=switch(),
        options={**ANY, "high": 2}),
    case(M.collapse.nc4, features=matrix(degree=0), y=labels(), decisions=_classes(), options=SHARE),
    case(M.collapse.collapse, features=matrix(degree=0), y=labels(), readout=matrix("c", "p", degree=0).may_be(None),
        decisions=_classes().may_be(None), centred=switch(), options=ANY),
    case(M.collapse.nearest_class, moments=given(MOMENTS, bad=NOT_MADE), features=matrix(),
        options={"items": {"": ("n",)}}),
    case(M.dimension.two_nn, features=matrix("w", "p", degree={"dimension": 0}), discard=share(0.1),
        halvings=count(1, least=0), seed=seed(), options={"ranges": {"dimension": (0, np.inf), "error": (0, np.inf)}}),
    case(M.dimension.estimate, ratios=array(lambda random, sizes: 1 + random.uniform(0.1, 2, sizes["w"]), "w"),
        discard=share(0.1), options={"ranges": {"dimension": (0, np.inf), "error": (0, np.inf)}, "items": INVARIANT}),
    case(M.dimension.components_for,
        variance=array(lambda random, sizes: np.sort(random.uniform(0.5, 2, sizes["p"]))[::-1].copy(), "p"),
        total=positive(20.0), share=share(0.2)),
    # Scores
    case(M.kendall.kendall, a=vector(degree=0), b=vector(degree=0), options={**ONE, "free": ("tau_b", "tau_b_error"),
        "ranges": dict.fromkeys(("ties", "pairs", "concordant", "discordant"), (0, np.inf)), "low": -1}),
    case(M.kendall.kendall_tau, a=vector(degree=0), b=vector(degree=0), ties=choice("b"), options=ONE),
    case(M.datamodeling.spearman, a=vector(degree=0), b=vector(degree=0), options=ONE),
    case(M.prediction.pearson, a=vector(degree=0), b=vector(degree=0), options=ONE),
    case(M.monotone.monotone_r2, surrogate=vector(), network=vector(), options={"items": INVARIANT,
        "ranges": {"r2": (-np.inf, 1), "r2_isotonic": (-np.inf, 1), "r2_before": (-np.inf, 1)}}),
    case(M.monotone.monotone_r2_value, surrogate=vector(), network=vector(), options={"items": INVARIANT, "high": 1}),
    case(M.datamodeling.linear_datamodeling_score, predicted=matrix("n", "k", degree={"mean": 0}),
        actual=matrix("n", "k", degree={"mean": 0}), level=share(0.95), resamples=count(20), seed=seed(),
        options={"low": -1, "high": 1, "items": INVARIANT}),
    case(M.datamodeling.datamodeling_difference, first=given(SCORE, bad=NOT_MADE), second=given(SCORE, bad=NOT_MADE),
        resamples=count(20), seed=seed(), options={"low": -2, "high": 2}),
    case(M.datamodeling.item_scores, predicted=matrix("n", "k", degree=0), actual=matrix("n", "k", degree=0),
        constant=finite(0.0).may_be(None, float("nan")), options={"low": -1, "high": 1, "items": INVARIANT}),
    case(M.datamodeling.random_subsets, points=count(20), count=count(5), share=share(0.5), seed=seed()),
    case(M.datamodeling.group_predictions, scores=matrix("m", "n", degree=1),
        subsets=other(lambda random, sizes: random.random((6, sizes["n"])) < 0.5, bad=NOT_MADE)),
    # Logits
    case(M.prediction.accuracy, logits=matrix("n", "c", degree=0), y=_classes(), options=SHARE),
    case(M.prediction.correct, logits=matrix("n", "c", degree=0), y=_classes(), options={"items": {"": ("n",)}}),
    case(M.prediction.tad, **TWO_LOGITS, y=_classes(), options={"items": INVARIANT, "low": -100, "high": 100}),
    case(M.prediction.agreement, a=matrix("n", "c", degree=0), b=matrix("n", "c", degree=0), options=SHARE),
    case(M.prediction.total_variation, a=matrix("n", "c"), b=matrix("n", "c"), options=SHARE),
    case(M.prediction.item_total_variation, a=matrix("n", "c"), b=matrix("n", "c"),
        options={"items": {"": ("n",)}, "low": 0, "high": 1}),
    case(M.distillation.agreement_wrong, **TWO_LOGITS, y=_classes(), options={**SHARE, "free": ("",)}),
    case(M.distillation.same_where_wrong, **TWO_LOGITS, y=_classes(), options=ANY),
    case(M.distillation.r2_logits, **TWO_LOGITS, options={"items": INVARIANT, "high": 1}),
    case(M.faithfulness.faithfulness, **TWO_LOGITS, y=_classes(), bootstrap=count(20, least=0), seed=seed(),
        options={"items": {"intervals": None}, "ranges": {"tau": (-1, 1), "pearson": (-1, 1), "agreement": (0, 1),
        "r2": (-math.inf, 1)}, "free": UNDEFINED}),
    case(M.log_odds.correct_class_log_odds, logits=matrix("n", "c", degree=None), y=_classes(),
        options={"items": {"": ("n",)}}),
    case(M.log_odds.centred_logits, logits=matrix("n", "c", degree=1), options={"items": {"": ("n", None)}}),
    case(M.log_odds.probabilities, logits=matrix("n", "c"), options={"items": {"": ("n", None)}, "low": 0, "high": 1}),
    # Outputs
    case(M.regression.r_squared, predicted=matrix("n", "c"), true=matrix("n", "c"),
        options={"items": INVARIANT, "high": 1, "free": ("",)}),
    case(M.regression.rmse, predicted=matrix("n", "c"), true=matrix("n", "c"), options=ANY),
    case(M.regression.r2_outputs, predicted=matrix("n", "c"), true=matrix("n", "c"),
        options={"items": INVARIANT, "high": 1}),
    case(M.regression.output_fidelity, surrogate=matrix("n", "c"), network=matrix("n", "c"), bootstrap=count(20,
        least=0), seed=seed(), options={"ranges": {f"{c}.{field}": (-1, 1) for c in range(3) for field in ("tau",
        "tau_low", "tau_high")}, "free": tuple(f"{c}.{field}" for c in range(3) for field in ("r2", "r2_low", "r2_high",
        "tau", "tau_low", "tau_high"))}),
    case(M.regression.scaled_outputs, first=matrix("n", "c"), second=matrix("n", "c"),
        options={"items": {"0": ("n", None), "1": ("n", None)}}),
    case(M.regression.two_outputs, first=matrix("n", "c"), second=matrix("n", "c"),
        options={"items": {"0": ("n", None), "1": ("n", None)}}),
    # Weights
    case(M.feature_ansatz.feature_ansatz, W=matrix("q", "p", degree=0), K=symmetric("q", degree=0), options=ONE),
    case(M.feature_ansatz.nfa_correlation, W=matrix("q", "p", degree=0), K=symmetric("q", degree=0), pearson=switch(),
        diagonal=switch(), options=ONE),
    case(M.feature_ansatz.haar_control, W=matrix("q", "p", degree=0), K=symmetric("q", degree=0), draws=count(5),
        seed=seed(), pearson=switch(), diagonal=switch(), options={"low": -1, "high": 1}),
    case(M.feature_ansatz.sixteen_terms, W=matrix("q", "p"), W0=matrix("q", "p"), K=symmetric("q")),
    case(M.feature_ansatz.double_centred_ratio, W=matrix("q", "p"), W0=matrix("q", "p"), K=symmetric("q"),
        Kc=symmetric("q")),
    case(M.feature_ansatz.egop, target=given(lambda x: (x**2).sum(-1), bad=NO_FUNCTIONS), x=matrix(),
        options={"items": INVARIANT}),
    case(M.spectra.classify, W=array(lambda random, sizes: random.normal(size=(60, 50)), "a", "b"),
        level=share(0.05).may_be(None), draws=count(19, least=0), seed=seed(),
        options={"free": ("evidence", "tail"), "ranges": {"spikes.p_value": (0, 1)}}),
    case(M.spectra.classify_eigenvalues, values=array(lambda random, sizes: np.sort(random.uniform(0.1, 2, 60)), "a"),
        initial=array(lambda random, sizes: np.sort(random.uniform(0.1, 2, (3, 60))), "k", "a"),
        options={"free": ("evidence", "tail")}),
    case(M.spectra.reaches_bulk, values=array(lambda random, sizes: random.uniform(1, 2, sizes["n"]), "n"),
        edge=positive(1.0)),
    # Probes
    case(M.probes.grid, width=count(20)),
    case(M.probes.sweep, Z_train=matrix(), y_train=labels(), Z_test=matrix("m", "p"), y_test=labels("m"),
        dims=given((1, 3), bad=(None, "x", 3, (), (0,), (2.5,), (99,), (True,), object())),
        probes=given(("knn", "ncc"), bad=(None, 3, ("x",), object())), k=count(3), total=positive(20.0).may_be(None),
        ties=choice("nearest"), options={"low": -np.inf}),
    case(M.collapse_layer, sweeps=_sweeps(),
        y=other(lambda random, sizes: np.arange(sizes["n"]) % sizes["c"], bad=("x", object())), share=share(0.9),
        components=count(2, least=0), accuracy=nonnegative(0.02), draws=count(20), seed=seed(),
        options={"ranges": {"share_once": (0, 1)}}),
    # Uncertainty
    case(M.resampled.corrected_t_test, differences=vector(degree={"mean": 1, "low": 1, "high": 1, "p": 0, "t": 0}),
        train=positive(80), test=positive(20), level=share(0.95),  # means over splits may be fractions
        options={"items": INVARIANT, "ranges": {"p": (0, 1)}, "free": ("t", "p")}),
    case(M.uncertainty.standard_error, values=vector(degree=1), options={**ANY, "free": ("",)}),
    case(M.uncertainty.percentile_interval, values=vector(degree=1), level=share(0.95), options={"items": INVARIANT}),
    case(M.uncertainty.bootstrap_means, values=matrix(degree=1), statistic=given(lambda drawn: drawn, bad=NO_FUNCTIONS),
        resamples=count(10), seed=seed()),
    case(M.uncertainty.summarise, results=_results()),
    case(M.uncertainty.wilson_interval, successes=count(3, least=0), trials=count(10), z=positive(1.96),
        options={"low": 0, "high": 1}),
    case(M.uncertainty.wilson, successes=count(3, least=0), n=count(10), level=share(0.95),
        options={"low": 0, "high": 1}),
    case(M.uncertainty.wald_trials, share=share(0.5), half_width=share(0.1), level=share(0.95)),
    case(M.uncertainty.holm, p_values=array(lambda random, sizes: random.uniform(size=sizes["n"]), "n"),
        options={"items": {"": ("n",)}, "low": 0, "high": 1, "of": np.asarray}),
    case(M.uncertainty.normal_quantile, level=share(0.95)),
    case(M.Measure, func=given(len, bad=NO_FUNCTIONS), of=choice("two scores"),
        low=finite(0.0).may_be(float("inf"), float("-inf")), high=finite(1.0).may_be(float("inf"), float("-inf")),
        best=finite(1.0).may_be(None)),
]
# fmt: on
