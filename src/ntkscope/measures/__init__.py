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
    faithfulness,
    feature_ansatz,
    kendall,
    log_odds,
    monotone,
    prediction,
    probe_agreement,
    probes,
    regression,
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
    "faithfulness",
    "feature_ansatz",
    "kendall",
    "linear_datamodeling_score",
    "log_odds",
    "measure",
    "monotone",
    "prediction",
    "probe_agreement",
    "probes",
    "regression",
    "resampled",
    "spectra",
    "uncertainty",
]

check_room(
    __name__,
    squares="monotone_r2 faithfulness sixteen_terms double_centred_ratio egop output_fidelity",
    classes="Measure",
)
