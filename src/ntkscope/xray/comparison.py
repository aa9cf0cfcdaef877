"""Comparing two X-rays: what changed from one checkpoint to another, item by item over the items that both used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Int64
from scipy.stats import binomtest

from ntkscope.core import NumericalError, Record, UsageError
from ntkscope.core.records.record_id import record_id
from ntkscope.measures.alignment import centred_alignment
from ntkscope.xray.result import Result
from ntkscope.xray.sections import explain, kernel, problems, summary, surrogates
from ntkscope.xray.task import REGRESSION

KIND = "comparison"
LISTED = 200
OVER = {"train": "kernels and doubtful labels", "test": "predictions and accuracies"}  # of the items both used
OWN = {"train": "explanations and figures of the kernels", "test": "τ of surrogates"}
Rows: TypeAlias = Int64[np.ndarray, " k"]


@dataclass(frozen=True)
class Side(Result):
    """One of the two X-rays in short."""

    folder: str
    record: str
    model: str
    data: str
    accuracy: float | None
    verdict: str
    trust: str
    doubtful: int | None


@dataclass(frozen=True)
class Changed(Result):
    """A test item that the two networks classify differently."""

    original: int
    true: int
    a: int
    b: int


@dataclass(frozen=True)
class Predictions(Result):
    """Right and wrong on the shared test items; `p` is McNemar's exact test of equal accuracies."""

    items: int
    both_right: int
    only_a: int
    only_b: int
    both_wrong: int
    p: float
    changed: tuple[Changed, ...]


@dataclass(frozen=True)
class Kernels(Result):
    """Centred alignment (CKA) of each kernel of A with the same kernel of B on the shared training items."""

    name: str
    items: int
    cka: float


@dataclass(frozen=True)
class Figure(Result):
    """One figure of both X-rays."""

    name: str
    a: float | None
    b: float | None


@dataclass(frozen=True)
class Overlap(Result):
    """The supporting training points two explanations of one test item share, of `k` each."""

    original: int
    shared: int
    k: int
    same_class: bool


@dataclass(frozen=True)
class Doubt(Result):
    """A training item whose label became doubtful, or is no longer."""

    original: int
    label: int
    score_a: float
    score_b: float


@dataclass(frozen=True)
class Comparison(Result):
    """Everything that was compared; what the two have not in common is empty, and `notes` say why.

    `doubtful_lacking`: why doubtful labels were not compared; empty where they were.
    """

    a: Side
    b: Side
    predictions: Predictions | None
    kernels: tuple[Kernels, ...]
    kernel_figures: tuple[Figure, ...]
    surrogates: tuple[Figure, ...]
    overlaps: tuple[Overlap, ...]
    doubtful_new: tuple[Doubt, ...]
    doubtful_gone: tuple[Doubt, ...]
    doubtful_kept: int
    notes: tuple[str, ...]
    doubtful_lacking: str = ""


def compare(a: Record | str | Path, b: Record | str | Path, out: str | Path) -> Record:
    """Compare two X-rays and write the result as a record into `out`; `ntkscope.report.write_page(out)` makes its page."""
    first, second = (_opened(each) for each in (a, b))
    config = {k: {"folder": str(x.folder), "record": record_id(x)} for k, x in (("a", first), ("b", second))}
    name = f"{first.folder.name} and {second.folder.name}"
    with Record.create(out, kind=KIND, name=name, config=config) as record:
        names = {**first.metrics.get("kernel_names", {}), **second.metrics.get("kernel_names", {})}
        classes = [list(map(str, each.metrics.get("data", {}).get("classes", []))) for each in (first, second)]
        found = comparison(first, second)
        same = classes[0] if classes[0] == classes[1] else []
        record.put(comparison=found.to_record(), classes=same, kernel_names=names)
    return record


def comparison(a: Record, b: Record) -> Comparison:
    """What changed from the X-ray `a` to the X-ray `b`."""
    notes = []
    train = _shared(a, b, "train")
    test = _shared(a, b, "test")
    for part, what, shared in (("train", "training", train), ("test", "test", test)):
        used = [len(each.arrays.get(f"originals.{part}", ())) for each in (a, b)]
        if shared is None:
            notes.append(f"The {what} data of the two X-rays differ, so single {what} items are not compared.")
        elif len(shared[0]) < max(used):
            notes.append(
                f"A used {used[0]:,} {what} items and B {used[1]:,}; {OVER[part]} are compared over the {len(shared[0]):,} that"
                f" both used, {OWN[part]} are each one's own."
            )
    lacking = "different training data" if train is None else ""
    if any(problems.SCORES not in each.arrays for each in (a, b)):
        lacking = "not examined in both"
    new, gone, kept = ((), (), 0) if train is None or lacking else _doubts(a, b, train)
    return Comparison(
        a=_side(a, train and train[0], test and test[0]),
        b=_side(b, train and train[1], test and test[1]),
        predictions=_predictions(a, b, test) if test and len(test[0]) else None,
        kernels=_kernels(a, b, train) if train and len(train[0]) else (),
        kernel_figures=_kernel_figures(a, b),
        surrogates=_surrogates(a, b),
        overlaps=() if train is None or test is None else _overlaps(a, b),
        doubtful_new=new,
        doubtful_gone=gone,
        doubtful_kept=kept,
        notes=tuple(notes),
        doubtful_lacking=lacking,
    )


def _opened(record: Record | str | Path) -> Record:
    found = record if isinstance(record, Record) else Record.open(record)
    if found.kind != "xray":
        raise UsageError(f"{found.folder} holds a record of kind {found.kind!r}; expected an X-ray")
    if found.config.get("task") == REGRESSION.name:
        raise UsageError(
            f"{found.folder} holds the X-ray of a regression; expected one of a classifier: only these are compared"
        )
    return found


def _side(record: Record, train: Rows | None, test: Rows | None) -> Side:
    """In short; accuracy and doubtful labels over these rows."""
    about, found = record.metrics.get("model", {}), summary.SECTION.read(record.metrics)
    scores = record.arrays.get(problems.SCORES)
    accuracy = found.network_accuracy if isinstance(found, summary.Summary) else None
    if test is not None and len(test):
        right = np.asarray(record.arrays["network.test_prediction"]) == np.asarray(record.arrays["labels.test"])
        accuracy = float(right[test].mean())
    return Side(
        folder=str(record.folder),
        record=record_id(record),
        model=str(about.get("name", "")),
        data=str(record.metrics.get("data", {}).get("name", "")),
        accuracy=accuracy,
        verdict="" if found is None else found.verdict,
        trust="" if found is None else found.trust,
        doubtful=None
        if scores is None
        else int((np.asarray(scores)[slice(None) if train is None else train] > 0).sum()),
    )


def _shared(a: Record, b: Record, part: str) -> tuple[Rows, Rows] | None:
    """Places in A and in B of the items that both used; None if their data are not the same."""
    if a.config.get(part) != b.config.get(part) or any(f"originals.{part}" not in each.arrays for each in (a, b)):
        return None
    first, second = (np.asarray(each.arrays[f"originals.{part}"]) for each in (a, b))
    _, in_a, in_b = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    return in_a.astype(np.int64), in_b.astype(np.int64)


def _predictions(a: Record, b: Record, shared: tuple[np.ndarray, np.ndarray]) -> Predictions:
    said = [np.asarray(each.arrays["network.test_prediction"])[rows] for each, rows in zip((a, b), shared)]
    true = np.asarray(a.arrays["labels.test"])[shared[0]]
    numbers = np.asarray(a.arrays["originals.test"])[shared[0]]
    right = [each == true for each in said]
    only_a, only_b = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    changed = np.flatnonzero(said[0] != said[1])
    return Predictions(
        items=len(true),
        both_right=int((right[0] & right[1]).sum()),
        only_a=only_a,
        only_b=only_b,
        both_wrong=int((~right[0] & ~right[1]).sum()),
        p=float(binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0,
        changed=tuple(
            Changed(int(numbers[i]), int(true[i]), int(said[0][i]), int(said[1][i])) for i in changed[:LISTED]
        ),
    )


def _kernels(a: Record, b: Record, shared: tuple[np.ndarray, np.ndarray]) -> tuple[Kernels, ...]:
    found = []
    for name in a.arrays:
        if not (name.startswith("kernels.") and name.endswith(".train")) or "initial." in name or name not in b.arrays:
            continue
        grams = [np.asarray(each.arrays[name]) for each in (a, b)]
        if any(gram.ndim != 2 or len(gram) != gram.shape[1] for gram in grams):
            continue  # a kernel that is kept by its features
        parts = (torch.from_numpy(gram[np.ix_(rows, rows)].astype(np.float64)) for gram, rows in zip(grams, shared))
        try:
            found.append(
                Kernels(name.removeprefix("kernels.").removesuffix(".train"), len(shared[0]), centred_alignment(*parts))
            )
        except NumericalError:  # a constant kernel has no direction
            continue
    return tuple(found)


def _kernel_figures(a: Record, b: Record) -> tuple[Figure, ...]:
    both = [kernel.SECTION.read(each.metrics) for each in (a, b)]
    names = ("effective_rank", "alignment", "centred_alignment", "condition_number")
    return tuple(Figure(name, *(None if each is None else getattr(each, name) for each in both)) for name in names)


def _surrogates(a: Record, b: Record) -> tuple[Figure, ...]:
    """τ of every surrogate that either has."""
    taus: list[Mapping[str, float]] = []
    for each in (a, b):
        found = surrogates.SECTION.read(each.metrics)
        rows = () if found is None else found.table
        taus.append({f"{row.kernel}|{row.target}": row.tau for row in rows})
    return tuple(Figure(name, taus[0].get(name), taus[1].get(name)) for name in dict.fromkeys([*taus[0], *taus[1]]))


def _tops(record: Record) -> dict[int, tuple[set[int], int, int]]:
    """For each explained test item by its number: its main supporting points, how many, and the class explained."""
    found = explain.SECTION.read(record.metrics)
    if not isinstance(found, explain.Explanations) or "explain.top_index" not in record.arrays:
        return {}
    index = np.asarray(record.arrays["explain.top_index"])[:, 0]  # of the network's own class
    train, test = (np.asarray(record.arrays[f"originals.{part}"]) for part in ("train", "test"))
    rows = zip(found.items, index, found.network_predicted)
    return {int(test[i]): ({int(train[j]) for j in row if j >= 0}, int((row >= 0).sum()), k) for i, row, k in rows}


def _overlaps(a: Record, b: Record) -> tuple[Overlap, ...]:
    """Items explained in both, those that share the fewest supporting points first."""
    first, second = _tops(a), _tops(b)
    found = [
        Overlap(
            item,
            len(first[item][0] & second[item][0]),
            min(first[item][1], second[item][1]),
            first[item][2] == second[item][2],
        )
        for item in first
        if item in second and min(first[item][1], second[item][1])
    ]
    return tuple(sorted(found, key=lambda each: (each.shared / each.k, each.original)))


def _doubts(
    a: Record, b: Record, shared: tuple[np.ndarray, np.ndarray]
) -> tuple[tuple[Doubt, ...], tuple[Doubt, ...], int]:
    """Labels that are doubtful in B alone, in A alone, and how many are in both."""
    scores = [np.asarray(each.arrays[problems.SCORES])[rows] for each, rows in zip((a, b), shared)]
    numbers, labels = (np.asarray(a.arrays[name])[shared[0]] for name in ("originals.train", "labels.train"))

    def listed(chosen: np.ndarray, by: np.ndarray) -> tuple[Doubt, ...]:
        places = np.flatnonzero(chosen)
        places = places[np.argsort(-by[places], kind="stable")][:LISTED]
        return tuple(Doubt(int(numbers[i]), int(labels[i]), float(scores[0][i]), float(scores[1][i])) for i in places)

    before, after = scores[0] > 0, scores[1] > 0
    return listed(after & ~before, scores[1]), listed(before & ~after, scores[0]), int((before & after).sum())
