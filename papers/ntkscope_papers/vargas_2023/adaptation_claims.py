"""Tables 5 and 6 and Figure 13b: what was published, and what a record of probes and fine-tunings says about it.

Two tests of a difference between methods from repeated splits. Published: Kolmogorov–Smirnov between all accuracies of one
method and all of the other. It treats resamples of the same 359 tweets as independent, and compares accuracies on 59 tweets
with accuracies on 359, whose spread differs whatever the method. Fair: both methods on the same held-out tweets of each
shuffle, and the corrected resampled t-test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from scipy import stats

from ntkscope.core import Record
from ntkscope.measures.resampled import corrected_t_test
from ntkscope_papers.framework import Reading, claim, lacking
from ntkscope_papers.framework.results import digits, summary

WHY = "MiniLM with six layers in place of GPT-2"
TABLE_5: dict[str, dict[str, float]] = {
    "random": {"train %": 85.7, "sem": 0.27, "test %": 57.8, "test sem": 1.05},
    "probe": {"train %": 95.3, "sem": 0.15, "test %": 86.3, "test sem": 0.55},
    "finetune": {"train %": 99.9, "sem": 0.02, "test %": 83.7, "test sem": 0.81},
    "lora": {"train %": 70.0, "sem": 0.28, "test %": 66.9, "test sem": 0.77},
}
TABLE_6: dict[str, dict[str, float]] = {
    "finetune-on-p": {"train %": 91.6, "sem": 0.93, "test %": 84.1, "test sem": 0.49},
    "random": {"train %": 85.7, "sem": 0.27, "test %": 57.8, "test sem": 1.05},
    "probe": {"train %": 95.3, "sem": 0.15, "test %": 86.3, "test sem": 0.55},
}
ON_M = ("probe", "random", "finetune", "lora")
P_VALUE, SHUFFLES = 0.007, 50
over_shuffles = partial(claim, stand_in=WHY, seeds=SHUFFLES)
Runs = list[Mapping[str, Any]]


def rows(config: Any, record: Record, name: str) -> Runs:
    """Every run of a method, in order; empty unless all are there."""
    keys, metrics = [f"{name}/{s}" for s in range(config.runs_of(name))], record.metrics
    return [metrics[key] for key in keys] if all(key in metrics for key in keys) else []


def table(several: Runs) -> dict[str, Any]:
    """Mean and standard error of accuracies in percent, as the tables have them."""
    found = {where: summary(100 * row[where] for row in several) for where in ("train", "test")}
    return {
        "train %": [round(found["train"]["mean"], 2), round(found["train"]["sem"], 2)],
        "test %": [round(found["test"]["mean"], 2), round(found["test"]["sem"], 2)],
        "runs": len(several),
    }


def mean(several: Runs, where: str) -> float:
    return 100 * float(np.mean([row[where] for row in several]))


def of_runs(*names: str) -> Callable[..., Reading]:
    """For `through=` of a claim that is also given the runs of these methods; the record must have them all."""

    def checked(read: Callable[..., Reading], config: Any, record: Record) -> Reading:
        found = [rows(config, record, name) for name in names]
        return read(config, record, *found) if all(found) else lacking(*names)

    return checked


def _accuracy(name: str, config: Any, record: Record) -> Reading:
    """A row of the tables: the mean test accuracy of one method."""
    several = rows(config, record, name)
    if not several:
        return lacking(name)
    note = ""
    if name.endswith("-on-p"):
        note = f"epochs chosen: {', '.join(str(row['epoch']) for row in several)}; {_rate(several)}"
        beside = rows(config, record, "probe-on-p")
        if beside:
            note += f"; a linear probe on the same tweets of P: {mean(beside, 'test'):.1f} % on M"
    low, high, _ = BANDS[name]
    return Reading(table(several), low <= mean(several, "test") <= high, note, seeds=len(several))


BANDS = {
    "random": (50, 68, "mean test accuracy between 50 and 68 %"),
    "probe": (78, 100, "mean test accuracy >= 78 % over 50 shuffles"),
    "finetune-on-p": (76, 90, "mean accuracy on M between 76 and 90 %"),
}
ROWS = [
    claim(id, source, row, BANDS[name][2], stand_in=WHY, seeds=seeds)(partial(_accuracy, name))
    for id, source, name, row, seeds in (
        ("conjugate-table5-random-lp", "Conjugate kernel, Table 5", "random", TABLE_5["random"], 50),
        ("conjugate-table5-pretrained-lp", "Conjugate kernel, Table 5", "probe", TABLE_5["probe"], 50),
        ("shift-table6-finetune-on-p", "Distribution shift, Table 6", "finetune-on-p", TABLE_6["finetune-on-p"], 5),
        ("shift-table6-random-lp", "Distribution shift, Table 6", "random", TABLE_6["random"], 50),
        ("shift-table6-pretrained-lp", "Distribution shift, Table 6", "probe", TABLE_6["probe"], 50),
    )
]


def _rate(several: Runs) -> str:
    return f"learning rate {several[0]['lr']:g}, chosen on P"


@over_shuffles(
    "conjugate-table5-finetune", "Conjugate kernel, Table 5", TABLE_5["finetune"], through=of_runs("finetune", "probe")
)
def _finetune(config: Any, record: Record, tuned: Runs, probe: Runs) -> Reading:
    """mean training accuracy >= 98 %, mean test accuracy within 6 points of the probe's"""
    near = abs(mean(tuned, "test") - mean(probe, "test"))
    holds = mean(tuned, "train") >= 98 and near <= 6
    return Reading(table(tuned), holds, f"{near:.1f} points from the probe; {_rate(tuned)}", seeds=len(tuned))


@claim(
    "conjugate-table5-qlora",
    "Conjugate kernel, Table 5",
    TABLE_5["lora"],
    stand_in=f"{WHY}; adapters without quantisation",
    seeds=50,
    through=of_runs("lora"),
)
def _lora(config: Any, record: Record, several: Runs) -> Reading:
    """reported only"""
    return Reading(table(several), None, f"rank {config.rank}; {_rate(several)}", seeds=len(several))


@over_shuffles(
    "conjugate-table5-order",
    "Conjugate kernel, Section 7",
    {
        "test": "probe > fine-tuning > QLoRA > random",
        "train minus test, points": {"random": 27.9, "finetune": 16.2, "probe": 9.0, "lora": 3.1},
    },
)
def _order(config: Any, record: Record) -> Reading:
    """probe minus random >= 10 points; gap of fine-tuning > gap of the probe; probe minus fine-tuning > -3 points"""
    found = {name: rows(config, record, name) for name in ON_M}
    if not all(found.values()):
        return lacking(*(name for name, several in found.items() if not several))
    test = {name: mean(several, "test") for name, several in found.items()}
    gaps = {name: mean(several, "train") - test[name] for name, several in found.items()}
    holds = (
        test["probe"] - test["random"] >= 10
        and gaps["finetune"] > gaps["probe"]
        and test["probe"] - test["finetune"] > -3
    )
    measured = {
        "test %": {name: digits(value, 4) for name, value in test.items()},
        "train minus test, points": {name: digits(value, 3) for name, value in gaps.items()},
        "order": " > ".join(sorted(test, key=lambda name: -test[name])),
    }
    return Reading(measured, holds, seeds=config.shuffles)


@claim(
    "shift-m-split",
    "Distribution shift, Section 3",
    {"train": [150, 150], "test": [27, 32], "shared": 0},
    needs=["splits"],
)
def _m_split(config: Any, record: Record) -> Reading:
    """these sizes, nothing shared"""
    found = record.metrics["splits"]["M"]
    sizes = found["train and test, negative and positive"]
    return Reading(
        {"train, test": sizes, "shared": found["shared"]}, sizes == ["[[150, 150], [27, 32]]"] and not found["shared"]
    )


@claim(
    "shift-p-split",
    "Distribution shift, Section 3",
    {"train": 20000, "validation": 20000, "test": 359},
    stand_in="16,000 and 3,800 tweets of the 20,000 at hand",
    needs=["splits"],
)
def _p_split(config: Any, record: Record) -> Reading:
    """balanced, no text shared between training, validation and M"""
    found = record.metrics["splits"]["P"]
    labels = found["train and validation, negative and positive"]
    even = all(negative == positive for negative, positive in labels)
    return Reading(dict(found), even and not found["shared texts"] and not found["texts shared with M"])


@claim(
    "shift-training-setting",
    "Distribution shift, Section 3",
    {"epochs": 10, "std of random weights": 0.02},
    stand_in=WHY,
)
def _training(config: Any, record: Record) -> Reading:
    """a setting: none"""
    chosen = {
        name: record.metrics[f"rates/{name}"]["chosen"]
        for name in ("finetune", "lora", "finetune-on-p")
        if f"rates/{name}" in record.metrics
    }
    measured = {
        "epochs": config.epochs,
        "batch": [config.batch, config.p_batch],
        "std of random weights": config.std,
        "learning rates": {"probe": config.probe_lr, **chosen},
        "pooling": config.pooling,
    }
    note = (
        "the published epoch of the probe was chosen on its own training tweets, which is no validation: here all ten are"
        " trained; fine-tuning on P chooses its epoch on other tweets of P"
    )
    return Reading(measured, None, note)


def flags(text: str) -> np.ndarray:
    """A text of 0 and 1 as flags.

    >>> flags("10").tolist()
    [True, False]
    """
    return np.array([letter == "1" for letter in text])


def paired_with_p(record: Record, probe: Runs, tuned: Runs) -> list[float]:
    """Probe minus fine-tuning on P, both on the held-out tweets of each shuffle; the networks trained on P take turns."""
    held, on_p = (
        [flags(text) for text in several]
        for several in (record.metrics["splits"]["held out"], (row["right"] for row in tuned))
    )
    return [float(flags(row["right"]).mean() - on_p[s % len(on_p)][held[s]].mean()) for s, row in enumerate(probe)]


def _sizes(record: Record, several: Runs) -> tuple[int, int]:
    """Items trained on and tested on in each shuffle."""
    test = len(several[0]["right"])
    return int(record.metrics["splits"]["M"]["items"]) - test, test


@over_shuffles(
    "shift-probe-matches-finetune",
    "Distribution shift, Section 4",
    {"probe on M minus fine-tuning on P, points": 2.2, "standard error": 0.74},
    needs=["splits"],
    through=of_runs("probe", "finetune-on-p"),
)
def _matches(config: Any, record: Record, probe: Runs, tuned: Runs) -> Reading:
    """probe minus fine-tuning > -3 points"""
    difference = mean(probe, "test") - mean(tuned, "test")
    train, test = _sizes(record, probe)
    measured = {
        "probe on M %": digits(mean(probe, "test"), 4),
        "fine-tuning on P %": digits(mean(tuned, "test"), 4),
        "difference of means, points": digits(difference, 3),
        "on the same held-out tweets": fair_test(paired_with_p(record, probe, tuned), train, test),
    }
    note = "on the same tweets: corrected resampled t-test (Nadeau and Bengio), p two-sided"
    return Reading(measured, difference > -3, note, seeds=len(probe))


@over_shuffles(
    "shift-ks-test",
    "Distribution shift, Section 4",
    {"p": P_VALUE},
    "reported, beside a fair test",
    needs=["splits"],
    through=of_runs("probe", "finetune-on-p"),
)
def _ks(config: Any, record: Record, probe: Runs, on_p: Runs) -> Reading:
    """The published test and a fair one, of the probe against fine-tuning on P, and against fine-tuning on M."""
    train, test = _sizes(record, probe)
    accuracies = {"probe": [row["test"] for row in probe], "on P": [row["test"] for row in on_p]}
    measured: dict[str, Any] = {
        "probe against fine-tuning on P": {
            "published test": published_test(accuracies["probe"], accuracies["on P"]),
            "fair test": fair_test(paired_with_p(record, probe, on_p), train, test),
        }
    }
    on_m = rows(config, record, "finetune")
    if on_m:
        pairs = [one["test"] - other["test"] for one, other in zip(probe, on_m)]
        measured["probe against fine-tuning on M"] = {
            "published test": published_test(accuracies["probe"], [row["test"] for row in on_m]),
            "fair test": fair_test(pairs, train, test),
        }
    low, high = neighbours(SHUFFLES, P_VALUE)
    sizes = [n for n in range(20, 101) if attainable(n, P_VALUE, 3)]
    measured["attainable"] = {
        "around 0.007 with 50 against 50": [digits(low, 3), digits(high, 3)],
        "sizes that reach it": sizes,
    }
    note = (
        f"the published test compares accuracies on {test} tweets with accuracies on {train + test}, from resamples that"
        " share their tweets; p = 0.007 cannot come from 50 against 50"
    )
    return Reading(measured, None, note, seeds=len(probe))


@claim(
    "shift-fig13b-sota-overlap",
    "Distribution shift, Figure 13b",
    "the accuracy of a RoBERTa trained on all of P lies in the range of the probe's",
)
def _sota(config: Any, record: Record) -> Reading:
    """not testable: neither that network nor the value of its line is at hand"""
    return Reading(
        None, note="a RoBERTa trained on 1.6 million tweets is not at hand, and the published line has no value"
    )


@claim(
    "shift-tables-5-6-consistent",
    "Tables 5 and 6",
    "the probe rows of both tables are equal; the fine-tuning rows differ by what was trained on",
)
def _tables(config: Any, record: Record) -> Reading:
    """bookkeeping of the published figures"""
    same = {name: TABLE_5[name] == TABLE_6[name] for name in ("random", "probe")}
    apart = TABLE_5["finetune"] != TABLE_6["finetune-on-p"]
    note = "of the published figures alone: why the rows differ is not measured"
    return Reading(
        {"equal rows": same, "fine-tuning rows differ": apart}, all(same.values()) and apart, note, exact=True
    )


@cache
def ladder(n: int) -> tuple[float, ...]:
    """Every p that the exact two-sided test of n against n can have, from D = 1/n on; O(n²).

    `P(D ≥ k/n) = 2 Σ_j (-1)^(j-1) C(2n, n - jk) / C(2n, n)`. Gnedenko and Korolyuk (1951).

    >>> [round(p, 4) for p in ladder(3)]
    [1.0, 0.6, 0.1]
    """
    whole = math.comb(2 * n, n)
    found = []
    for k in range(1, n + 1):
        terms = ((-1) ** (j - 1) * math.comb(2 * n, n - j * k) for j in range(1, n // k + 1))
        found.append(min(1.0, 2 * sum(terms) / whole))
    return tuple(found)


def attainable(n: int, p: float, decimals: int) -> bool:
    """Whether n against n can have a p that is `p` when rounded.

    >>> attainable(50, 0.007, 3), attainable(40, 0.007, 3), attainable(30, 0.007, 3)
    (False, True, True)
    """
    return any(round(value, decimals) == p for value in ladder(n))


def neighbours(n: int, p: float) -> tuple[float, float]:
    """The two attainable values around `p`."""
    values = ladder(n)
    return max((v for v in values if v <= p), default=0.0), min((v for v in values if v > p), default=1.0)


def published_test(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """The Kolmogorov–Smirnov test as published."""
    found = stats.ks_2samp(first, second, method="exact")
    return {"D": digits(float(found.statistic), 4), "p": digits(float(found.pvalue), 3), "n": [len(first), len(second)]}


def fair_test(differences: Sequence[float], train: int, test: int) -> dict[str, Any]:
    """The corrected resampled t-test of paired differences, in points."""
    found = corrected_t_test(100 * np.asarray(differences, dtype=np.float64), train=train, test=test)
    return {
        "points": digits(found.mean, 3),
        "interval": [digits(found.low, 3), digits(found.high, 3)],
        "p": found.p if math.isnan(found.p) else digits(found.p, 3),
        "shuffles": found.n,
    }
