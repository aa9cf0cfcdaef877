"""Data sets, their transforms, and architectures: options, counts and shares."""

from __future__ import annotations

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
from ntkscope.data._validation import validate
from ntkscope.models._layers import Normalised, Scale, gaussian_moments

D, MO = ns.data, ns.models
NOT_PARTS = (None, "x", 3, object(), torch.eye(3))
NOT_MODELS = (None, "x", 3, object(), torch.nn.Linear)
NODES = (None, "x", 3, (), (0, 2), (2.5, 3), (float("nan"), 3), object())
BOX = ("x", 3, (), ((0.0, 0.0), (-1.0, 1.0)), ((float("nan"), 1.0), (-1.0, 1.0)), ((1.0, -1.0), (-1.0, 1.0)), object())


def images() -> Argument:
    def draw(random: np.random.Generator, sizes: Any) -> Any:
        x = torch.from_numpy(random.uniform(size=(sizes["n"], 3, 8, 8))).float()
        return ns.core.Part(x, torch.arange(sizes["n"]) % sizes["c"])

    return other(draw, bad=NOT_PARTS)


def split() -> Argument:
    def draw(random: np.random.Generator, sizes: Any) -> Any:
        part = images().draw(random, sizes)
        return ns.core.Split(part, part, classes=("a", "b", "c"))

    return other(draw, bad=NOT_PARTS)


def summed(part: Any) -> Any:
    parts = [part.train, part.test] if hasattr(part, "train") else [part]
    return [(np.asarray(one.x.sum()), np.asarray(one.y.sum())) for one in parts]


def loaded(name: str, **arguments: Argument) -> Case:
    """A data set by name: its options one by one."""
    arguments.setdefault("seed", seed())
    return Case(lambda **options: D.load(name, **options), arguments, of=summed, name=f"data.load({name})")


def network(name: str, inputs: tuple[int, ...], **arguments: Argument) -> Case:
    """An architecture by name, and what it answers."""

    def function(**options: Any) -> Any:
        return MO.build(name, **options).eval()(torch.ones(2, *inputs))

    arguments.setdefault("classes", count(3))
    return Case(function, {**arguments, "seed": seed().may_be(None)}, name=f"models.{name}")


def language_model(**options: Any) -> Any:
    return MO.build("gpt", **options).eval()(torch.zeros(2, 3, dtype=torch.long))


def small_gpt() -> Argument:
    return other(lambda random, sizes: MO.build("gpt", vocabulary=5, context=4, width=4), bad=NOT_MODELS)


TEXTS: tuple[Any, ...] = (None, "x", 3, [], [3], [("a",)], [("a", "")], [None], object())
ITEMS = {"train": count(20), "test": count(10)}
DTYPE = choice("float32")
WIDTH = {"width": positive(0.25)}
# fmt: off
CASES: list[Case] = [
    case(D.badnets, part=images(), fraction=share(0.25), target=count(1, least=0), include_target=switch(True),
        seed=seed(), options={"of": summed}),
    case(D.stamp, part=images(), target=count(1, least=0).may_be(None), seed=seed(), options={"of": summed}),
    case(D.Trigger, size=count(2), colour=choice("yellow").may_be([]), place=choice("lower-right"), pattern=choice("square"),
        margin=count(0, least=0)),
    case(D.label_noise, part=images(), fraction=share(0.25), classes=count(3, least=2), seed=seed(),
        options={"of": summed}),
    case(D.one_vs_rest, data=images(), positive=count(1, least=0), options={"of": summed}),
    case(D.translate, data=images(), max_shift=count(2, least=0), seed=seed(), epoch=count(1, least=0),
        fill=given(0.0, bad=("x", None, object(), float("nan"), float("inf"), 1j)), options={"of": summed}),
    case(validate, split=split(), options={"of": summed}),
    case(D.options_of, name=choice("digits")),
    case(D.load, name=choice("digits"), seed=seed(), options={"of": summed}),
    loaded("digits", test_fraction=share(0.2), dtype=DTYPE),
    loaded("boolean-cube", dimension=count(4), degree=count(2, least=0), dtype=DTYPE),
    loaded("orthant-shells", dimension=count(3), centre=positive(4.0),
        radii=given((1.0, 2.0), bad=("x", 3, (), (0.0, 1.0), (-1.0, 2.0), (1.0, 9.0), (float("nan"), 1.0), object())),
        per_class=count(5), empty=count(1, least=0).may_be([1.0, 2.0]), sparse=count(0, least=0),
        sparse_per_class=count(2, least=0),
        test_per_class=count(3), dtype=DTYPE),
    case(MO.build, name=choice("lenet"), options={"of": lambda model: 0}),
    network("mlp", (4,), in_features=count(4),
        widths=given(5, bad=(None, "x", 0, -1, 2.5, float("nan"), (0,), (2.5,), ("x",), object())),
        depth=count(2, least=0).may_be(None), bias=switch(True), activation=choice("relu"), ntk=switch(),
        sigma_w=nonnegative(1.0).may_be(None), sigma_b=nonnegative(1.0).may_be(None), law=choice("normal"),
        init_scale=finite(1.0), symmetric=switch()),
    network("quadratic", (4,), in_features=count(4), width=count(5)),
    network("lenet", (1, 28, 28), in_channels=count(1), image_size=count(28), padding=count(0, least=0).may_be(None),
        **WIDTH),
    network("small_cnn", (1, 8, 8), in_channels=count(1), image_size=count(8),
        channels=given((2, 3), bad=(None, "x", 3, (), (0,), (2.5,), ("x",), object())), convolutions=count(1),
        pool=choice("max"), hidden=given((4,), bad=(None, "x", 3, (0,), (2.5,), ("x",), object())), ntk=switch()),
    network("alexnet", (3, 64, 64), in_channels=count(3), dropout=share(0.0), width=positive(0.05)),
    network("poison_cnn", (3, 16, 16), in_channels=count(3), image_size=count(16), dropout=share(0.2), **WIDTH),
    network("mobilenetv2", (3, 32, 32), in_channels=count(3), dropout=share(0.2), **WIDTH),
    network("resnet18", (3, 16, 16), in_channels=count(3), max_pool=switch(), width=positive(0.05)),
    network("resnet34", (3, 16, 16), in_channels=count(3), max_pool=switch(), width=positive(0.05)),
    network("resnet20", (3, 8, 8), in_channels=count(3)),
    network("resnet56", (3, 8, 8), in_channels=count(3)),
    Case(language_model, {"vocabulary": count(5), "context": count(4), "width": count(4), "depth": count(1), "heads": count(2),
        "tied": switch(True), "dropout": share(0.1), "seed": seed().may_be(None)}, name="models.gpt"),
    case(MO.sequence_log_likelihood, model=small_gpt(), mean=switch(), tokens=count(2).may_be(None),
        options={"of": lambda model: model(torch.zeros(2, 3, dtype=torch.long))}),
    case(MO.sequence_inputs, texts=given([("a", "bc"), "d"], bad=TEXTS),
        tokenizer=given(MO.ByteTokenizer(), bad=("x", 3, object())), start=count(1, least=0).may_be(None),
        end=count(2, least=0).may_be(None), apart=switch(), length=count(9).may_be(None)),
    case(MO.activation, kind=choice("relu")),
    case(gaussian_moments, activation=given(torch.nn.Tanh(), bad=NOT_MODELS[:4]), nodes=count(64)),
    case(MO.contrast, model=given(torch.nn.Linear(3, 3), bad=NOT_MODELS), first=count(0, least=0),
        second=count(1, least=0), options={"of": lambda model: 0}),
    case(MO.NTKLinear, in_features=count(3), out_features=count(2), bias=switch(True), sigma_w=nonnegative(1.0),
        sigma_b=nonnegative(1.0), options={"of": lambda model: 0}),
    case(Normalised, activation=given(torch.nn.Tanh(), bad=NOT_MODELS[:4]),
        options={"of": lambda model: model(torch.ones(2))}),
    case(Scale, factor=finite(2.0), options={"of": lambda model: model(torch.ones(2))}),
]
# fmt: on
