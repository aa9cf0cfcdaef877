"""Measures: pure functions of arrays and Grams."""

from __future__ import annotations

from ntkscope.measures import (
    alignment,
    change,
    distillation,
    faithfulness,
    kendall,
    log_odds,
    monotone,
    prediction,
    uncertainty,
)
from ntkscope.measures.registry import MEASURES, Measure, measure

__all__ = [
    "MEASURES",
    "Measure",
    "alignment",
    "change",
    "distillation",
    "faithfulness",
    "kendall",
    "log_odds",
    "measure",
    "monotone",
    "prediction",
    "uncertainty",
]
