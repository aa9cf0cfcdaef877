"""Measures: pure functions of arrays and Grams."""

from __future__ import annotations

from ntkscope.measures import (
    alignment,
    change,
    datamodeling,
    distillation,
    early_time,
    faithfulness,
    kendall,
    log_odds,
    logistic_bounds,
    monotone,
    prediction,
    regression,
    regression_bounds,
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
    "kendall",
    "linear_datamodeling_score",
    "log_odds",
    "logistic_bounds",
    "measure",
    "monotone",
    "prediction",
    "regression",
    "regression_bounds",
    "uncertainty",
]
