"""Measures: pure functions of arrays and Grams."""

from __future__ import annotations

from ntkscope.core.checked import check_room
from ntkscope.measures import (
    alignment,
    change,
    changepoint,
    collapse,
    datamodeling,
    dimension,
    distillation,
    early_time,
    faithfulness,
    feature_ansatz,
    folding,
    kendall,
    lazy,
    log_odds,
    logistic_bounds,
    matching,
    monotone,
    one_step,
    prediction,
    probe_agreement,
    probes,
    regression,
    regression_bounds,
    resampled,
    spectra,
    uncertainty,
)
from ntkscope.measures.datamodeling import linear_datamodeling_score
from ntkscope.measures.probe_agreement import collapse_layer
from ntkscope.measures.registry import MEASURES, Measure, measure

__all__ = [
    "MEASURES",
    "Measure",
    "alignment",
    "change",
    "changepoint",
    "collapse",
    "collapse_layer",
    "datamodeling",
    "dimension",
    "distillation",
    "early_time",
    "faithfulness",
    "feature_ansatz",
    "folding",
    "kendall",
    "lazy",
    "linear_datamodeling_score",
    "log_odds",
    "logistic_bounds",
    "matching",
    "measure",
    "monotone",
    "one_step",
    "prediction",
    "probe_agreement",
    "probes",
    "regression",
    "regression_bounds",
    "resampled",
    "spectra",
    "uncertainty",
]

check_room(
    __name__,
    squares="monotone_r2 faithfulness sixteen_terms double_centred_ratio feature_derivatives derivatives_from_kernel"
    " quadratic_kernel quadratic_traces quadratic_prediction expected_derivatives expected_traces isotropic_numerator"
    " trapezoid_norm projection_share logistic_bounds regression_bounds"
    " first_order_prediction egop output_fidelity",
    classes="Measure OneStepSetting",
)
