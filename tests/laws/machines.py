"""Kernel machines: pairs of Grams, the surrogate on them, its rating, last layers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

import ntkscope as ns
from laws.table import NOT_ARRAYS, Argument, Case, case, choice, count, given, labels, matrix, nonnegative, other, seed

MA = ns.machines
NOT_MADE = (None, "x", 3, object())
ANY = (np.nan, np.inf, -np.inf)  # for the network to judge


def pair() -> Argument:
    def draw(random: np.random.Generator, sizes: Any) -> Any:
        rows = torch.from_numpy(random.normal(size=(sizes["n"] + sizes["m"], 6)))
        K = rows @ rows.T
        n = sizes["n"]
        return MA.KernelPair("linear", ns.linalg.as_gram(K[:n, :n]), ns.linalg.as_gram(K[n:, :n]))

    return other(draw, bad=NOT_MADE)


def model() -> Argument:
    return other(lambda random, sizes: ns.models.build("mlp", in_features=4, classes=3, widths=5), bad=NOT_MADE)


def part() -> Argument:
    def draw(random: np.random.Generator, sizes: Any) -> Any:
        x = torch.from_numpy(random.normal(size=(sizes["n"], 4))).float()
        return ns.core.Part(x, torch.eye(3)[torch.arange(sizes["n"]) % 3])

    return other(draw, bad=NOT_MADE)


def _tensors(*axes: str) -> Argument:
    return other(lambda random, sizes: torch.from_numpy(random.normal(size=[sizes[axis] for axis in axes])).float())


@cache
def rates() -> Any:
    return MA.measure_rates(ns.models.build("mlp", in_features=4, classes=3, widths=5), torch.ones(4, 4))


# fmt: off
CASES: list[Case] = [
    case(MA.KernelPair, name=given("linear"),
        train=other(lambda random, sizes: ns.linalg.as_gram(np.eye(4)), bad=NOT_MADE),
        test=other(lambda random, sizes: ns.linalg.as_gram(np.ones((2, 4))), bad=NOT_MADE)),
    case(MA.fit_machine, pair=pair(), y=labels(), surrogate=choice("glm").may_be(None), target=choice("labels"),
        classes=count(3).may_be(None), options={"free": ("gradient_norm", "alpha"), "noise": ("seconds",)}),
    case(MA.rate, logits=matrix("n", "c"), network=matrix("n", "c"), y=labels(), bootstrap=count(10, least=0),
        seed=seed(), options={"free": ("figures", "more")}),
    case(MA.solve_last_layer, model=model(), part=part(), loss=choice("mse"), alpha=nonnegative(0.1),
        tol=nonnegative(1e-12).may_be(None),
        options={"of": lambda found: (found.loss_before, found.loss_after, found.rank)}),
    case(MA.retrain_last_layer, model=model(), part=part(), loss=choice("mse"), alpha=nonnegative(0.1),
        tol=nonnegative(1e-12).may_be(None)),
    case(MA.joined, first=matrix("n", "p", tensor=True, meaning=ANY).may_be(NOT_ARRAYS[4]),  # inputs without a name
        second=matrix("m", "p", tensor=True, meaning=ANY)),
    case(MA.kernel_seconds, name=choice("trntk"), n=count(10), m=count(10, least=0),
        rates=other(lambda random, sizes: rates(), bad=NOT_MADE), options={"low": 0}),
    case(MA.measure_rates, model=model(), x=other(lambda random, sizes: torch.ones(4, 4), bad=NOT_MADE),
        options={"of": lambda rates: 0}),
]
# fmt: on
