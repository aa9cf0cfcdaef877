"""Measures: pure functions of arrays and Grams."""

from __future__ import annotations

from ntkscope.measures import (
    alignment,
    change,
    datamodeling,
    distillation,
    early_time,
    faithfulness,
    feature_ansatz,
    kendall,
    lazy,
    log_odds,
    logistic_bounds,
    monotone,
    one_step,
    prediction,
    probes,
    regression,
    regression_bounds,
    resampled,
    spectra,
    uncertainty,
)
from ntkscope.measures.datamodeling import linear_datamodeling_score
from ntkscope.measures.registry import MEASURES, Measure, measure

__all__ = [
    "MEASURES",
    "Measure",
    "alignment",
    "change",
    "datamodeling",
    "distillation",
    "early_time",
    "faithfulness",
    "feature_ansatz",
    "kendall",
    "lazy",
    "linear_datamodeling_score",
    "log_odds",
    "logistic_bounds",
    "measure",
    "monotone",
    "one_step",
    "prediction",
    "probes",
    "regression",
    "regression_bounds",
    "resampled",
    "spectra",
    "uncertainty",
]
