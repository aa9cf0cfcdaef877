"""Explanations: attribution, influence, neighbours, wrong labels, distribution shift."""

from __future__ import annotations

from typing import Any

import numpy as np

import ntkscope as ns
from laws.table import (
    INVARIANT,
    Argument,
    Case,
    case,
    choice,
    columns,
    count,
    cross_kernel,
    flags,
    given,
    kernel,
    labels,
    matrix,
    other,
    positive,
    seed,
    share,
    switch,
    vector,
)

E = ns.explain
NOT_MADE = (None, "x", 3, object())


def _ridge() -> Argument:
    """A surrogate fitted on a kernel of its own."""

    def draw(random: np.random.Generator, sizes: Any) -> Any:
        n = max(sizes["n"], 4)
        factor = random.normal(size=(n, n + 3))
        return ns.surrogates.KernelRidgeClassifier(alpha=0.1).fit(factor @ factor.T, np.arange(n) % 3)

    return other(draw, bad=NOT_MADE)


def _influences() -> Argument:
    def draw(random: np.random.Generator, sizes: Any) -> Any:
        factor = random.normal(size=(8, 9))
        return [E.influence(factor @ factor.T, random.normal(size=(2, 8)), np.arange(8) % 2, alpha=0.1)] * 2

    return other(draw, bad=(*NOT_MADE, [], [None], ["x"]))


def shifted(a: Any, b: Any, **options: Any) -> Any:
    found = E.shift(None, a, b, **options)
    return {"p": found.p, "effects": found.effects}


# fmt: off
CASES: list[Case] = [
    case(E.attribute, surrogate=_ridge(), K_test=cross_kernel(), options={"of": lambda found: found.coef}),
    case(E.influence, K_train=kernel(), K_test=cross_kernel(), y=columns(), alpha=positive(0.1).may_be(None),
        method=choice("leave-one-out"), options={"of": lambda found: found.values, "items": {"": ("m", "n", None)}}),
    case(E.average, influences=_influences(), options={"of": lambda found: found.values}),
    case(E.removal_effects, K_train=kernel(), K_test=cross_kernel(), targets=matrix("n", "c"),
        alpha=positive(0.1).may_be(None), k=count(3)),
    case(E.nearest, K_test=cross_kernel(), k=count(3), skip_self=switch(),
        options={"items": {"values": ("m", None), "indices": None}}),
    case(E.mislabelled, K=kernel(), y=labels(),
        options={"items": {"order": None, "suggested": None, "scores": ("n",)}}),
    case(E.auroc, scores=vector(degree=0), planted=flags(), options={"items": INVARIANT, "low": 0, "high": 1}),
    case(E.precision_at, scores=vector(degree=0), planted=flags(), k=count(3),
        options={"items": INVARIANT, "low": 0, "high": 1}),
    case(E.score, flags=flags(), truth=flags(), options={"items": INVARIANT, "low": 0}),
    case(E.class_summary, attribution_item=matrix("n", "c"), y_train=columns(),
        options={"items": {"outliers": None}, "free": ("mean", "q1", "median", "q3", "low", "high")}),
    case(E.concentration, values=vector(degree={"top_percent": 0, "participation": 0}), k=count(3),
        options={"free": ("top", "top_percent", "participation")}),
    case(E.forensics.flag, K_test=cross_kernel(degree=0), poisoned=flags(), neighbours=count(3), threshold=count(2),
        options={"items": {"": ("m",)}}),
    case(E.layer_probe, layer=given("layer"), train=matrix("n", "p"), y_train=labels(), test=matrix("m", "p"),
        y_test=labels("m"),
        protocol=given(E.ProbeProtocol(probes=("knn", "ncc"), k=3, validation=None), bad=("x", 3, object())),
        options={"free": ("sweep", "validation"), "noise": ("error",)}),
    case(E.ProbeProtocol, k=count(3), C=positive(1.0).may_be(None), components=count(2).may_be(None),
        standardize=switch(True), validation=share(0.1).may_be(None), method=choice("auto"), seed=seed()),
    Case(shifted, {"a": matrix("w", "p"), "b": matrix("w", "p"),
        "tests": given(("c2st", "mmd", "ks"), bad=(None, 3, (), ("x",), object())), "permutations": count(79),
        "level": share(0.05), "seed": seed(),
        "groups": given(np.arange(60) // 2, bad=("x", 3, object(), np.zeros(60), np.arange(59)))}, name="explain.shift",
        ranges={**{f"p.{t}": (0, 1) for t in ("c2st", "mmd", "ks")}, **{f"effects.auc.{i}": (0, 1) for i in range(3)}}),
]
# fmt: on
