"""Figures 12 to 15: what was published on the shift within Sentiment140, and what a record says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ntkscope.core import Record
from ntkscope_papers.framework import Reading, claim, lacking
from ntkscope_papers.framework.intervals import estimate
from ntkscope_papers.framework.results import digits, summary

WHY = "MiniLM with six layers in place of GPT-2"
SOURCE = "Distribution shift"
with_minilm = partial(claim, stand_in=WHY)


@with_minilm(
    "conjugate-fig12-first-pc-shift",
    "Conjugate kernel, Figure 12",
    "the first principal component has visibly different densities on P and M",
    needs=["plane"],
)
def _first_pc(config: Any, record: Record) -> Reading:
    """Kolmogorov–Smirnov test on the first component: p < 1e-3"""
    found = record.metrics["plane"]["first component"]
    return Reading(
        {"KS distance": estimate(*found["ks"]), "p": found["p"], "AUC": estimate(*found["auc"])},
        found["p"] < 1e-3,
        f"p by {2 * config.permutations + 1:,} rearrangements; intervals at 95 %",
    )


@claim(
    "shift-dataset-sizes",
    f"{SOURCE}, Section 3",
    {"P": 1_600_000, "M": 359, "M negative and positive": [177, 182]},
    needs=["counts"],
)
def _sizes(config: Any, record: Record) -> Reading:
    """359 tweets of M that are not neutral, 177 negative and 182 positive"""
    found = record.metrics["counts"]["negative and positive"]
    note = (
        "P at hand is a sample; the text says that the authors meant P for testing and M for training, the reverse of what it"
        " says elsewhere"
    )
    return Reading({"P": sum(found["P"]), "M negative and positive": found["M"]}, found["M"] == [177, 182], note)


def _last(config: Any, record: Record) -> Mapping[str, Any] | None:
    """P against M at the last layer, mean over tokens."""
    found = record.metrics.get(f"layer/{config.blocks}")
    return None if found is None else found["mean"]


@with_minilm(
    "shift-fig13a-two-pcs",
    f"{SOURCE}, Figure 13a",
    "the first two principal components separate P from M",
    needs=lambda config: [f"layer/{config.blocks}"],
)
def _two_pcs(config: Any, record: Record) -> Reading:
    """reported: area under the curve of a quadratic and a linear rule"""
    found = record.metrics[f"layer/{config.blocks}"]["mean"]
    return Reading(
        {
            name: estimate(*found[effect])
            for name, effect in (
                ("quadratic rule", "auc_pc12_qda"),
                ("linear rule", "auc_pc12"),
                ("all dimensions", "auc"),
            )
        },
        None,
        "areas under the curve on items not fitted on, 95 % intervals",
    )


@claim(
    "shift-embedded-kernel-pca-identity",
    f"{SOURCE}, Section 4",
    "PCA of the embedded kernel is PCA of the activations",
    needs=["identity"],
)
def _identity(config: Any, record: Record) -> Reading:
    """scores agree up to sign to 1e-8 of the largest"""
    found = record.metrics["identity"]["largest difference"]
    return Reading({"largest difference": found}, found <= 1e-8)


@with_minilm(
    "shift-linear-separability",
    f"{SOURCE}, Section 4",
    "a linear classifier on embeddings tells P from M (the table is lost)",
    needs=["linear"],
)
def _linear(config: Any, record: Record) -> Reading:
    """balanced accuracy >= 0.75; with labels shuffled within 0.5 ± 0.05"""
    found, last = record.metrics["linear"], _last(config, record)
    measured = {name: digits(found[name], 4) for name in ("balanced accuracy", "labels shuffled")}
    holds = found["balanced accuracy"] >= 0.75 and abs(found["labels shuffled"] - 0.5) <= 0.05
    return Reading({**measured, **({} if last is None else {"AUC": estimate(*last["auc"]), "p": last["p"]})}, holds)


@claim(
    "shift-label-noise-identical-inputs",
    f"{SOURCE}, Table 7",
    "P has tweets that are one handle and nothing else, with opposite labels",
    needs=["counts"],
)
def _handles(config: Any, record: Record) -> Reading:
    """at least one such tweet in each class of the sample at hand"""
    found = record.metrics["counts"]
    alone = found["one handle and nothing else, negative and positive"]
    return Reading(
        {"negative and positive": alone, "inputs with both labels": found["inputs with both labels"]}, min(alone) > 0
    )


@claim(
    "shift-table7-examples",
    f"{SOURCE}, Table 7",
    {"negative": [1467863072, 1467871226, 1467979094], "positive": [1836399555, 1879932456, 1833894264]},
)
def _examples(config: Any, record: Record) -> Reading:
    """not testable: the sample at hand has no ids"""
    return Reading(None, note="the tweets of P at hand come without their ids")


def _filters(read: Callable[[list[Any]], Reading], config: Any, record: Record) -> Reading:
    """A reading of the filters of all halvings of M."""
    keys, metrics = [f"filter/{s}" for s in range(config.filters)], record.metrics
    return read([metrics[key] for key in keys]) if all(key in metrics for key in keys) else lacking("filter")


@claim(
    "shift-fig14-filter-no-change",
    f"{SOURCE}, Figure 14",
    {"before": 29000, "after": 20000, "density": "unchanged"},
    stand_in=f"{WHY}; a probe's agreement in place of GPT-3.5's answers",
    through=_filters,
)
def _filter(several: list[Any]) -> Reading:
    """energy distance in PC1–2 of the filtered tweets to P at most a fifth of that of M"""
    means = {
        where: {
            name: float(np.mean([row["energy distance to P"][where][name] for row in several]))
            for name in several[0]["energy distance to P"][where]
        }
        for where in several[0]["energy distance to P"]
    }
    plane = means["in PC1–2"]
    measured = {where: {name: digits(value, 3) for name, value in row.items()} for where, row in means.items()}
    note = f"{several[0]['kept']:,} of {several[0]['of']:,} tweets kept; energy distances to all of P"
    return Reading(measured, 5 * plane["filtered"] <= plane["M"], note)


@claim(
    "shift-filter-downstream",
    f"{SOURCE}, Section 6",
    "training on the filtered set changes accuracy on M little, perhaps for the worse (the table is missing)",
    stand_in=f"{WHY}; a probe's agreement in place of GPT-3.5's answers; linear probes on P",
    through=_filters,
)
def _downstream(several: list[Any]) -> Reading:
    """mean difference at most 3 points"""
    found = {name: summary(100 * row["accuracy on M"][name] for row in several) for name in several[0]["accuracy on M"]}
    apart = summary(
        100 * (row["accuracy on M"]["filtered"] - row["accuracy on M"]["as many at random"]) for row in several
    )
    measured = {
        "accuracy on M %": {name: [round(v["mean"], 2), round(v["sem"], 2)] for name, v in found.items()},
        "difference, points": round(apart["mean"], 2),
    }
    note = (
        "the filter's probe and the test are of different halves of M; standard errors over halves, which share their tweets;"
        " unlike GPT-3.5 this filter was fitted to tweets of M, so that its choice carries what it learned there"
    )
    return Reading(measured, abs(apart["mean"]) <= 3, note)


@claim(
    "shift-fig15-models",
    f"{SOURCE}, Figure 15",
    {"none": ["BERT-base"], "partly": ["RoBERTa-base", "Falcon 1B"], "fully": ["Falcon 7B", "GPT-2"]},
    stand_in="MiniLM and untrained encoders in place of the five models",
)
def _models(config: Any, record: Record) -> Reading:
    """area under the curve in PC1–2 below 0.8 for a small encoder of BERT's kind"""
    found, last = record.metrics, _last(config, record)
    keys = {size: [f"untrained/{size}/{d}" for d in range(config.draws)] for size in config.sizes}
    lacks = [key for several in keys.values() for key in several if key not in found]
    if last is None or lacks:
        return lacking(*([] if last is not None else [f"layer/{config.blocks}"]), *(["untrained"] if lacks else []))
    fresh = {
        size: {
            name: estimate(*np.mean([found[key][effect] for key in several], axis=0).tolist())
            for name, effect in (("PC1–2", "auc_pc12_qda"), ("all", "auc"))
        }
        for size, several in keys.items()
    }
    measured = {
        "MiniLM, PC1–2": estimate(*last["auc_pc12_qda"]),
        "MiniLM, all": estimate(*last["auc"]),
        "untrained": fresh,
    }
    note = (
        "areas under the curve with 95 % intervals, means over draws; that larger models separate better is contradicted by the"
        " paper's own cases: GPT-2 (124 million parameters) fully, RoBERTa-base (125 million) and Falcon 1B partly"
    )
    return Reading(measured, last["auc_pc12_qda"][0] < 0.8, note)


@claim(
    "shift-pca-one-sided",
    f"{SOURCE}, Section 7",
    "different densities prove a shift, equal ones do not prove that there is none",
    needs=["one-sided"],
)
def _one_sided(config: Any, record: Record) -> Reading:
    """pairs equal in PC1–2: found by C2ST every time, in PC1–2 at most twice in ten"""
    found = record.metrics["one-sided"]
    measured = {name: value for name, value in found.items() if name != "seconds"}
    return Reading(
        measured, found["found by C2ST"] == found["pairs"] and found["found in PC1–2"] <= 0.2 * found["pairs"]
    )


@with_minilm(
    "shift-pca-filter",
    f"{SOURCE}, Section 7",
    "a search for a part of P that looks like M in PC1–2; no outcome is reported",
    needs=["subsample"],
)
def _pca_filter(config: Any, record: Record) -> Reading:
    """area under the curve in PC1–2 within 0.5 ± 0.05 after selection"""
    found = record.metrics["subsample"]
    measured = {
        name: estimate(*value) if name.startswith("AUC") else value
        for name, value in found.items()
        if name != "seconds"
    }
    note = "a linear classifier in all dimensions still tells accepted tweets from M where its area is above 0.5"
    return Reading(measured, abs(found["AUC in PC1–2"][0] - 0.5) <= 0.05, note)
