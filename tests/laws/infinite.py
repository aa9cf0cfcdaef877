"""Infinitely wide networks: layers, kernels, training in closed form, spectra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ntkscope as ns
from laws.table import (
    INVARIANT,
    Argument,
    Case,
    case,
    choice,
    count,
    cross_kernel,
    finite,
    given,
    kernel,
    matrix,
    nonnegative,
    positive,
    seed,
    switch,
)

F = ns.infinite
NET = F.serial(F.Dense(W_std=1.5, b_std=0.1), F.Relu(), F.Dense())
NOT_NETS = (None, "x", 3, object(), torch.relu)
SIZE_BAD = (None, "x", 0, -1, 2.5, float("nan"), (0, 3), (2.5, 3), object(), ())
LAYERS = (None, "x", 3, object())


def net() -> Argument:
    return given(NET, bad=NOT_NETS)


def used(layer: Callable[..., Any], inputs: Any = None) -> Callable[..., Any]:
    """The layer between two others, at a few inputs: what it was given must be refused there at the latest."""

    def function(**options: Any) -> Any:
        return F.kernel(F.serial(F.Dense(), layer(**options), F.Dense()), torch.eye(3, dtype=torch.float64) + 0.5)

    return function


def image(layer: Callable[..., Any]) -> Callable[..., Any]:
    def function(**options: Any) -> Any:
        x = torch.linspace(-1, 1, 64, dtype=torch.float64).reshape(2, 2, 4, 4)
        return F.kernel(F.serial(F.Conv(3), layer(**options), F.Flatten(), F.Dense()), x)

    return function


def layer(kind: Any, on: Callable[..., Any] = used, **arguments: Argument) -> Case:
    return Case(on(kind), arguments, name=f"infinite.{kind.__name__}")


# fmt: off
CASES: list[Case] = [
    case(F.kernel, net=net(), x1=matrix("n", "p"), x2=matrix("m", "p").may_be(None), kind=choice("ntk"),
        init=choice("checked"), options={"items": {"": ("n", "m")}}),
    case(F.kernels, net=net(), x1=matrix("n", "p"), x2=matrix("m", "p").may_be(None), init=choice("checked"),
        options={"items": {"nngp": ("n", "m"), "ntk": ("n", "m")}}),
    case(F.dynamics, theta=kernel(), y=matrix("n", "c"), loss=choice("half-mean"), step=positive(0.01).may_be(None),
        options={"of": lambda found: (found.eigenvalues, found.factor)}),
    case(F.kernel_regression, K=kernel(degree=-1), y=matrix("n", "c", degree=1), K_test=cross_kernel(degree=1),
        alpha=nonnegative(0.0), options={"items": {"": ("m", None)}}),
    case(F.max_learning_rate, theta=kernel(degree={"largest_eigenvalue": 1, "inverse": -1, "twice": -1}),
        options={"items": INVARIANT, "low": 0}),
    case(F.sample, K=kernel(), count=count(2), seed=seed(), keep=count(3).may_be(None)),
    case(F.boolean_cube, net=net(), d=count(4), kind=choice("ntk"),
        options={"free": ("log10",), "ranges": {"fractional_variance": (0, 1)}}),
    case(F.sphere, net=net(), d=count(4, least=2), kind=choice("ntk"), degrees=count(4, least=0),
        options={"free": ("log10",), "ranges": {"fractional_variance": (0, 1)}}),
    case(F.gaussian, net=net(), d=count(4, least=2), kind=choice("ntk"), degrees=count(3, least=0), radii=count(8),
        angles=count(40), options={"free": ("log10",), "ranges": {"fractional_variance": (0, 1)}}),
    case(F.harmonics, d=count(4), k=count(3, least=0), options={"low": 0}),
    case(F.radial, net=net(), kind=choice("ntk"), options={"of": lambda f: f(np.array([0.0, 0.5, 1.0]))}),
    case(F.finite, net=net(), shape=given((4,), bad=(None, "x", 3, (), (0,), (-1,), (2.5,), ("x",), object())),
        width=count(6), outputs=count(2), seed=seed()),
    case(F.from_module, module=given(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)),
        bad=(None, "x", 3, object())), init=choice("checked").may_be()),
    case(F.serial, options={"of": lambda made: len(made.layers)}),
    case(F.Residual, options={"of": lambda made: 0}),
    layer(F.Dense, W_std=nonnegative(1.0), b_std=nonnegative(0.1), width=count(5).may_be(None),
        train_weight=switch(True), train_bias=switch(True)),
    layer(F.Conv, image, kernel=given(3, bad=SIZE_BAD), stride=given(1, bad=SIZE_BAD), padding=choice("same").may_be(3),
        W_std=nonnegative(1.0), b_std=nonnegative(0.1), dilation=given(1, bad=SIZE_BAD)),
    layer(F.AvgPool, image, window=given(2, bad=SIZE_BAD), stride=given(2, bad=SIZE_BAD[1:])),
    layer(F.GlobalAvgPool, image),
    layer(F.Flatten, image),
    layer(F.LayerNorm, over=choice("channels"), eps=nonnegative(1e-5)),
    layer(F.rules.Identity),
    layer(F.Relu, normalize=switch()),
    layer(F.LeakyRelu, a=finite(0.1), normalize=switch()),
    layer(F.rules.Abs, normalize=switch()),
    layer(F.Erf, normalize=switch()),
    layer(F.Gelu, normalize=switch()),
    layer(F.rules.Sin, a=finite(1.0), b=finite(0.5), normalize=switch()),
    layer(F.rules.Rbf, gamma=positive(1.0), normalize=switch()),
    layer(F.Activation, fn=given(torch.tanh, bad=(None, "x", 3, object())), terms=count(20).may_be(None),
        normalize=switch()),
    layer(F.rules.Serial, layers=given((F.Relu(), F.Dense()), bad=(*LAYERS, (None,), ("x",)))),
    layer(F.rules.Sum, branches=given((F.rules.Identity(), F.Dense()), bad=(*LAYERS, (), (None,), ("x",)))),
    layer(F.rules.Concat, branches=given((F.rules.Identity(), F.Dense()), bad=(*LAYERS, (), (None,), ("x",))),
        shares=given((0.5, 0.5), bad=("x", 3, (), (0.5,), (-1.0, 2.0), (float("nan"), 0.5), object()))),
]
# fmt: on
