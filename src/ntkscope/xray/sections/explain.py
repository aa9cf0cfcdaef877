"""Explain a prediction: which training points support it, by class and one by one, under every kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from ntkscope.data.subsets import stratified
from ntkscope.explain import attribute, class_summary, concentration, nearest
from ntkscope.measures.faithfulness import agreement, probabilities
from ntkscope.xray.context import Context
from ntkscope.xray.plan import MAIN
from ntkscope.xray.registry import Finding, Section, register
from ntkscope.xray.result import Result
from ntkscope.xray.sections import surrogates
from ntkscope.xray.workload import Workload

OFFERED = 200  # test items a reader can pick
NEIGHBOURS = 8
OUTLIERS = 10


@dataclass(frozen=True)
class Explanations(Result):
    """The test items a reader can pick: their numbers, and the classes of surrogate, network and label."""

    kernels: tuple[str, ...]
    main: str
    items: tuple[int, ...]
    predicted: tuple[int, ...]
    network_predicted: tuple[int, ...]
    true: tuple[int, ...]
    k: int
    agreement: float


def run(context: Context) -> Finding[Explanations]:
    y, classes = context.y_train, len(context.classes)
    items = _offered(context)
    k = min(NEIGHBOURS, len(y))
    logits = context.machine_logits(MAIN)
    predicted = logits.argmax(1)[items]
    attribution = attribute(context.machine(MAIN), context.pair(MAIN).scaled().test, rows=items)
    t = len(items)
    mean, box = np.full((t, classes, classes), np.nan), np.full((t, classes, 5), np.nan)
    top_index, top_value = np.zeros((t, k), dtype=np.int64), np.zeros((t, k))
    out_index, out_value = np.full((t, OUTLIERS), -1, dtype=np.int64), np.full((t, OUTLIERS), np.nan)
    shares = np.zeros((t, 3))
    known = int(y.max()) + 1
    for i in range(t):
        values = attribution.item(i)  # (training items, logits)
        own = values[:, predicted[i]]
        summary = class_summary(own[:, None], y)
        mean[i, :, :known] = np.stack([values[y == label].mean(0) if (y == label).any() else np.full(classes, np.nan)
                                       for label in range(known)], axis=1)  # fmt: skip
        parts = (summary.low, summary.q1, summary.median, summary.q3, summary.high)
        box[i, :known] = np.concatenate(parts, axis=1)
        beyond = np.concatenate([found[0] for found in summary.outliers])
        beyond = beyond[np.argsort(-np.abs(own[beyond]), kind="stable")][:OUTLIERS]
        out_index[i, : len(beyond)], out_value[i, : len(beyond)] = beyond, own[beyond]
        top_index[i] = np.argsort(-own, kind="stable")[:k]
        top_value[i] = own[top_index[i]]
        carried = concentration(own, k=min(5, len(own)))
        shares[i] = float(carried.top), float(carried.top_percent), float(carried.participation)
    for name, value in {
        "class_mean": mean,
        "box": box,
        "outliers_index": out_index,
        "outliers_value": out_value,
        "top_index": top_index,
        "top_value": top_value,
        "concentration": shares,
        "probability": probabilities(logits)[items],
    }.items():
        context.keep(f"explain.{name}", value)
    for name in context.kernels:
        found = nearest(context.pair(name).test[items], k)
        context.keep(f"explain.nearest_index.{name}", found.indices)
        context.keep(f"explain.nearest_value.{name}", found.values)
    agree = agreement(logits, context.network_logits)
    confidence = (
        f"What is explained is the surrogate on {MAIN}, which agrees with the network on {100 * agree:.1f} % of the test"
        " items; where the two differ, the explanation is of the surrogate's prediction."
    )
    return Finding(
        Explanations(
            kernels=context.kernels,
            main=MAIN,
            items=tuple(items.tolist()),
            predicted=tuple(predicted.tolist()),
            network_predicted=tuple(context.network_logits.argmax(1)[items].tolist()),
            true=tuple(context.y_test[items].tolist()),
            k=k,
            agreement=agree,
        ),
        confidence,
    )


def _offered(context: Context) -> Int64[np.ndarray, " t"]:
    """Test items to pick from: first the network's mistakes and where the surrogate differs, then some of every class."""
    y, network = context.y_test, context.network_logits.argmax(1)
    odd = np.flatnonzero((network != y) | (network != context.machine_logits(MAIN).argmax(1)))
    chosen = odd[: OFFERED // 2]
    rest = np.setdiff1d(np.arange(len(y)), chosen)
    if len(rest):
        room = max(OFFERED - len(chosen), len(np.unique(y[rest])))
        chosen = np.concatenate([chosen, rest[stratified(y[rest], room, context.seed, "xray", "offered")]])
    return np.sort(chosen).astype(np.int64)


def cost(work: Workload) -> float:
    items = min(OFFERED, work.test)
    return items * work.train * work.classes * 3e-8 + items * 5e-3


SECTION = register(
    Section(
        name="explain",
        place=3,
        title="Explain a prediction",
        meaning=(
            "A prediction of the surrogate is a sum with one term for every training point. The largest terms are the"
            " training points that support the prediction most; similar points are those the network treats alike."
        ),
        formula="A(x, x_i)_c = W_ci κ(x, x_i) + b_c / N, and Σ_i A(x, x_i)_c is the logit of class c.",
        run=run,
        result=Explanations,
        after=(surrogates.SECTION,),
        cost=cost,
    )
)
