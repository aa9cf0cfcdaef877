"""Training: settings, losses, modes, schedules, and short runs of `fit`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

import ntkscope as ns
from laws.table import (
    Argument,
    Case,
    case,
    choice,
    count,
    finite,
    given,
    nonnegative,
    other,
    positive,
    seed,
    share,
    switch,
)

T = ns.training
NOT_MADE = (None, "x", 3, object())
STEPS = (None, "x", 3, ((0, "x"),), ((-1, 0.1),), ((0, float("nan")),), object())


def part() -> Argument:
    def draw(random: np.random.Generator, sizes: Any) -> Any:
        x = torch.from_numpy(random.normal(size=(sizes["n"], 4))).float()
        return ns.core.Part(x, torch.arange(sizes["n"]) % sizes["c"])

    return other(draw, bad=NOT_MADE)


def model() -> Argument:
    return other(lambda random, sizes: ns.models.build("mlp", in_features=4, classes=3, widths=5), bad=NOT_MADE)


def fitted(**options: Any) -> Any:
    return T.fit(**options).final().params


def ensemble(**options: Any) -> Any:
    return T.fit_ensemble(
        lambda seed: ns.models.build("mlp", in_features=4, classes=3, widths=5, seed=seed), **options
    ).params


def one_fold(**options: Any) -> Any:
    return [(len(train), len(held_out)) for train, held_out in T.folds(**options)]


def factor(kind: Any) -> Any:
    return lambda **options: kind(**options).factor(3, 5, 20)


def each(argument: Argument) -> Argument:
    """A number, or a list of one per member."""
    return replace(argument, bad=tuple(value for value in argument.bad if not isinstance(value, list)))


RUN = {
    "lr": positive(0.1).may_be(0.0),
    "optimizer": choice("sgd"),
    "loss": choice("cross_entropy"),
    "steps": count(2, least=0),  # none at all: the network as it is
    "batch_size": count(4).may_be(None),
    "momentum": share(0.5),
    "nesterov": switch(),
    "weight_decay": nonnegative(0.01),
    "seed": seed(),
    "drop_last": switch(),
    "measure": switch(True),
}
# fmt: off
CASES: list[Case] = [
    Case(fitted, {"model": model(), "part": part(), **RUN}, name="training.fit"),
    Case(ensemble, {"part": part(), **RUN, "lr": each(RUN["lr"]), "weight_decay": each(RUN["weight_decay"]),
        "seeds": given(2, bad=(None, "x", 0, -1, 2.5, [], [2.5], ["x"], float("nan"), object())),
        "diverged": choice("raise")}, name="training.fit_ensemble"),
    case(T.Settings, **{**RUN, "epochs": given(None)}, options={"name": "training.Settings"}),
    Case(lambda epochs, **given: fitted(epochs=epochs, lr=0.1, **given),
        {"model": model(), "part": part(), "epochs": count(1, least=0)}, name="training.fit in epochs"),
    Case(one_fold, {"part": part(), "count": count(3, least=2), "seed": seed()}, name="training.folds"),
    case(T.search,
        build=given(lambda **options: ns.models.build("mlp", in_features=4, classes=3, widths=3), bad=NOT_MADE),
        part=part(), grid=given({"lr": [0.1, 0.2]}, bad=(*NOT_MADE, {}, {"lr": []}, {"no such": [1]})),
        folds_count=count(2, least=2), score=choice("accuracy"), vectorised=switch(), steps=count(1, least=0),
        options={"name": "training.search"}),
    case(T.evaluate, model=model(), part=part(), loss=choice("cross_entropy"), batch_size=count(5).may_be(None),
        options={"low": 0}),
    case(T.adapt, model=model(), part=part(), method=choice("linear-probe"), classes=count(3).may_be(None),
        standardize=switch(True), std=nonnegative(0.02).may_be(None), rank=count(2), alpha=positive(16.0), seed=seed(),
        options={"name": "training.adapt"}),
    case(T.adaptation, model=model(), part=part(), method=choice("linear-probe"), classes=count(3).may_be(None),
        seed=seed(), options={"name": "training.adaptation"}),
    case(T.CrossEntropy, label_smoothing=share(0.1)),
    Case(factor(T.Cosine), {"end": nonnegative(0.1)}, name="training.Cosine"),
    Case(factor(T.Triangular), {"peak": share(0.25), "start": nonnegative(0.0), "end": nonnegative(0.0)},
        name="training.Triangular"),
    Case(factor(T.LearningRateSteps), {"at": given(((1, 0.5),), bad=STEPS), "unit": choice("epoch")},
        name="training.LearningRateSteps"),
    case(T.Every, count=count(3), unit=choice("step")),
    case(T.LogSpaced, count=count(3)),
    case(T.CropFlip, padding=count(2, least=0), flip=switch(True), fill=choice("reflect")),
    case(T.Translate, max_shift=count(2, least=0),
        fill=given(0.0, bad=("x", None, object(), float("nan"), float("inf"), 1j))),
    case(T.StopWhen, loss=finite(0.1).may_be(None), accuracy=share(0.9).may_be(None), every=count(1)),
    case(T.Phase, train=given(("*",), bad=(None, 3, object())), freeze=given((), bad=(None, 3, object())),
        epochs=count(1).may_be(None), reset_optimizer=switch()),
    case(T.first_last, epochs=count(1), options={"of": len}),
    case(T.reinit, epochs=count(1), options={"of": len}),
    case(T.stop_first, epochs=count(1), options={"of": len}),
    case(T.reg, options={"of": len}),
    case(T.SnapshotStore, folder=given("a", bad=(None, 3, object(), b"x", float("nan"))),
        options={"of": lambda store: 0}),
]
# fmt: on
